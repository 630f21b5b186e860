"""Putting back some paths of a snapshot: what comes back, what is left alone, and what a failure leaves."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteReceiveStream
from sandbox_world import Server, World, content, put, working_server

from mcp_sandbox.core.delegation import DelegatingProvider, DelegatingSandbox
from mcp_sandbox.core.errors import (
    InvalidRequestError,
    ProviderError,
)
from mcp_sandbox.core.exec import ExecRequest, Exited
from mcp_sandbox.core.files import (
    FileInfo,
    ListRequest,
    MkdirRequest,
    RemoveRequest,
    RenameRequest,
    StatRequest,
    UploadRequest,
)
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, Snapshot

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


async def _symlink(sandbox: Sandbox, target: str, path: str) -> None:
    async with await sandbox.exec(ExecRequest(argv=("ln", "-s", target, path), timeout_s=10)) as execution:
        assert (await execution.wait()).exit_code == 0


# -- in part


async def test_a_partial_restore_touches_nothing_else(server: Server, box: Sandbox) -> None:
    for name in ("a", "b", "c/d/e"):
        await put(box, f"/workspace/{name}", "then", mode=0o750)
    before = await _stat(box, "/workspace/a")
    snapshot = (await server.snapshots.create()).snapshot
    for name in ("a", "b", "c/d/e"):
        await put(box, f"/workspace/{name}", "now")
    restored = await server.snapshots.restore(snapshot.id, paths=["a", "/workspace/c/d/"])
    assert restored.paths == ("/workspace/a", "/workspace/c/d")
    assert [await content(box, f"/workspace/{name}") for name in ("a", "b", "c/d/e")] == ["then", "now", "then"]
    after = await _stat(box, "/workspace/a")
    assert (after.mode, after.modified_ns) == (before.mode, before.modified_ns)
    assert await _names(box, "/workspace") == ["a", "b", "c"]
    await server.snapshots.restore(restored.before.id, paths=["a"])
    assert await content(box, "/workspace/a") == "now"


async def test_a_directory_is_put_back_whole_with_links_modes_and_times(server: Server, box: Sandbox) -> None:
    await put(box, "/workspace/d/run.sh", "#!/bin/sh\n", mode=0o755)
    await put(box, "/workspace/d/sub/deep", "deep")
    await _symlink(box, "sub/deep", "/workspace/d/link")
    await _symlink(box, "/nowhere", "/workspace/d/dangling")
    names = ("d", "d/run.sh", "d/link", "d/sub/deep")
    before = [await _stat(box, f"/workspace/{name}") for name in names]
    snapshot = (await server.snapshots.create()).snapshot
    await box.remove(RemoveRequest(path="/workspace/d/sub", recursive=True))
    await put(box, "/workspace/d/extra", "x")
    await server.snapshots.restore(snapshot.id, paths=["d"])
    assert await _names(box, "/workspace/d") == ["dangling", "link", "run.sh", "sub"]
    after = [await _stat(box, f"/workspace/{name}") for name in names]
    assert [(one.mode, one.modified_ns, one.link_target) for one in after] == [
        (one.mode, one.modified_ns, one.link_target) for one in before
    ]


async def test_what_was_removed_comes_back_with_its_parents(server: Server, box: Sandbox) -> None:
    await put(box, "/workspace/a/b/c", "then")
    snapshot = (await server.snapshots.create()).snapshot
    await box.remove(RemoveRequest(path="/workspace/a", recursive=True))
    await server.snapshots.restore(snapshot.id, paths=["a/b/c"])
    assert await content(box, "/workspace/a/b/c") == "then"


async def test_a_link_is_put_back_as_a_link(server: Server, box: Sandbox) -> None:
    await put(box, "/workspace/a", "a")
    await _symlink(box, "a", "/workspace/link")
    snapshot = (await server.snapshots.create()).snapshot
    await box.remove(RemoveRequest(path="/workspace/link"))
    await put(box, "/workspace/link", "no link any more")
    await server.snapshots.restore(snapshot.id, paths=["link"])
    assert (await _stat(box, "/workspace/link")).link_target == "a"
    assert await content(box, "/workspace/a") == "a"


async def test_a_file_replaces_a_directory_and_the_other_way_round(server: Server, box: Sandbox) -> None:
    await put(box, "/workspace/a", "file")
    await put(box, "/workspace/b/c", "tree")
    snapshot = (await server.snapshots.create()).snapshot
    await box.remove(RemoveRequest(path="/workspace/a"))
    await put(box, "/workspace/a/x", "tree now")
    await box.remove(RemoveRequest(path="/workspace/b", recursive=True))
    await put(box, "/workspace/b", "file now")
    await server.snapshots.restore(snapshot.id, paths=["a", "b"])
    assert await content(box, "/workspace/a") == "file"
    assert await content(box, "/workspace/b/c") == "tree"


async def test_the_workspace_itself_is_put_back_in_place(server: Server, box: Sandbox) -> None:
    await put(box, "/workspace/a/b", "then")
    await put(box, "/root/outside", "then")
    snapshot = (await server.snapshots.create()).snapshot
    await put(box, "/workspace/a/b", "now")
    await put(box, "/workspace/new", "x")
    await put(box, "/root/outside", "now")
    await server.snapshots.restore(snapshot.id, paths=["."])
    assert await content(box, "/workspace/a/b") == "then"
    assert await _names(box, "/workspace") == ["a"]
    assert await content(box, "/root/outside") == "now"


async def test_many_bytes_are_put_back(server: Server, box: Sandbox) -> None:
    await put(box, "/workspace/big/one", "x" * 20_000_000)
    await put(box, "/workspace/two", "y" * 3_000_001)
    snapshot = (await server.snapshots.create()).snapshot
    for name in ("big/one", "two"):
        await put(box, f"/workspace/{name}", "")
    await server.snapshots.restore(snapshot.id, paths=["big", "two"])
    assert len(await content(box, "/workspace/big/one")) == 20_000_000
    assert len(await content(box, "/workspace/two")) == 3_000_001


async def test_paths_that_the_snapshot_does_not_have_are_named_and_nothing_is_touched(
    server: Server, box: Sandbox
) -> None:
    await put(box, "/workspace/a", "then")
    snapshot = (await server.snapshots.create()).snapshot
    await put(box, "/workspace/a", "now")
    with pytest.raises(InvalidRequestError, match="/workspace/gone"):
        await server.snapshots.restore(snapshot.id, paths=["a", "gone", "a/b"])
    assert await content(box, "/workspace/a") == "now"
    assert len(await server.snapshots.list()) == 1


@pytest.mark.parametrize("path", ["/", "//", "/.", "/workspace/..", "..", "/proc", "", "a\0b", "/a/.."])
async def test_paths_that_cannot_be_replaced_are_refused(memory_world: World, path: str) -> None:
    async with memory_world.server() as server:
        snapshot = (await server.snapshots.create()).snapshot
        with pytest.raises(InvalidRequestError):
            await server.snapshots.restore(snapshot.id, paths=[path])


async def test_a_partial_restore_leaves_no_passing_sandbox(server: Server, box: Sandbox, world: World) -> None:
    await put(box, "/workspace/a", "then")
    snapshot = (await server.snapshots.create()).snapshot
    await server.snapshots.restore(snapshot.id, paths=["a"])
    with pytest.raises(InvalidRequestError):
        await server.snapshots.restore(snapshot.id, paths=["gone"])
    provider = await server.sandboxes.provider(world.provider)
    assert [info.id for info in await provider.list()] == [box.id]


# -- only what differs


@pytest.fixture
async def local_box(world: World, box: Sandbox) -> Sandbox:
    """A sandbox of a provider that compares exactly."""
    if world.provider != "local":
        pytest.skip("this provider copies whole directories")
    return box


async def _run(sandbox: Sandbox, command: str) -> str:
    output = b""
    async with await sandbox.exec(ExecRequest(argv=("bash", "-c", command), timeout_s=60)) as execution:
        while not isinstance(event := await execution.receive(), Exited):
            output += event.data
    assert event.result.exit_code == 0, output
    return output.decode()


LOOK = "cd /workspace && find . -printf '%p %y %m %s %T@ %l\n' | LC_ALL=C sort"
UNTOUCHED = "stat -c '%i %Z' /workspace/tree/d*/same* /workspace/tree/big"


async def test_of_a_directory_only_what_differs_is_touched(server: Server, local_box: Sandbox) -> None:
    """Every kind of change comes back, also of times alone, and what is the same is the same file still."""
    box = local_box
    await _run(
        box,
        "mkdir -p tree/d{1,2,3}/deep && for d in tree/d*; do for n in 1 2 3; do echo $d$n > $d/same$n; done; "
        "echo then > $d/file; echo then > $d/touched; done; head -c 20M /dev/zero | tr '\\0' x > tree/big; "
        "ln -s nowhere tree/link; mkfifo tree/fifo; echo x > tree/d1/deep/moved; chmod 750 tree/d3; sleep 0.01",
    )
    then = await _run(box, LOOK)
    snapshot = (await server.snapshots.create()).snapshot
    untouched = await _run(box, UNTOUCHED)
    await _run(
        box,
        "cd tree && echo now, and longer > d1/file && rm d2/file && mkdir d2/file && echo in > d2/file/inner && "
        "touch d3/touched && chmod 700 d3/touched && mv d1/deep d3/moved && rm link && ln -s elsewhere link && "
        "echo extra > d1/extra && mkdir -p new/deeper && echo n > new/deeper/n && chmod 755 d3 && rm fifo",
    )
    assert await _run(box, LOOK) != then
    restored = await server.snapshots.restore(snapshot.id, paths=["tree"])
    assert await _run(box, LOOK) == then
    assert await _run(box, UNTOUCHED) == untouched
    await server.snapshots.restore(restored.before.id, paths=["."])
    assert await content(box, "/workspace/tree/d2/file/inner") == "in\n"
    assert await content(box, "/workspace/tree/new/deeper/n") == "n\n"
    await server.snapshots.restore(snapshot.id, paths=["."])
    assert await _run(box, LOOK) == then
    assert await _run(box, UNTOUCHED) == untouched


async def test_names_of_one_file_stay_names_of_one_file(server: Server, local_box: Sandbox) -> None:
    box = local_box
    await _run(box, "mkdir d && echo then > d/a && ln d/a d/b")
    snapshot = (await server.snapshots.create()).snapshot
    await _run(box, "echo now > d/a")
    await server.snapshots.restore(snapshot.id, paths=["d"])
    assert await _run(box, "cat d/a d/b && stat -c %h d/a") == "then\nthen\n2\n"
    await _run(box, "rm d/b && echo alone > d/b")
    await server.snapshots.restore(snapshot.id, paths=["d"])
    assert await _run(box, "cat d/b && stat -c %h d/a") == "then\n2\n"


async def test_a_directory_behind_a_link_is_put_back(server: Server, local_box: Sandbox) -> None:
    """The comparison knows nothing of links on the way; the sandbox does."""
    box = local_box
    await _run(box, "mkdir -p real/d && echo then > real/d/f && ln -s real alias")
    snapshot = (await server.snapshots.create()).snapshot
    await _run(box, "echo now > real/d/f")
    await server.snapshots.restore(snapshot.id, paths=["alias/d"])
    assert await content(box, "/workspace/real/d/f") == "then\n"


async def test_more_changes_than_are_worth_it_come_back_as_well(server: Server, local_box: Sandbox) -> None:
    box = local_box
    await _run(box, "mkdir d && cd d && for n in $(seq 700); do echo then > $n; done")
    snapshot = (await server.snapshots.create()).snapshot
    await _run(box, "cd d && for n in $(seq 700); do echo now > $n; done")
    await server.snapshots.restore(snapshot.id, paths=["d"])
    assert (await _run(box, "cat d/* | sort | uniq -c")).split() == ["700", "then"]


# -- failures on the way


class _Failing(DelegatingSandbox):
    """Fails or hangs once, at one verb."""

    at = ""
    hangs = False

    async def reach(self, verb: str) -> None:
        if verb == _Failing.at:
            _Failing.at = ""
            if _Failing.hangs:
                await anyio.sleep_forever()
            raise ProviderError("Engine failed", why="it was told to", fix="Try again")

    async def upload(self, request: UploadRequest, tar: ByteReceiveStream) -> None:
        await self.reach("upload")
        await super().upload(request, tar)

    async def rename(self, request: RenameRequest) -> None:
        if request.target.endswith("/a"):
            await self.reach("rename")
        await super().rename(request)

    async def mkdir(self, request: MkdirRequest) -> None:
        await self.reach("mkdir")
        await super().mkdir(request)


class _FailingProvider(DelegatingProvider):
    def wrap(self, sandbox: Sandbox) -> Sandbox:
        return _Failing(sandbox)

    async def restore(self, content: NativeContent, spec: SandboxSpec) -> Sandbox:
        sandbox = await super().restore(content, spec)
        if _Failing.at == "passing":
            await _Failing(sandbox).reach("passing")
        return sandbox


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("at", ["passing", "upload", "rename", "mkdir"])
async def test_a_partial_restore_that_fails_or_is_cancelled_leaves_the_old_and_no_traces(
    memory_world: World, at: str, hangs: bool
) -> None:
    memory_world.wrap = _FailingProvider
    _Failing.at, _Failing.hangs = "", hangs
    async with memory_world.server() as server:
        box = (await server.sandboxes.open()).sandbox
        await put(box, "/workspace/a/b", "then")
        snapshot = (await server.snapshots.create()).snapshot
        await put(box, "/workspace/a/b", "now")
        _Failing.at = at
        with anyio.move_on_after(0.1) as scope:
            with pytest.raises(ProviderError):
                await server.snapshots.restore(snapshot.id, paths=["a"])
        assert scope.cancelled_caught is hangs
        assert await content(box, "/workspace/a/b") == "now"
        assert await _names(box, "/workspace") == ["a"]
        provider = await server.sandboxes.provider("memory")
        assert len(await provider.list()) == 1


async def test_a_passing_sandbox_left_by_a_kill_is_cleared_away_after_its_time(memory_world: World) -> None:
    async with memory_world.server() as server:
        box = (await server.sandboxes.open()).sandbox
        await put(box, "/workspace/a", "then")
        snapshot = (await server.snapshots.create()).snapshot
        provider = await server.sandboxes.provider("memory")
        for expires in ("2026-01-01T00:00:00.000Z", "2999-01-01T00:00:00.000Z"):
            await (await _passing(server, snapshot, expires)).aclose()
        await server.snapshots.restore(snapshot.id, paths=["a"])
        assert len(await provider.list()) == 2


async def test_a_passing_sandbox_that_is_in_use_stays_beyond_its_time(memory_world: World) -> None:
    """That of an export that takes hours, for example."""
    async with memory_world.server() as server:
        await put((await server.sandboxes.open()).sandbox, "/workspace/a", "then")
        snapshot = (await server.snapshots.create()).snapshot
        async with await _passing(server, snapshot, "2026-01-01T00:00:00.000Z") as passing:
            await server.snapshots.restore(snapshot.id, paths=["a"])
            assert await content(passing, "/workspace/a") == "then"


async def _passing(server: Server, snapshot: Snapshot, expires: str) -> Sandbox:
    assert snapshot.native is not None
    spec = server.sandboxes.new_spec((await server.sandboxes.open()).record)
    labels = {**spec.labels, "mcp-sandbox.expires": expires}
    provider = await server.sandboxes.provider("memory")
    return await provider.restore(snapshot.native, SandboxSpec(id=spec.id, labels=labels))
