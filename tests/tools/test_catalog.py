"""What all tools have in common, and what listing them costs."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal, cast

import pytest
from mcp import Client

import mcp_sandbox
from mcp_sandbox.core.sandbox import WORKSPACE
from mcp_sandbox.service.execution import DEFAULT_TIMEOUT_S
from mcp_sandbox.service.findings import OutputMode
from mcp_sandbox.service.services import Services
from mcp_sandbox.tools.catalog import ALL_TOOLS, tools_for
from mcp_sandbox.tools.server import build_server
from mcp_sandbox.tools.tool import PROFILES, Deferred, Tool

__all__: list[str] = []


async def _no_services() -> Services:
    raise AssertionError


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_b115_the_default_list_costs_at_most_ten_kilobytes(era: Literal["auto", "legacy"]) -> None:
    async with Client(build_server(_no_services), mode=era) as client:
        listed = await client.list_tools()
    assert len(listed.model_dump_json(by_alias=True, exclude_none=True).encode()) <= 10_000


def test_every_profile_holds_the_one_before_it() -> None:
    names = [{tool.name for tool in tools_for(profile)} for profile in PROFILES]
    assert names[0] < names[1] < names[2]
    assert names[0] == {"exec", "read_file", "write_file"}
    assert names[2] - names[1] == {"snapshot_delete", "sandbox_fork", "expose_port"}


@pytest.mark.parametrize("tool", ALL_TOOLS, ids=lambda tool: tool.name)
def test_b114_schemas_are_plain(tool: Tool) -> None:
    def check(fragment: dict[str, object], *, is_argument: bool) -> None:
        assert fragment["type"] in {"string", "integer", "number", "boolean", "array", "object"}
        assert not is_argument or fragment["description"]
        assert fragment.keys() <= {
            *("type", "description", "default", "enum", "items", "additionalProperties"),
            *("minimum", "maximum", "exclusiveMinimum"),
        }
        for inner in ("items", "additionalProperties"):
            if isinstance(found := fragment.get(inner), dict):
                check(cast("dict[str, object]", found), is_argument=False)

    for fragment in tool.properties.values():
        check(dict(fragment), is_argument=True)
    assert set(tool.required) <= tool.properties.keys()
    assert len(tool.name) <= 32
    assert len(tool.description) <= 1_000


def test_reading_tools_say_that_they_only_read() -> None:
    reading = {tool.name for tool in ALL_TOOLS if tool.read_only}
    assert reading == {"read_file", "list_files", "search_files", "snapshot_list", "sandbox_list", "changes"}
    assert not any(tool.destructive for tool in ALL_TOOLS if tool.read_only)


def test_what_declarations_say_of_the_services_is_true() -> None:
    """They cannot import what they speak of: they are listed before it is loaded."""
    by_name = {tool.name: tool.properties for tool in ALL_TOOLS}
    assert f"default {DEFAULT_TIMEOUT_S:.0f}," in by_name["exec"]["timeout_s"]["description"]
    assert by_name["list_files"]["path"]["default"] == by_name["search_files"]["path"]["default"] == WORKSPACE
    assert by_name["search_files"]["output_mode"]["enum"] == [mode.value for mode in OutputMode]
    assert all(hasattr(signal, name) for name in by_name["job"]["signal"]["enum"])


def test_every_tool_has_a_handler_of_its_own_that_can_be_loaded() -> None:
    handlers = [tool.handler for tool in ALL_TOOLS]
    assert len({handler.load() for handler in handlers if isinstance(handler, Deferred)}) == len(ALL_TOOLS)


def test_tools_are_declared_without_loading_anything() -> None:
    code = "import sys; before = {*sys.modules}; import mcp_sandbox.tools.catalog, mcp_sandbox.tools.listing; "
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}print(*sorted({{*sys.modules}} - before))"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(mcp_sandbox.__file__).parents[1])},
    )
    ours = ("catalog", "changes", "exec", "files", "listing", "ports", "sandboxes", "snapshots", "tool")
    assert shown.stdout.split() == ["mcp_sandbox", "mcp_sandbox.tools", *(f"mcp_sandbox.tools.{name}" for name in ours)]
