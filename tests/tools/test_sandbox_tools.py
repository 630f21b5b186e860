"""What the sandbox and snapshot tools say: text for models, the same facts for programs."""

import json
import os
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio import to_thread

from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError
from mcp_sandbox.core.files import ReadRequest, WriteRequest
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.providers import registry as providers
from mcp_sandbox.service.applying import ApplyService
from mcp_sandbox.service.changes import ChangeService
from mcp_sandbox.service.execution import ExecutionService
from mcp_sandbox.service.files import FileService
from mcp_sandbox.service.ports import PortService
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.search import SearchService
from mcp_sandbox.service.services import Services
from mcp_sandbox.service.snapshots import SnapshotService
from mcp_sandbox.store.directories import open_state
from mcp_sandbox.store.record import Owner
from mcp_sandbox.store.registry import Registry
from mcp_sandbox.store.snapshots import SnapshotStore
from mcp_sandbox.tools import sandboxes as sandbox_tools
from mcp_sandbox.tools import snapshots as snapshot_tools
from mcp_sandbox.tools.call import Answer, Call
from mcp_sandbox.tools.listing import input_schema
from mcp_sandbox.tools.schema import check_arguments
from mcp_sandbox.tools.tool import PROFILES, Tool

__all__: list[str] = []

_TOOLS = {tool.name: tool for tool in (*sandbox_tools.TOOLS, *snapshot_tools.TOOLS)}


async def _silent(_: str) -> None:
    return


class Client:
    """Calls tools as the server does."""

    def __init__(self, services: Services) -> None:
        self.services = services

    async def __call__(self, tool: str, **arguments: Any) -> Answer:
        checked = check_arguments(_TOOLS[tool], arguments)
        answer = await _TOOLS[tool].handler(Call(arguments=checked, services=self.services, progress=_silent))
        assert not answer.is_error
        return answer

    async def facts(self, tool: str, **arguments: Any) -> Mapping[str, Any]:
        answer = await self(tool, **arguments)
        assert answer.structured is not None
        return cast("dict[str, Any]", json.loads(json.dumps(answer.structured)))

    async def put(self, path: str, text: str) -> None:
        live = await self.services.sandboxes.open()
        await live.sandbox.write(WriteRequest(path=path), text.encode())

    async def get(self, path: str, sandbox: str = "") -> str:
        live = await self.services.sandboxes.open(sandbox)
        async with await live.sandbox.read(ReadRequest(path=path)) as reader:
            return b"".join([chunk async for chunk in reader]).decode()


@asynccontextmanager
async def _client(home: Path, provider: str = "memory") -> AsyncGenerator[Client]:
    state = await to_thread.run_sync(open_state, {"MCP_SANDBOX_HOME": str(home)})
    async with (
        SandboxService(
            registry=Registry(state.registry),
            snapshots=SnapshotStore(state.snapshots),
            open_provider=lambda name: providers.load(name, state.provider(name)),
            owner=Owner(principal="me", project="/p"),
            provider=provider,
            template=SandboxSpec(id=SandboxId("template")),
        ) as sandboxes,
        ExecutionService(sandboxes) as execution,
        PortService(sandboxes) as ports,
    ):
        files, search = FileService(sandboxes), SearchService(sandboxes)
        yield Client(
            Services(
                sandboxes=sandboxes,
                execution=execution,
                files=files,
                search=search,
                snapshots=SnapshotService(sandboxes),
                ports=ports,
                changes=ChangeService(sandboxes),
                applying=ApplyService(sandboxes, home / "applied"),
            )
        )


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[Client]:
    async with _client(tmp_path / "state") as opened:
        yield opened


def test_the_tools_of_each_profile() -> None:
    by_profile = {profile: {name for name, tool in _TOOLS.items() if tool.profile == profile} for profile in PROFILES}
    assert by_profile == {
        "minimal": set(),
        "default": {
            "sandbox_create", "sandbox_list", "sandbox_destroy", "snapshot_create", "snapshot_list", "snapshot_restore",
        },
        "full": {"snapshot_delete", "sandbox_fork"},
    }  # fmt: skip


