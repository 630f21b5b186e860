"""What changed between snapshots, a sandbox and its start, named as users name them."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from sandbox_world import Server, World, put, working_server

from mcp_sandbox.core.capability import Capabilities, Isolation
from mcp_sandbox.core.delegation import DelegatingProvider
from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, UnsupportedError
from mcp_sandbox.service.differences import compare

__all__: list[str] = []


@pytest.fixture(params=["memory", "local"])
async def server(
    request: pytest.FixtureRequest, tmp_path: Path, warm_state: Callable[[Path], Path]
) -> AsyncGenerator[Server]:
    warm_state(tmp_path / "state")
    async with working_server(World.make(tmp_path, request.param)) as opened:
        yield opened


async def _paths(server: Server, *states: str, handle: str = "", paths: tuple[str, ...] = ("",)) -> list[str]:
    asked = [path or "/workspace" for path in paths]
    return [change.path for change in (await compare(server.sandboxes, *states, handle=handle, paths=asked)).changes]


async def test_b070_start_live_and_snapshots_are_compared_by_name(server: Server) -> None:
    """B-070: what the work changed can be seen, without fetching it by hand."""
    box = (await server.sandboxes.open()).sandbox
    await put(box, "/workspace/a", "one")
    first = (await server.snapshots.create()).snapshot
    await put(box, "/workspace/b/c", "two")
    assert await _paths(server) == ["/workspace/a", "/workspace/b", "/workspace/b/c"]
    assert await _paths(server, first.id[:12]) == ["/workspace/b", "/workspace/b/c"]
    second = (await server.snapshots.create()).snapshot
    assert await _paths(server, first.id, second.id, paths=("b/c",)) == ["/workspace/b/c"]
    assert await _paths(server, second.id, "live") == []
    assert await _paths(server, "start", first.id) == ["/workspace/a"]


async def test_a_sandbox_from_a_snapshot_starts_there(server: Server) -> None:
    await put((await server.sandboxes.open()).sandbox, "/workspace/a", "one")
    first = (await server.snapshots.create()).snapshot
    (box,) = await server.sandboxes.create(name="box", from_snapshot=first.id)
    await put(box.sandbox, "/workspace/b", "two")
    assert await _paths(server, handle="box") == ["/workspace/b"]


async def test_a_restore_in_place_does_not_change_the_start(server: Server) -> None:
    await put((await server.sandboxes.open()).sandbox, "/workspace/a", "one")
    first = (await server.snapshots.create()).snapshot
    await put((await server.sandboxes.open()).sandbox, "/workspace/b", "two")
    await server.snapshots.restore(first.id)
    assert await _paths(server) == ["/workspace/a"]


async def test_what_cannot_be_compared_says_why(tmp_path: Path) -> None:
    world = World.make(tmp_path)
    async with world.server() as server:
        with pytest.raises(NotFoundError, match="no sandbox yet"):
            await compare(server.sandboxes)
        await server.sandboxes.open()
        with pytest.raises(NotFoundError):
            await compare(server.sandboxes, "feedbeef")
        with pytest.raises(InvalidRequestError):
            await compare(server.sandboxes, paths=["/x\0y"])


async def test_a_provider_that_does_not_compare_refuses(tmp_path: Path) -> None:
    class Plain(DelegatingProvider):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(isolation=Isolation.NONE)

    world = World.make(tmp_path)
    world.wrap = Plain
    async with world.server() as server:
        await server.sandboxes.open()
        with pytest.raises(UnsupportedError, match="No diff"):
            await compare(server.sandboxes)
