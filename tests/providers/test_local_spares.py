"""Sandboxes that `local` starts ahead, once a server makes more than one."""

import sys
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from mcp_sandbox.core.errors import StateError
from mcp_sandbox.core.exec import Termination
from mcp_sandbox.core.sandbox import Limits, SandboxSpec, Workspace, WorkspaceMode
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.engines.cgroup_places import Kernel, find_places
from mcp_sandbox.engines.identity import choose_identity
from mcp_sandbox.engines.init_process import init_lives, kill_init, wait_dead
from mcp_sandbox.engines.layer_store import LayerStore
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.testing.driving import put, read_file, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    """One that has made two sandboxes."""
    async with LocalProvider(tmp_path / "state") as provider:
        for _ in range(2):
            await (await provider.create(_spec())).aclose()
        yield provider


def _spec(**fields: object) -> SandboxSpec:
    return SandboxSpec(id=new_sandbox_id(), **fields)  # type: ignore[arg-type]


def _spares(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "state/sandboxes").glob("spare-*") if init_lives(path)]


async def _started_ahead(tmp_path: Path, *, besides: Collection[Path] = ()) -> list[Path]:
    with anyio.fail_after(10):
        while len(spares := [path for path in _spares(tmp_path) if path not in besides]) < 2:
            await anyio.sleep(0.01)
    return spares


async def test_a_spare_becomes_a_sandbox_like_any_other(provider: LocalProvider, tmp_path: Path) -> None:
    spares = await _started_ahead(tmp_path)
    listed = len(await provider.list())
    inits = {(path / "init.json").read_text() for path in spares}
    spec = _spec(env={"MINE": "yes"}, labels={"mcp-sandbox.owner": "me"})
    async with await provider.create(spec) as sandbox:
        assert (tmp_path / "state/sandboxes" / spec.id / "init.json").read_text() in inits
        assert (await run(sandbox, "sh", "-c", "echo $MINE $(ls -A /workspace | wc -l)")).stdout == b"yes 0\n"
        found = {info.id: info for info in await provider.list()}
        assert len(found) == listed + 1
        assert found[spec.id].labels == spec.labels
        await put(sandbox, "/workspace/file", b"kept")
        content = await sandbox.snapshot(SnapshotRequest())
        await put(sandbox, "/workspace/file", b"changed")
        await sandbox.restore(content)
        assert await read_file(sandbox, "/workspace/file") == b"kept"
        async with await provider.attach(spec.id) as again:
            assert await read_file(again, "/workspace/file") == b"kept"
        await provider.destroy(spec.id)
        assert spec.id not in {info.id for info in await provider.list()}


async def test_a_spare_is_for_a_sandbox_that_starts_alike(provider: LocalProvider, tmp_path: Path) -> None:
    await _started_ahead(tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    (project / "file").write_text("ours")
    ours = _spec(workspace=Workspace(mode=WorkspaceMode.OVERLAY, source=str(project)))
    async with await provider.create(ours) as sandbox:
        assert await read_file(sandbox, "/workspace/file") == b"ours"
    async with await provider.create(_spec(limits=Limits(open_files=64))) as sandbox:
        assert (await run(sandbox, "sh", "-c", "ulimit -n")).stdout == b"64\n"


async def test_an_id_that_is_taken_is_refused(provider: LocalProvider, tmp_path: Path) -> None:
    await _started_ahead(tmp_path)
    spec = _spec()
    async with await provider.create(spec) as sandbox:
        await put(sandbox, "/workspace/file", b"kept")
        with pytest.raises(StateError, match="there is one with the id"):
            await provider.create(spec)
        assert await read_file(sandbox, "/workspace/file") == b"kept"


async def test_a_spare_that_ended_is_not_handed_out(provider: LocalProvider, tmp_path: Path) -> None:
    for path in await _started_ahead(tmp_path):
        kill_init(path)
        await wait_dead(path)
    async with await provider.create(_spec()) as sandbox:
        assert (await run(sandbox, "echo", "alive")).stdout == b"alive\n"


async def test_nothing_is_left_of_spares(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "state") as provider:
        for _ in range(2):
            async with await provider.create(_spec()) as sandbox:
                await provider.destroy(sandbox.id)
        await _started_ahead(tmp_path)
        later = time.time() + 1000
        store = LayerStore(tmp_path / "state", choose_identity())
        await anyio.to_thread.run_sync(lambda: store.collect("", now=later))
        assert len(_spares(tmp_path)) == 2, "those of a live server stay"
    assert _spares(tmp_path) == []
    assert list((tmp_path / "state/sandboxes").iterdir()) == []
    async with LocalProvider(tmp_path / "state"):
        (tmp_path / "state/sandboxes/spare-dead").mkdir()  # its server was killed
        await anyio.to_thread.run_sync(lambda: store.collect("", now=later))
        assert list((tmp_path / "state/sandboxes").iterdir()) == []
        assert list((tmp_path / "state/layers").iterdir()) == []


async def test_a_server_with_one_sandbox_starts_none_ahead(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "state") as provider:
        async with await provider.create(_spec()):
            await anyio.sleep(0.1)
        assert list((tmp_path / "state/sandboxes").glob("spare-*")) == []


async def test_the_limits_of_a_spare_are_watched_like_those_of_others(provider: LocalProvider, tmp_path: Path) -> None:
    few = Limits(pids=24)
    crowd = "for number in $(seq 60); do sleep 2 & done; wait"
    causes: list[Termination] = []
    others = await _started_ahead(tmp_path)
    for number in range(3):
        if number == 2:
            await _started_ahead(tmp_path, besides=others)
        async with await provider.create(_spec(limits=few)) as sandbox:
            causes.append((await run(sandbox, "sh", "-c", crowd)).result.termination)
    assert causes == [Termination.PIDS] * 3


async def test_many_sandboxes_from_one_snapshot_are_started_ahead_too(provider: LocalProvider, tmp_path: Path) -> None:
    others = await _started_ahead(tmp_path)
    async with await provider.create(_spec()) as sandbox:
        await put(sandbox, "/workspace/file", b"kept")
        content = await sandbox.snapshot(SnapshotRequest())
    for _ in range(2):
        await (await provider.restore(content, _spec())).aclose()
    ahead = await _started_ahead(tmp_path, besides=others)
    inits = {(path / "init.json").read_text() for path in ahead}
    spec = _spec()
    async with await provider.restore(content, spec) as sandbox:
        assert (tmp_path / "state/sandboxes" / spec.id / "init.json").read_text() in inits
        assert await read_file(sandbox, "/workspace/file") == b"kept"
    await _started_ahead(tmp_path)
    await provider.discard(content)  # they would keep what is to be deleted
    with anyio.fail_after(10):
        while _spares(tmp_path):
            await anyio.sleep(0.01)


async def test_a_spare_that_nobody_wants_any_more_leaves_no_control_group(tmp_path: Path) -> None:
    places = find_places(Kernel.here())
    if "memory" not in places.parents:
        pytest.skip(places.missing["memory"].why)
    limits = Limits(memory_bytes=1 << 28)
    async with LocalProvider(tmp_path / "state") as provider:
        for _ in range(2):
            await (await provider.create(_spec(limits=limits))).aclose()
        spares = await _started_ahead(tmp_path)
        groups = [places.parents["memory"] / "mcp-sandbox" / path.name for path in spares]
        assert all(group.is_dir() for group in groups)
        for _ in range(2):
            await (await provider.create(_spec())).aclose()
        with anyio.fail_after(10):
            while any(path.exists() for path in spares):
                await anyio.sleep(0.01)
        assert not any(group.exists() for group in groups)
