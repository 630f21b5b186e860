"""Snapshots of sandboxes: whole and partial restores that can be undone, lineage, deletion."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import anyio
import pytest
from sandbox_world import Server, World, content, put, working_server

from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.delegation import DelegatingProvider, DelegatingSandbox
from mcp_sandbox.core.errors import (
    InvalidRequestError,
    NotFoundError,
    ProviderError,
    SnapshotCorruptError,
    UnsupportedError,
)
from mcp_sandbox.core.files import (
    FileInfo,
    ListRequest,
    StatRequest,
)
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, Snapshot
from mcp_sandbox.providers.memory.engine import engine_of
from mcp_sandbox.service.snapshots import KEPT_BEFORE_RESTORES
from mcp_sandbox.store.identity import new_sandbox_id

__all__: list[str] = []


@pytest.fixture(params=["memory", "local"])
def world(request: pytest.FixtureRequest, tmp_path: Path, warm_state: Callable[[Path], Path]) -> World:
    warm_state(tmp_path / "state")
    return World.make(tmp_path, request.param)


@pytest.fixture
async def server(world: World) -> AsyncGenerator[Server]:
    async with working_server(world) as opened:
        yield opened


@pytest.fixture
async def box(server: Server) -> Sandbox:
    return (await server.sandboxes.open()).sandbox


@pytest.fixture
def memory_world(tmp_path: Path) -> World:
    return World.make(tmp_path)


async def _stat(sandbox: Sandbox, path: str) -> FileInfo:
    return await sandbox.stat(StatRequest(path=path, follow=False))


async def _names(sandbox: Sandbox, path: str) -> list[str]:
    listing = await sandbox.list(ListRequest(path=path))
    return sorted(entry.path.rpartition("/")[2] for entry in listing.entries)


# -- whole


async def test_b090_a_restore_brings_everything_back_into_the_same_sandbox(server: Server, box: Sandbox) -> None:
    await put(box, "/workspace/a/b", "then", mode=0o640)
    before = await _stat(box, "/workspace/a/b")
    snapshot = (await server.snapshots.create(note="good")).snapshot
    await put(box, "/workspace/a/b", "now", mode=0o777)
    await put(box, "/workspace/new", "x")
    restored = await server.snapshots.restore(snapshot.id[:12])
    assert restored.sandbox.record.id == box.id
    live = (await server.sandboxes.open()).sandbox
    assert await content(live, "/workspace/a/b") == "then"
    after = await _stat(live, "/workspace/a/b")
    assert (after.mode, after.modified_ns) == (before.mode, before.modified_ns)
    assert await _names(live, "/workspace") == ["a"]


async def test_b095_a_restore_can_be_undone_and_names_the_snapshot_that_undoes_it(server: Server, box: Sandbox) -> None:
    await put(box, "/workspace/a", "then")
    snapshot = (await server.snapshots.create()).snapshot
    await put(box, "/workspace/a", "now")
    restored = await server.snapshots.restore(snapshot.id)
    assert restored.before.note == f"before restore to {snapshot.id[:8]}"
    undone = await server.snapshots.restore(restored.before.id)
    live = (await server.sandboxes.open()).sandbox
    assert await content(live, "/workspace/a") == "now"
    await server.snapshots.restore(undone.before.id)
    assert await content(live, "/workspace/a") == "then"


async def test_the_parent_is_what_the_sandbox_last_took_or_was_restored_to(server: Server, box: Sandbox) -> None:
    one = (await server.snapshots.create(note="one")).snapshot
    two = (await server.snapshots.create(note="two")).snapshot
    assert (one.parent, two.parent) == (None, one.id)
    restored = await server.snapshots.restore(one.id)
    assert restored.before.parent == two.id
    three = (await server.snapshots.create(note="three")).snapshot
    assert three.parent == one.id
    assert (await server.sandboxes.open()).record.parent == three.id
    tree = [(branch.snapshot.note, branch.depth, branch.is_here) for branch in await server.snapshots.list()]
    assert tree == [
        ("one", 0, False),
        ("two", 1, False),
        (f"before restore to {one.id[:8]}", 1, False),
        ("three", 1, True),
    ]


async def test_snapshots_outlive_their_sandbox(server: Server, box: Sandbox) -> None:
    await put(box, "/workspace/a", "then")
    snapshot = (await server.snapshots.create()).snapshot
    await server.sandboxes.destroy(box.id)
    await server.snapshots.restore(snapshot.id)
    assert await content((await server.sandboxes.open()).sandbox, "/workspace/a") == "then"


# -- failures on the way


class _Failing(DelegatingSandbox):
    """Cannot restore."""

    async def restore(self, content: NativeContent) -> None:
        raise ProviderError("Engine failed", why="it was told to", fix="Try again")


class _FailingProvider(DelegatingProvider):
    def wrap(self, sandbox: Sandbox) -> Sandbox:
        return _Failing(sandbox)


async def test_a_whole_restore_that_fails_leaves_the_old(memory_world: World) -> None:
    memory_world.wrap = _FailingProvider
    async with memory_world.server() as server:
        box = (await server.sandboxes.open()).sandbox
        snapshot = (await server.snapshots.create()).snapshot
        await put(box, "/workspace/a", "now")
        with pytest.raises(ProviderError):
            await server.snapshots.restore(snapshot.id)
        assert await content(box, "/workspace/a") == "now"


async def test_a_provider_without_snapshots_refuses_before_anything_happens(memory_world: World) -> None:
    class Plain(DelegatingProvider):
        def wrap(self, sandbox: Sandbox) -> Sandbox:
            return PlainSandbox(sandbox)

    class PlainSandbox(DelegatingSandbox):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(isolation=super().capabilities.isolation)

    async with memory_world.server() as server:
        snapshot = (await server.snapshots.create()).snapshot
    memory_world.wrap = Plain
    async with memory_world.server() as server:
        with pytest.raises(UnsupportedError, match="No snapshot"):
            await server.snapshots.create()
        with pytest.raises(UnsupportedError):
            await server.snapshots.restore(snapshot.id)
        assert len(await server.snapshots.list()) == 1


async def test_content_without_a_record_is_not_kept(memory_world: World) -> None:
    async with memory_world.server() as server:
        await server.sandboxes.open()
        memory_world.state.snapshots.rename(memory_world.state.root / "away")
        with pytest.raises(FileNotFoundError):
            await server.snapshots.create()
        (memory_world.state.root / "away").rename(memory_world.state.snapshots)
        assert not engine_of(memory_world.state.root / "providers" / "memory").snapshots
        assert (await server.snapshots.create()).snapshot.parent is None


async def test_states_before_restores_do_not_pile_up(server: Server, box: Sandbox) -> None:
    """The newest few are kept, and whatever somebody asked for, however it is called, or a sandbox goes on from."""
    await put(box, "/workspace/a", "good")
    good = (await server.snapshots.create(note="good")).snapshot
    asked = (await server.snapshots.create(note=f"before restore to {good.id[:8]}")).snapshot
    undone: list[str] = []
    for number in range(KEPT_BEFORE_RESTORES + 3):
        await put((await server.sandboxes.open()).sandbox, "/workspace/a", str(number))
        undone.append((await server.snapshots.restore(good.id)).before.id)
        if number == 0:
            await server.sandboxes.create(name="branch", from_snapshot=undone[0])
    await server.sandboxes.behind.finished()
    listed = {branch.snapshot.id for branch in await server.snapshots.list()}
    assert listed == {good.id, asked.id, undone[0], *undone[-KEPT_BEFORE_RESTORES:]}
    await server.snapshots.restore(undone[-KEPT_BEFORE_RESTORES])
    assert await content((await server.sandboxes.open()).sandbox, "/workspace/a") == "3"


# -- list and delete


async def test_a_deleted_snapshot_is_gone_and_its_children_are_not(server: Server, box: Sandbox) -> None:
    await put(box, "/workspace/a", "one")
    one = (await server.snapshots.create()).snapshot
    await put(box, "/workspace/a", "two")
    two = (await server.snapshots.create()).snapshot
    assert (await server.snapshots.delete(one.id[:12])).id == one.id
    with pytest.raises(NotFoundError):
        await server.snapshots.restore(one.id)
    with pytest.raises(NotFoundError):
        await server.snapshots.delete(one.id)
    await put(box, "/workspace/a", "three")
    await server.snapshots.restore(two.id)
    assert await content(box, "/workspace/a") == "two"
    assert next(branch.snapshot.id for branch in await server.snapshots.list()) == two.id


async def test_the_list_is_of_one_sandbox_or_of_the_project(memory_world: World) -> None:
    async with memory_world.server() as server, memory_world.server(project="/q") as other:
        await server.sandboxes.create(name="box")
        mine = (await server.snapshots.create(note="default")).snapshot
        boxed = (await server.snapshots.create("box", note="box")).snapshot
        await other.snapshots.create(note="other project")

        async def ids(service: Server, handle: str | None = None) -> list[str]:
            return [branch.snapshot.id for branch in await service.snapshots.list(handle)]

        assert await ids(server) == [mine.id, boxed.id]
        assert await ids(server, "box") == [boxed.id]
        assert len(await ids(other)) == 1
        with pytest.raises(NotFoundError):
            await other.snapshots.restore(mine.id[:12])


async def test_a_damaged_record_is_refused_and_replaces_nothing(memory_world: World) -> None:
    async with memory_world.server() as server:
        box = (await server.sandboxes.open()).sandbox
        await put(box, "/workspace/a", "now")
        snapshot = (await server.snapshots.create(note="good")).snapshot
        path = memory_world.state.snapshots / f"{snapshot.id}.json"
        path.write_bytes(path.read_bytes().replace(b'"good"', b'"evil"'))
        with pytest.raises(SnapshotCorruptError):
            await server.snapshots.restore(snapshot.id[:12])
        assert await content(box, "/workspace/a") == "now"


async def test_a_note_has_a_bound(memory_world: World) -> None:
    async with memory_world.server() as server:
        await server.snapshots.create(note="x" * 500)
        with pytest.raises(InvalidRequestError, match="501"):
            await server.snapshots.create(note="x" * 501)


async def test_b085_snapshots_and_restores_of_two_servers_do_not_mix(memory_world: World) -> None:
    async with memory_world.server() as one, memory_world.server() as other:
        box = (await one.sandboxes.open()).sandbox
        await put(box, "/workspace/a", "then")
        first = (await one.snapshots.create()).snapshot
        made: list[Snapshot] = []

        async def work(server: Server) -> None:
            made.append((await server.snapshots.create()).snapshot)
            await server.snapshots.restore(first.id)

        async with anyio.create_task_group() as tasks:
            for server in (one, other) * 3:
                tasks.start_soon(work, server)
        parents = {snapshot.id: snapshot.parent for snapshot in made}
        assert len(parents) == 6
        branches = await one.snapshots.list()
        known = {branch.snapshot.id for branch in branches}
        assert all(branch.snapshot.parent in {*known, None} for branch in branches)


async def test_a_provider_opens_for_a_deletion_only_if_needed(memory_world: World) -> None:
    async with memory_world.server() as server:
        snapshot = (await server.snapshots.create()).snapshot
    memory_world.opened.clear()
    async with memory_world.server() as server:
        assert len(await server.snapshots.list()) == 1
        assert memory_world.opened == []
        await server.snapshots.delete(snapshot.id)
    async with memory_world.engine() as provider:
        with pytest.raises(NotFoundError):
            await provider.restore(snapshot.native, SandboxSpec(id=new_sandbox_id()))
