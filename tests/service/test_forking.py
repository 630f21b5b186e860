"""Forks: new sandboxes from a live one, all or none, without a snapshot that anybody sees."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from sandbox_world import Server, World, content, put, working_server

from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.delegation import DelegatingProvider, DelegatingSandbox
from mcp_sandbox.core.errors import InvalidRequestError, StateError, UnsupportedError
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.service.forking import fork
from mcp_sandbox.testing.driving import drain, until_exit

__all__: list[str] = []


@pytest.fixture(params=["memory", "local"])
def world(request: pytest.FixtureRequest, tmp_path: Path, warm_state: Callable[[Path], Path]) -> World:
    warm_state(tmp_path / "state")
    return World.make(tmp_path, request.param)


@pytest.fixture
async def server(world: World) -> AsyncGenerator[Server]:
    async with working_server(world) as opened:
        yield opened


async def _engines(world: World) -> int:
    async with world.engine() as provider:
        return len(await provider.list())


async def test_b091_forks_are_named_independent_and_leave_no_snapshot_behind(world: World, server: Server) -> None:
    """B-091: one call, several handles; the parent is the source's."""
    source = await server.sandboxes.open()
    await put(source.sandbox, "/workspace/a", "common")
    snapshot = (await server.snapshots.create()).snapshot
    await put(source.sandbox, "/workspace/a", "newer")
    forks = await fork(server.sandboxes, count=3, name="variant")
    assert [live.record.name for live in forks.made] == ["variant-1", "variant-2", "variant-3"]
    for live in forks.made:
        assert (live.record.parent, live.record.is_default) == (snapshot.id, False)
        assert await content(live.sandbox, "/workspace/a") == "newer"
        await put(live.sandbox, "/workspace/a", live.record.name)
    found = await server.sandboxes.open("variant-2")
    assert await content(found.sandbox, "/workspace/a") == "variant-2"
    assert await content((await server.sandboxes.open()).sandbox, "/workspace/a") == "newer"
    assert [branch.snapshot.id for branch in await server.snapshots.list()] == [snapshot.id]
    assert await _engines(world) == 4


async def test_a_fork_outlives_its_source_and_the_server_that_made_it(world: World, server: Server) -> None:
    source = await server.sandboxes.open()
    await put(source.sandbox, "/workspace/a", "common")
    async with world.server() as other:
        await fork(other.sandboxes, source.record.id, name="copy")
    await server.sandboxes.destroy(source.record.id)
    if world.provider == "local":
        assert not list((world.state.provider("local") / "snapshots").iterdir())
    assert await content((await server.sandboxes.open("copy")).sandbox, "/workspace/a") == "common"


async def test_commands_of_the_source_go_on_and_the_answer_says_how_long_they_stood_still(
    world: World, server: Server
) -> None:
    source = (await server.sandboxes.open()).sandbox
    if not source.capabilities.runs_programs:
        pytest.skip("runs no programs")
    await put(source, "/workspace/a", "common")
    async with await source.exec(ExecRequest(argv=("sh", "-c", "read line; echo $line $$"), stdin=True)) as running:
        forks = await fork(server.sandboxes)
        assert 0 < forks.paused_s < 5
        (copy,) = forks.made
        assert await content(copy.sandbox, "/workspace/a") == "common"
        async with await copy.sandbox.exec(ExecRequest(argv=("sh", "-c", "ls /proc | grep -c '^[0-9]'"))) as execution:
            assert int((await drain(execution)).stdout) <= 5, "no process of the source is there"
        await running.write_stdin(b"alive\n")
        assert (await until_exit(running)).stdout.startswith(b"alive ")


async def test_a_name_that_is_taken_leaves_nothing(world: World, server: Server) -> None:
    await server.sandboxes.create(name="variant-2")
    with pytest.raises(StateError, match="variant-2"):
        await fork(server.sandboxes, count=3, name="variant")
    assert [summary.record.name for summary in await server.sandboxes.list()] == ["", "variant-2"]
    assert await _engines(world) == 2


@pytest.mark.parametrize(("count", "name"), [(0, ""), (101, ""), (1, "../x"), (1, "sb_x"), (1, "a b")])
async def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path: Path, count: int, name: str) -> None:
    world = World.make(tmp_path)
    async with world.server() as server:
        await server.sandboxes.open()
        with pytest.raises(InvalidRequestError):
            await fork(server.sandboxes, count=count, name=name)
        assert len(await world.records()) == 1


async def test_a_provider_without_forks_refuses(tmp_path: Path) -> None:
    class Plain(DelegatingSandbox):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(isolation=super().capabilities.isolation)

    class PlainProvider(DelegatingProvider):
        def wrap(self, sandbox: Sandbox) -> Sandbox:
            return Plain(sandbox)

    world = World.make(tmp_path)
    world.wrap = PlainProvider
    async with world.server() as server:
        await server.sandboxes.open()
        with pytest.raises(UnsupportedError, match="No fork"):
            await fork(server.sandboxes)
        assert len(await world.records()) == 1
