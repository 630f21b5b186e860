"""What all tools have in common, and what listing them costs."""

from typing import Literal, cast

import pytest
from mcp import Client

from mcp_sandbox.service.services import Services
from mcp_sandbox.tools.catalog import ALL_TOOLS, tools_for
from mcp_sandbox.tools.server import build_server
from mcp_sandbox.tools.tool import Profile, Tool

__all__: list[str] = []


async def _no_services() -> Services:
    raise AssertionError


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_b115_the_default_list_costs_at_most_ten_kilobytes(era: Literal["auto", "legacy"]) -> None:
    async with Client(build_server(_no_services), mode=era) as client:
        listed = await client.list_tools()
    assert len(listed.model_dump_json(by_alias=True, exclude_none=True).encode()) <= 10_000


def test_every_profile_holds_the_one_before_it() -> None:
    names = [{tool.name for tool in tools_for(profile)} for profile in Profile]
    assert names[0] < names[1] < names[2]
    assert names[0] == {"exec", "read_file", "write_file"}
    assert names[2] - names[1] == {"snapshot_delete"}


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
    assert reading == {"read_file", "list_files", "search_files", "snapshot_list", "sandbox_list"}
    assert not any(tool.destructive for tool in ALL_TOOLS if tool.read_only)
