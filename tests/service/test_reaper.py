"""What goes by itself, when, and what is left of it; and what stays because somebody uses or makes it."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from sandbox_world import World, content, put, run

from mcp_sandbox.core.delegation import DelegatingProvider
from mcp_sandbox.core.errors import CapacityError, NotFoundError, ProviderError, ProviderUnavailableError, StateError
from mcp_sandbox.core.leftovers import EXPIRES, Leftover, Remembered
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec, SandboxState
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.service.lifetimes import Lifetimes
from mcp_sandbox.service.reaper import DAY_S, KEPT_S, Reaper
from mcp_sandbox.service.usage import Usage
from mcp_sandbox.store.atomic import UNFINISHED, locked
from mcp_sandbox.store.identity import new_sandbox_id

__all__: list[str] = []

MONTH = 30 * DAY_S


@pytest.fixture
async def world(tmp_path: Path, warm_state: Callable[[Path], Path]) -> World:
    """The embedded engine, where it works."""
    warm_state(tmp_path / "state")
    world = World.make(tmp_path, "local")
    async with world.server() as server:
        try:
            await server.sandboxes.open()
        except ProviderUnavailableError as error:
            pytest.skip(str(error))
    return world


async def _collect(
    world: World,
    *,
    later_s: float = 0.0,
    max_age_s: float | None = MONTH,
    kept_s: float = KEPT_S,
    dry_run: bool = False,
) -> list[Leftover]:
    """Look as a server that is started so many seconds later."""
    async with world.server() as server:
        reaper: Reaper = server.sandboxes.housekeeping.reaper(
            max_age_s=max_age_s, clock=lambda: time.time() + later_s
        )  # fmt: skip
        found = await reaper.collect("local", kept_s=kept_s, dry_run=dry_run)
        return [leftover for leftover in found if leftover.kind != "layer"]


def _kinds(found: Iterable[Leftover]) -> set[str]:
    return {leftover.kind for leftover in found}


# ------------------------------------------------------------------------------------------ age


async def test_a_sandbox_that_nobody_used_for_a_month_is_kept_as_a_snapshot(world: World) -> None:
    async with world.server() as server:
        (live,) = await server.sandboxes.create(name="old")
        await put(live.sandbox, "/workspace/file", "work of a week")
    assert "sandbox" not in _kinds(await _collect(world, later_s=MONTH - DAY_S))
    listed = await _collect(world, later_s=MONTH + DAY_S, dry_run=True)
    assert [(one.kind, one.name) for one in listed] == [("sandbox", "old")]
    assert [(one.kind, one.name) for one in await _collect(world, later_s=MONTH + DAY_S)] == [("sandbox", "old")]
    assert [record.name for record in await world.records()] == [""]  # the project's own stays
    async with world.server() as server:
        with pytest.raises(NotFoundError):
            await server.sandboxes.open("old")
        (branch,) = await server.snapshots.list()
        assert "sandbox old, which was unused since" in branch.snapshot.note
        (again,) = await server.sandboxes.create(from_snapshot=branch.snapshot.id)
        assert await content(again.sandbox, "/workspace/file") == "work of a week"


async def test_an_old_entry_whose_sandbox_the_engine_has_lost_goes(world: World) -> None:
    async with world.server() as server:
        (live,) = await server.sandboxes.create(name="lost")
        await (await server.sandboxes.provider("local")).destroy(live.record.id)
    assert "sandbox" in _kinds(await _collect(world, later_s=MONTH + DAY_S))
    assert [record.name for record in await world.records()] == [""]


async def test_an_entry_whose_time_makes_no_sense_stays_and_keeps_no_other(world: World) -> None:
    async with world.server() as server:
        for name in ("senseless", "old"):
            await server.sandboxes.create(name=name)
    for record in world.state.registry.glob("*/record.json"):
        fields = json.loads(record.read_bytes())
        if fields["name"] == "senseless":
            record.write_text(json.dumps({**fields, "last_used_at": "yesterday"}))
    assert [one.name for one in await _collect(world, later_s=MONTH + DAY_S) if one.kind == "sandbox"] == ["old"]
    assert sorted(record.name for record in await world.records()) == ["", "senseless"]


async def test_without_an_age_limit_everything_stays(world: World) -> None:
    async with world.server() as server:
        await server.sandboxes.create(name="old")
    assert await _collect(world, later_s=1000 * DAY_S, max_age_s=None) == []


async def test_a_sandbox_that_another_server_uses_stays_whatever_its_age(world: World) -> None:
    async with world.server() as server:
        (live,) = await server.sandboxes.create(name="busy")
        assert await _collect(world, later_s=MONTH * 2) == []
        assert await run(live.sandbox, "echo", "alive") == "alive\n"


async def test_an_old_sandbox_that_is_being_changed_stays(world: World) -> None:
    async with world.server() as server:
        (live,) = await server.sandboxes.create(name="held")
    with locked(world.registry.lock(live.record.id)):
        assert await _collect(world, later_s=MONTH * 2) == []
    assert len(await world.records()) == 2


# ------------------------------------------------------------------------------------------ leftovers


async def test_an_entry_that_was_never_created_goes_but_not_while_its_creator_lives(world: World) -> None:
    async with world.server() as server:
        (live,) = await server.sandboxes.create(name="model")
    entry = replace(live.record, id=new_sandbox_id(), name="half")
    await world.registry.add(entry)
    assert await _collect(world) == []
    with locked(world.registry.lock(entry.id)):
        assert await _collect(world, later_s=120) == []
    found = await _collect(world, later_s=120)
    assert [(one.kind, one.name) for one in found] == [("record", entry.id)]
    assert "half" not in [record.name for record in await world.records()]


async def test_files_that_were_never_finished_go_wherever_they_are(world: World) -> None:
    """CRASH-01: a server that is killed while it counts a job leaves one."""
    (record,) = await world.records()
    jobs = world.state.registry / record.id / "jobs"
    jobs.mkdir(exist_ok=True)
    for path in (jobs, jobs.parent, world.state.snapshots):
        (path / f"{UNFINISHED}left").write_bytes(b"half")
    (world.state.registry / f"{UNFINISHED}left").mkdir()
    held = jobs / f"{UNFINISHED}written-just-now"
    with locked(held):
        await _collect(world)
        assert list(world.state.root.rglob(f"{UNFINISHED}*")) == [held]
    await _collect(world)
    assert list(world.state.root.rglob(f"{UNFINISHED}*")) == []


async def test_a_passing_sandbox_goes_with_its_maker_and_a_nameless_one_after_a_week(world: World) -> None:
    passing = SandboxSpec(id=new_sandbox_id(), labels={EXPIRES: "2030-01-01T00:00:00Z"})
    plain = SandboxSpec(id=new_sandbox_id())
    async with world.engine() as engine, await engine.create(passing) as one, await engine.create(plain) as other:
        assert await run(one, "echo", "1") + await run(other, "echo", "2") == "1\n2\n"
        assert await _collect(world, later_s=KEPT_S * 2) == []  # their maker lives
    await _stopped(world)
    assert await _collect(world) == []  # too young to tell
    found = await _collect(world, later_s=3600)
    assert [one.name for one in found if one.kind == "sandbox"] == [passing.id]
    found = await _collect(world, later_s=3600, kept_s=0, dry_run=True)  # as `mcp-sandbox gc` does
    assert [one.name for one in found if one.kind == "sandbox"] == [plain.id]
    await _collect(world, later_s=KEPT_S + DAY_S)
    async with world.engine() as engine:
        assert {info.id for info in await engine.list()} == {record.id for record in await world.records()}


async def test_content_that_no_snapshot_names_goes_and_named_content_stays(world: World) -> None:
    async with world.server() as server:
        live = await server.sandboxes.open()
        await put(live.sandbox, "/workspace/file", "kept")
        taken = await server.snapshots.create()
        await put(live.sandbox, "/workspace/file", "lost")
        await live.sandbox.snapshot(SnapshotRequest())  # and killed before it was entered
    assert "snapshot" not in _kinds(await _collect(world, later_s=300, kept_s=0))
    assert "snapshot" in _kinds(await _collect(world, later_s=3600, kept_s=0))
    assert _kinds(await _collect(world, later_s=7200, kept_s=0)) == set()
    async with world.server() as server:
        (again,) = await server.sandboxes.create(from_snapshot=taken.snapshot.id)
        assert await content(again.sandbox, "/workspace/file") == "kept"


async def test_a_snapshot_whose_deletion_was_interrupted_is_offered_to_nobody_and_goes(world: World) -> None:
    """CRASH-01: a server that was killed between content and record left a snapshot that could not be restored."""
    async with world.server() as server:
        taken = await server.snapshots.create()
    world.store.retire(taken.snapshot.id)
    async with world.server() as server:
        assert await server.snapshots.list() == []
        with pytest.raises(NotFoundError):
            await server.sandboxes.create(from_snapshot=taken.snapshot.id)
    found = await _collect(world)
    assert [(one.kind, one.name) for one in found] == [("snapshot", taken.snapshot.id)]
    assert [path.name for path in world.state.snapshots.iterdir()] == []
    assert not list((world.state.provider("local") / "snapshots").iterdir())


async def test_a_snapshot_that_cannot_be_deleted_stays_whole(world: World) -> None:
    class Failing(DelegatingProvider):
        async def discard(self, content: NativeContent) -> None:
            raise ProviderError("Not discarded", why="its engine fails", fix="Try again")

    world.wrap = Failing
    async with world.server() as server:
        await put((await server.sandboxes.open()).sandbox, "/workspace/file", "kept")
        taken = await server.snapshots.create()
        with pytest.raises(ProviderError, match="its engine fails"):
            await server.snapshots.delete(taken.snapshot.id)
        (again,) = await server.sandboxes.create(from_snapshot=taken.snapshot.id)
        assert await content(again.sandbox, "/workspace/file") == "kept"


async def test_who_starts_from_a_snapshot_without_content_is_told_so(world: World) -> None:
    async with world.server() as server:
        taken = await server.snapshots.create()
        provider = await server.sandboxes.provider("local")
        await provider.discard(taken.snapshot.native)
        with pytest.raises(StateError, match="the snapshot that it was to start from is gone"):
            await server.sandboxes.create(from_snapshot=taken.snapshot.id)
        assert [record.name for record in await world.records()] == [""]


async def test_content_that_was_named_while_leftovers_are_removed_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    async with world.server() as server:
        await server.sandboxes.open()

        async def collect(provider: LocalProvider, remembered: Remembered, **options: object) -> Sequence[Leftover]:
            taken = await server.snapshots.create()
            asked.extend(map(remembered.snapshot, (taken.snapshot.native.ref, "nobody's")))
            return ()

        monkeypatch.setattr(LocalProvider, "collect", collect)
        await _collect(world)
    assert asked == [True, False]


async def test_nothing_of_snapshots_goes_while_one_record_is_damaged(world: World) -> None:
    async with world.server() as server:
        live = await server.sandboxes.open()
        taken = await server.snapshots.create()
        await live.sandbox.snapshot(SnapshotRequest())
    record = world.state.snapshots / f"{taken.snapshot.id}.json"
    whole = record.read_bytes()
    record.write_bytes(whole[:-20])
    assert "snapshot" not in _kinds(await _collect(world, later_s=KEPT_S * 2, kept_s=0))
    record.write_bytes(whole)
    assert "snapshot" in _kinds(await _collect(world, later_s=KEPT_S * 2, kept_s=0))


async def test_nothing_of_layers_goes_while_the_state_of_a_sandbox_is_damaged(world: World) -> None:
    async with world.server() as server:
        (live,) = await server.sandboxes.create(name="damaged")
        await put(live.sandbox, "/workspace/file", "precious")
    root = world.state.provider("local")
    state = root / "sandboxes" / live.record.id / "state.json"
    whole = state.read_bytes()
    state.write_bytes(b"{")
    layers = sorted(path.name for path in (root / "layers").iterdir())
    assert await _collect(world, later_s=KEPT_S, max_age_s=None) == []
    assert sorted(path.name for path in (root / "layers").iterdir()) == layers
    state.write_bytes(whole)
    async with world.server() as server:
        assert await content((await server.sandboxes.open("damaged")).sandbox, "/workspace/file") == "precious"


async def _stopped(world: World) -> None:
    """Wait until nothing runs: the last connection ends a sandbox, a moment later."""
    async with world.engine() as engine:
        with anyio.fail_after(10):
            while any(info.state is SandboxState.RUNNING for info in await engine.list()):
                await anyio.sleep(0.02)


# ------------------------------------------------------------------------------------------ idle, and how many


async def test_processes_of_an_idle_sandbox_end_and_its_files_stay(world: World) -> None:
    async with world.server() as server:
        live = await server.sandboxes.open()
        await put(live.sandbox, "/workspace/file", "kept")
        housekeeping = server.sandboxes.housekeeping
        with housekeeping.usage.of(live.record.id):
            await housekeeping.end_idle(0)  # a call is under way
            assert (await server.sandboxes.list())[0].state is SandboxState.RUNNING
        await housekeeping.end_idle(3600)
        assert (await server.sandboxes.list())[0].state is SandboxState.RUNNING
        await housekeeping.end_idle(0)
        with anyio.fail_after(10):
            while (await server.sandboxes.list())[0].state is SandboxState.RUNNING:
                await anyio.sleep(0.02)
        assert await content((await server.sandboxes.open()).sandbox, "/workspace/file") == "kept"


def test_a_sandbox_is_idle_once_and_only_after_its_last_call() -> None:
    now = [100.0]
    usage, box = Usage(lambda: now[0]), SandboxId("sb_x")
    with usage.of(box), usage.of(box):
        now[0] = 200.0
        assert usage.take_idle(10) == []
    assert usage.take_idle(10) == []
    now[0] = 210.0
    assert usage.take_idle(10) == [box]
    assert usage.take_idle(10) == []


async def test_a_project_has_so_many_sandboxes_and_no_more(tmp_path: Path) -> None:
    world = World.make(tmp_path)
    async with world.server(max_sandboxes=4) as server, world.server(project="/other", max_sandboxes=4) as other:
        await server.sandboxes.open()
        await server.sandboxes.create(name="first")
        await server.sandboxes.create(name="next", count=2)
        with pytest.raises(CapacityError, match=r"4 already, and 4 is the most.*longest are first \(2"):
            await server.sandboxes.create()
        with pytest.raises(CapacityError, match="2 sandboxes not created"):
            await server.sandboxes.create(count=2)
        await other.sandboxes.create()
        await server.sandboxes.destroy("first")
        await server.sandboxes.create()


def test_by_default_a_month_and_many() -> None:
    assert Lifetimes() == Lifetimes(idle_s=None, max_age_s=30 * DAY_S, max_sandboxes=256)