def test_their_part_of_the_list_is_small() -> None:
    assert sum(len(json.dumps([tool.description, input_schema(tool)])) for tool in _TOOLS.values()) < 3_600


@pytest.mark.parametrize("tool", _TOOLS.values(), ids=_TOOLS)
def test_annotations_say_what_a_tool_does(tool: Tool) -> None:
    assert tool.read_only is tool.name.endswith("_list")
    assert tool.destructive is tool.name.endswith(("_destroy", "_delete", "_restore"))
    assert not tool.open_world
    assert tool.title


async def test_a_snapshot_answers_its_id_first_and_how_to_go_back(client: Client) -> None:
    answer = await client("snapshot_create", note="before")
    assert answer.structured is not None
    snapshot: str = answer.structured["id"]
    assert len(snapshot) == 64
    assert answer.text.startswith(snapshot)
    assert f'snapshot="{snapshot[:12]}"' in answer.text
    assert "not the running processes" in answer.text


@pytest.mark.skipif(
    not (os.environ.get("MCP_SANDBOX_RUNSC") or shutil.which("runsc")),
    reason="no runsc in PATH: tests/containers/install-runsc brings one",
)
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="an ordinary user may have no base image")
async def test_a_snapshot_with_memory_says_that_what_ran_goes_on(tmp_path: Path) -> None:
    async with _client(tmp_path / "state", "gvisor") as client:
        taken = await client("snapshot_create")
        assert "memory and processes" in taken.text
        assert taken.structured is not None
        restored = await client("snapshot_restore", snapshot=taken.structured["id"])
        assert "what ran when the snapshot was taken goes on from there" in restored.text
        for row in (await client.facts("sandbox_list"))["sandboxes"]:
            await client("sandbox_destroy", sandbox=row["id"])


async def test_b095_a_restore_names_its_undo(client: Client) -> None:
    await client.put("/workspace/a", "then")
    snapshot = (await client.facts("snapshot_create"))["id"]
    await client.put("/workspace/a", "now")
    answer = await client("snapshot_restore", snapshot=snapshot[:10])
    assert answer.structured is not None
    assert await client.get("/workspace/a") == "then"
    assert "were ended" in answer.text
    assert f'snapshot="{answer.structured["before"]}"' in answer.text
    await client("snapshot_restore", snapshot=answer.structured["before"])
    assert await client.get("/workspace/a") == "now"


@pytest.mark.parametrize("paths", [["a"], "a", '["a"]', ["/workspace/a"]])
async def test_paths_may_be_given_loosely(client: Client, paths: object) -> None:
    for name in "ab":
        await client.put(f"/workspace/{name}", "then")
    snapshot = (await client.facts("snapshot_create"))["id"]
    for name in "ab":
        await client.put(f"/workspace/{name}", "now")
    answer = await client("snapshot_restore", snapshot=snapshot, paths=paths)
    assert "/workspace/a" in answer.text
    assert "were ended" not in answer.text
    assert [await client.get(f"/workspace/{name}") for name in "ab"] == ["then", "now"]


async def test_the_list_of_snapshots_is_a_tree_with_a_mark(client: Client) -> None:
    one = (await client.facts("snapshot_create", note="one\nline"))["id"][:12]
    two = (await client.facts("snapshot_create", note="two"))["id"][:12]
    await client("snapshot_restore", snapshot=one)
    answer = await client("snapshot_list")
    lines = answer.text.split("\n")
    assert [line.split()[0] for line in lines[:2]] == [one, two]
    assert lines[0].endswith("(here) one line")
    assert lines[1].startswith("  ") is False
    assert f"parent={two}" in lines[2]
    assert answer.structured is not None
    assert [fact["here"] for fact in answer.structured["snapshots"]] == [True, False, False]


async def test_a_long_list_of_snapshots_is_cut_to_the_newest(client: Client) -> None:
    for number in range(103):
        await client("snapshot_create", note=f"n{number}")
    answer = await client("snapshot_list")
    assert answer.structured is not None
    assert 100 <= len(answer.structured["snapshots"]) <= 102  # those of one millisecond stay together
    assert answer.structured["total"] == 103
    assert "n102" in answer.text
    assert "are not shown" in answer.text


