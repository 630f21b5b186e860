"""The registry of sandboxes: handles, defaults, races between processes, and what a kill leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.errors import CapacityError, InvalidRequestError, NotFoundError, StateError
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.core.snapshot import SnapshotId
from mcp_sandbox.store.identity import ID_PATTERN, new_sandbox_id
from mcp_sandbox.store.record import Owner, SandboxRecord
from mcp_sandbox.store.registry import Registry

__all__: list[str] = []

_OWNER = Owner(principal="uid:1", project="/p")

_RACE = """
import sys, anyio, pathlib
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.store.record import Owner, SandboxRecord, now
from mcp_sandbox.store.registry import Registry
registry = Registry(pathlib.Path(sys.argv[1]))
def make():
    return SandboxRecord(id=new_sandbox_id(), provider="memory", principal="uid:1", project="/p",
                         created_at=now(), last_used_at=now(), is_default=True)
print("ready", flush=True)
sys.stdin.readline()
found = anyio.run(registry.default_for, Owner(principal="uid:1", project="/p"), make)
print(found.record.id, found.is_new, flush=True)
"""

_CHURN = """
import sys, anyio, pathlib
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.store.record import SandboxRecord, now
from mcp_sandbox.store.registry import Registry
registry = Registry(pathlib.Path(sys.argv[1]))
async def churn():
    print("ready", flush=True)
    while True:
        record = SandboxRecord(id=new_sandbox_id(), provider="memory", principal="uid:1", project="/p",
                               created_at=now(), last_used_at=now())
        await registry.add(record)
        await registry.update(record.id, name="x" + record.id[3:])
        await registry.remove(record.id)
