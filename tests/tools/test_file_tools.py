"""The file tools, from checked arguments to the answer."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import WriteRequest
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.providers.memory import MemoryProvider
from mcp_sandbox.service.applying import ApplyService
from mcp_sandbox.service.changes import ChangeService
from mcp_sandbox.service.execution import ExecutionService
from mcp_sandbox.service.files import FileService
from mcp_sandbox.service.ports import PortService
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.search import SearchService
from mcp_sandbox.service.services import Services
from mcp_sandbox.service.snapshots import SnapshotService
from mcp_sandbox.store.record import Owner
from mcp_sandbox.store.registry import Registry
from mcp_sandbox.store.snapshots import SnapshotStore
from mcp_sandbox.tools.call import Answer, Call
from mcp_sandbox.tools.files import TOOLS
from mcp_sandbox.tools.listing import input_schema
from mcp_sandbox.tools.schema import check_arguments

BY_NAME = {tool.name: tool for tool in TOOLS}


async def no_progress(_: str) -> None:
    """The client did not ask."""


class Client:
    """Calls tools as the server does."""

    def __init__(self, services: Services) -> None:
        self.services = services

    async def call(self, name: str, **arguments: Any) -> Answer:
        """Call a tool with arguments as a model sends them."""
        tool = BY_NAME[name]
        checked = check_arguments(tool, arguments)
        return await tool.handler(Call(arguments=checked, services=self.services, progress=no_progress))


def open_sandboxes(root: Path) -> SandboxService:
    return SandboxService(
        registry=Registry(root / "registry"),
        snapshots=SnapshotStore(root / "snapshots"),
        open_provider=lambda _: MemoryProvider(root / "memory"),
        owner=Owner(principal="me", project=""),
        provider="memory",
        template=SandboxSpec(id=SandboxId("sb_template")),
    )


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[Client]:
    for name in ("registry", "snapshots", "memory"):
        (tmp_path / name).mkdir(mode=0o700)
    async with open_sandboxes(tmp_path) as sandboxes:
        yield Client(
            Services(
                sandboxes=sandboxes,
                execution=ExecutionService(sandboxes),
                files=FileService(sandboxes),
                search=SearchService(sandboxes),
                snapshots=SnapshotService(sandboxes),
                ports=PortService(sandboxes),
                changes=ChangeService(sandboxes),
                applying=ApplyService(sandboxes, tmp_path / "applied"),
            )
        )


async def test_a_file_is_written_read_edited_listed_and_searched(client: Client) -> None:
    assert (await client.call("write_file", file_path="src/a.py", content="x = 1\n")).text.startswith(
        "created src/a.py: "
    )
    assert (await client.call("read_file", file_path="/workspace/src/a.py")).text.endswith("\n     1\tx = 1")
    edited = await client.call("edit_file", file_path="src/a.py", old_string="1", new_string="2")
    assert edited.text.startswith("edited line 1 of src/a.py: ")
    assert (await client.call("list_files", pattern="**/*.py")).text == "path=/workspace entries=1\nsrc/a.py"
    assert (await client.call("list_files")).text == "path=/workspace entries=1\nsrc/"
    assert (await client.call("search_files", pattern="x = 2")).text == (
        "matches=1 files=1 path=/workspace\nsrc/a.py\n1:x = 2"
    )


async def test_values_are_taken_as_models_send_them(client: Client) -> None:
    await client.call("write_file", file_path="a", content="1\n2\n3\n2\n")
    assert "     2\t2\n[2 more lines" in (await client.call("read_file", file_path="a", offset="2", limit="1.0")).text
    edit = await client.call("edit_file", file_path="a", old_string="2", new_string="", replace_all="true")
    assert edit.text.startswith("edited 2 places")
    found = await client.call("search_files", pattern="3", context="1", output_mode="content", head_limit=None)
    assert found.text.split("\n")[2:] == ["2-", "3:3", "4-"]
    found = await client.call("search_files", pattern="3", context=1, before=0, path="", head_limit=0)
    assert found.text.split("\n")[2:] == ["3:3", "4-"]


async def test_every_sandbox_has_its_own_files(client: Client) -> None:
    [other] = await client.services.sandboxes.create(name="other")
    await client.call("write_file", file_path="a", content="theirs", sandbox="other")
    await client.call("write_file", file_path="a", content="ours")
    assert "theirs" in (await client.call("read_file", file_path="a", sandbox=other.record.id)).text
    assert "ours" in (await client.call("read_file", file_path="a", sandbox="")).text


async def test_b117_a_picture_is_an_image_beside_one_line_of_text(client: Client) -> None:
    live = await client.services.sandboxes.open()
    data = b"\x89PNG\r\n\x1a\n" + bytes(50)
    await live.sandbox.write(WriteRequest(path="/workspace/p"), data)
    answer = await client.call("read_file", file_path="p")
    assert [(image.data, image.mime_type) for image in answer.images] == [(data, "image/png")]
    assert answer.text == "path=p type=image/png bytes=58"


async def test_reading_and_searching_answer_text_only(client: Client) -> None:
    await client.call("write_file", file_path="a", content="x\n")
    for name, arguments in (("read_file", {"file_path": "a"}), ("search_files", {"pattern": "x"}), ("list_files", {})):
        answer = await client.call(name, **arguments)
        assert answer.structured is None
        assert not answer.is_error


async def test_b082_a_new_sandbox_in_place_of_a_lost_one_is_told_first(client: Client, tmp_path: Path) -> None:
    await client.call("write_file", file_path="a", content="x\n")
    gone = (await client.services.sandboxes.open()).record.id
    async with open_sandboxes(tmp_path) as another_server:
        await another_server.destroy(gone)
    first, second = await client.call("list_files"), await client.call("list_files")
    assert first.text.startswith(f"sandbox {gone} is gone with everything in it; this is another one")
    assert first.text.endswith("\npath=/workspace entries=0\n[nothing matches]")
    assert second.text == "path=/workspace entries=0\n[nothing matches]"


async def test_b082_it_is_told_also_where_the_call_fails(client: Client, tmp_path: Path) -> None:
    for name, arguments in (("read_file", {"file_path": "a"}), ("search_files", {"pattern": "x", "path": "a"})):
        await client.call("write_file", file_path="a", content="x\n")
        gone = (await client.services.sandboxes.open()).record.id
        async with open_sandboxes(tmp_path) as another_server:
            await another_server.destroy(gone)
        with pytest.raises(InvalidRequestError, match=f"^sandbox {gone} is gone[^\n]*\nCannot .*: there is no a in"):
            await client.call(name, **arguments)


async def test_an_unknown_argument_is_refused_by_name(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="did you mean 'file_path'"):
        await client.call("read_file", filepath="a")


def test_b115_the_tools_are_short_and_plain() -> None:
    sizes = {tool.name: len(json.dumps(input_schema(tool), separators=(",", ":"))) for tool in TOOLS}
    assert max(size for name, size in sizes.items() if name != "search_files") <= 600
    assert sizes["search_files"] <= 1100
    assert all(len(tool.description) <= 120 for tool in TOOLS)


def test_b114_every_property_has_one_plain_type() -> None:
    for tool in TOOLS:
        for fragment in tool.properties.values():
            assert fragment["type"] in ("string", "integer", "boolean")
            assert not {"anyOf", "oneOf", "$ref"} & fragment.keys()


def test_only_reading_and_writing_are_in_the_smallest_profile() -> None:
    assert {tool.name for tool in TOOLS if tool.profile == "minimal"} == {"read_file", "write_file"}
    assert {tool.name for tool in TOOLS if tool.read_only} == {"read_file", "list_files", "search_files"}
    assert {tool.name for tool in TOOLS if tool.destructive} == {"write_file", "edit_file"}