async def test_empty_lists_say_how_to_begin(client: Client) -> None:
    assert "snapshot_create" in (await client("snapshot_list")).text
    assert "as soon as" in (await client("sandbox_list")).text


async def test_a_deleted_snapshot_is_named(client: Client) -> None:
    snapshot = (await client.facts("snapshot_create", note="old"))["id"]
    assert "(old)" in (await client("snapshot_delete", snapshot=snapshot[:12])).text
    with pytest.raises(NotFoundError, match="snapshot_create"):
        await client("snapshot_delete", snapshot=snapshot)


async def test_created_sandboxes_say_how_to_use_them(client: Client) -> None:
    answer = await client("sandbox_create", name="box", count="1")
    assert "sandbox='box'" in answer.text
    several = await client.facts("sandbox_create", count=3)
    assert len({fact["id"] for fact in several["sandboxes"]}) == 3


async def test_b091_variants_from_one_snapshot_are_independent(client: Client) -> None:
    await client.put("/workspace/a", "then")
    snapshot = (await client.facts("snapshot_create"))["id"]
    await client.put("/workspace/a", "now")
    made = await client.facts("sandbox_create", name="v", from_snapshot=snapshot[:12], count=2)
    assert [fact["snapshot"] for fact in made["sandboxes"]] == [snapshot[:12]] * 2
    assert [await client.get("/workspace/a", name) for name in ("v-1", "v-2", "")] == ["then", "then", "now"]


@pytest.mark.parametrize("arguments", [{"count": 0}, {"count": 101}, {"nmae": "x"}, {"name": "a b"}])
async def test_wrong_arguments_are_refused(client: Client, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        await client("sandbox_create", **arguments)


async def test_the_list_of_sandboxes_has_the_same_facts_twice(client: Client) -> None:
    await client.put("/workspace/a", "x")
    await client("sandbox_create", name="box")
    answer = await client("sandbox_list")
    assert answer.structured is not None
    assert answer.structured["total"] == 2
    for fact, line in zip(answer.structured["sandboxes"], answer.text.split("\n"), strict=True):
        for value in (fact["id"], fact["name"], fact["provider"], fact["state"], fact["created_at"]):
            assert value in line
    assert "(default)" in answer.text.split("\n")[0]


async def test_a_destroyed_sandbox_is_gone_and_a_near_name_is_not_destroyed_instead(client: Client) -> None:
    await client("sandbox_create", name="box", count=2)
    assert "box-1" in (await client("sandbox_destroy", sandbox="box-1")).text
    with pytest.raises(NotFoundError, match="near it is"):
        await client("sandbox_destroy", sandbox="box-1")
    assert (await client.facts("sandbox_list"))["total"] == 1


async def test_b082_a_notice_is_also_told_by_the_snapshot_tools(tmp_path: Path) -> None:
    async with _client(tmp_path / "state") as one, _client(tmp_path / "state") as other:
        old = (await one.services.sandboxes.open()).record.id
        await other("sandbox_destroy", sandbox=old)
        answer = await one("snapshot_create")
        assert old in answer.text.split("\n")[0]
        assert answer.structured is not None
        assert [old in notice for notice in answer.structured["notices"]] == [True]
        assert "notices" not in await one.facts("snapshot_create")


async def test_of_snapshots_taken_at_once_none_is_lost(client: Client) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(lambda note=str(number): client("snapshot_create", note=note))
    listed = await client.facts("snapshot_list")
    assert {fact["note"] for fact in listed["snapshots"]} == {str(number) for number in range(20)}


async def test_b091_a_fork_answers_one_handle_each(client: Client) -> None:
    await client.put("/workspace/a", "common")
    facts = await client.facts("sandbox_fork", count=2, name="try")
    assert [made["name"] for made in facts["sandboxes"]] == ["try-1", "try-2"]
    assert facts["paused_s"] == 0
    assert await client.get("/workspace/a", "try-2") == "common"
    answer = await client("sandbox_fork", name="one", sandbox="try-1")
    assert "Use it with sandbox='one'." in answer.text
    assert (await client.facts("sandbox_list"))["total"] == 4