anyio.run(churn)
"""


def _record(sandbox_id: str | None = None, **changes: object) -> SandboxRecord:
    record = SandboxRecord(
        id=SandboxId(sandbox_id) if sandbox_id else new_sandbox_id(),
        provider="memory",
        principal=_OWNER.principal,
        project=_OWNER.project,
        created_at="2026-01-01T00:00:00.000Z",
        last_used_at="2026-01-01T00:00:00.000Z",
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def _id(start: str) -> str:
    return "sb_" + start.ljust(26, "a")


def _find(registry: Registry, handle: str) -> SandboxRecord:
    return registry.find(handle, principal=_OWNER.principal, project=_OWNER.project)


def test_ids_are_128_bits_in_base32() -> None:
    ids = {new_sandbox_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(ID_PATTERN.match(one) for one in ids)


async def test_a_record_survives_its_file(tmp_path: Path) -> None:
    record = _record(name="box", parent=SnapshotId("ab"), image="python:3.12", is_default=True, network="full")
    await Registry(tmp_path).add(record)
    assert Registry(tmp_path).get(record.id) == replace(
        record, last_used_at=Registry(tmp_path).get(record.id).last_used_at
    )


def test_the_first_release_can_be_read(tmp_path: Path) -> None:
    old = {
        "schema": 1, "id": _id("q"), "provider": "local", "principal": "uid:1", "project": "/p",
        "created_at": "2026-01-01T00:00:00.000Z", "last_used_at": "2026-01-01T00:00:00.000Z", "name": "",
        "is_default": True, "parent": None, "image": None, "network": "none", "workspace": "overlay",
    }  # fmt: skip
    (tmp_path / _id("q")).mkdir()
    (tmp_path / _id("q") / "record.json").write_text(json.dumps(old))
    assert Registry(tmp_path).get(SandboxId(_id("q"))).workspace == "overlay"


async def test_unknown_fields_of_newer_versions_are_passed_over_and_kept(tmp_path: Path) -> None:
    registry, record = Registry(tmp_path), _record()
    await registry.add(record)
    path = registry.directory(record.id) / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "colour": "blue"}))
    assert (await registry.update(record.id, name="box")).name == "box"
    assert json.loads(path.read_bytes())["colour"] == "blue"


async def test_a_newer_schema_is_refused_and_never_replaced(tmp_path: Path) -> None:
    registry, record = Registry(tmp_path), _record(is_default=True)
    await registry.add(record)
    path = registry.directory(record.id) / "record.json"
    path.write_text(json.dumps({**record.to_json(), "schema": 2}))
    with pytest.raises(StateError, match="Upgrade mcp-sandbox"):
        registry.get(record.id)
    with pytest.raises(StateError, match="Upgrade mcp-sandbox"):
        await registry.default_for(_OWNER, _record)
    assert registry.list(principal=_OWNER.principal) == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "id": 5}', "\x00" * 40])
async def test_a_damaged_record_does_not_hide_the_others(tmp_path: Path, text: str) -> None:
    registry, record = Registry(tmp_path), _record()
    await registry.add(record)
    (tmp_path / _id("z")).mkdir()
    (tmp_path / _id("z") / "record.json").write_text(text)
    assert [found.id for found in registry.list(principal=_OWNER.principal)] == [record.id]
    with pytest.raises(StateError, match="damaged"):
        registry.get(SandboxId(_id("z")))


@pytest.mark.parametrize("handle", [_id("abc"), "sb_abc", "abc", "ABC", " sb_abc ", "box"])
async def test_a_handle_is_an_id_a_prefix_or_a_name(tmp_path: Path, handle: str) -> None:
    registry = Registry(tmp_path)
    await registry.add(_record(_id("abc"), name="box"))
    await registry.add(_record(_id("abd")))
    assert _find(registry, handle).id == _id("abc")


async def test_an_ambiguous_prefix_is_refused_and_lists_what_it_means(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    for start in ("abc", "abd"):
        await registry.add(_record(_id(start)))
    with pytest.raises(InvalidRequestError, match=r"sb_abcaaaaa.*sb_abdaaaaa"):
        _find(registry, "ab")


@pytest.mark.parametrize("handle", ["", " ", "sb_", "..", "../x", "/", "x" * 5000, "\0", "é"])
async def test_odd_handles_are_not_found(tmp_path: Path, handle: str) -> None:
    registry = Registry(tmp_path)
    await registry.add(_record(_id("abc")))
    with pytest.raises(NotFoundError):
        _find(registry, handle)


async def test_a_missing_sandbox_names_near_ones(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    await registry.add(_record(_id("abc"), name="frontend"))
    with pytest.raises(NotFoundError, match=r"near it is .*frontend"):
        _find(registry, "frontent")


async def test_names_and_prefixes_hold_within_a_project_and_whole_ids_within_a_principal(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    await registry.add(_record(_id("abc"), name="box", project="/other"))
    assert _find(registry, _id("abc")).project == "/other"
    for handle in ("box", "abc"):
        with pytest.raises(NotFoundError):
            _find(registry, handle)
    for handle in (_id("abc"), "box"):
        with pytest.raises(NotFoundError):
            registry.find(handle, principal="uid:2")


async def test_a_name_is_unique_in_its_project_only(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    await registry.add(_record(name="box"))
    await registry.add(_record(name="box", project="/other"))
    with pytest.raises(StateError, match="'box'"):
        await registry.add(_record(name="box"))


def test_b085_processes_that_start_at_once_make_one_default_sandbox(tmp_path: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _RACE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate()[0].split() for child in children]
    assert len({sandbox_id for sandbox_id, _ in answers}) == 1
    assert sorted(is_new for _, is_new in answers) == ["False"] * 5 + ["True"]
    assert len(Registry(tmp_path).list(principal="uid:1")) == 1


def test_a_process_killed_at_any_point_leaves_whole_records_or_none(tmp_path: Path) -> None:
    for delay_ms in (1, 3, 7, 13, 29):
        child = subprocess.Popen([sys.executable, "-c", _CHURN, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        deadline = time.monotonic() + delay_ms / 1000
        while time.monotonic() < deadline:
            os.sched_yield()
        child.send_signal(signal.SIGKILL)
        child.communicate()
        registry = Registry(tmp_path)
        for name in os.listdir(tmp_path):
            if ID_PATTERN.match(name):
                registry.get(SandboxId(name))
                anyio.run(registry.remove, SandboxId(name))
    registry = Registry(tmp_path)
    anyio.run(registry.add, _record(_id("abc")))
    assert sorted(os.listdir(tmp_path)) == ["lock", _id("abc")]


async def test_a_removed_sandbox_is_gone_with_its_directory(tmp_path: Path) -> None:
    registry, record = Registry(tmp_path), _record()
    await registry.add(record)
    (registry.directory(record.id) / "jobs").mkdir()
    await registry.remove(record.id)
    await registry.remove(record.id)
    assert os.listdir(tmp_path) == ["lock"]
    with pytest.raises(NotFoundError):
        await registry.update(record.id, name="x")


async def test_the_stamp_changes_with_the_record_and_not_with_its_use(tmp_path: Path) -> None:
    registry, record = Registry(tmp_path), _record()
    await registry.add(record)
    stamp = registry.stamp(record.id)
    registry.touch(record.id)
    assert registry.stamp(record.id) == stamp is not None
    assert registry.get(record.id).last_used_at > record.last_used_at
    await registry.update(record.id, name="box")
    assert registry.stamp(record.id) != stamp
    await registry.remove(record.id)
    assert registry.stamp(record.id) is None


async def test_one_registry_sees_what_another_changed(tmp_path: Path) -> None:
    one, other, record = Registry(tmp_path), Registry(tmp_path), _record()
    await one.add(record)
    assert other.get(record.id).name == ""
    await one.update(record.id, name="box")
    assert other.get(record.id).name == "box"


async def test_a_sandbox_counts_as_being_created_until_the_engine_has_it(tmp_path: Path) -> None:
    registry, record = Registry(tmp_path), _record()
    await registry.add(record)
    assert registry.is_creating(record.id)
    registry.mark_created(record.id)
    assert not registry.is_creating(record.id)


async def test_many_registries_together_never_enter_more_than_a_project_may_have(tmp_path: Path) -> None:
    registries = [Registry(tmp_path) for _ in range(4)]
    await registries[0].add(_record(project="/other"))
    refused: list[CapacityError] = []

    async def enter(registry: Registry) -> None:
        try:
            await registry.add(_record(), most=5)
        except CapacityError as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(enter, registries[number % 4])
    assert len(Registry(tmp_path).list(principal=_OWNER.principal, project=_OWNER.project)) == 5
    assert len(refused) == 7
    assert "this project has 5 already, and 5 is the most" in refused[0].why
