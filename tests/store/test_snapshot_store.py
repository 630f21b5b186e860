"""The records of snapshots: write-once, checked on every read, found by prefix."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_sandbox.core.capability import Facet
from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, SnapshotCorruptError, StateError
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.core.snapshot import NativeContent, Snapshot, SnapshotId
from mcp_sandbox.store.record import Owner
from mcp_sandbox.store.snapshots import SnapshotStore, StoredSnapshot

__all__: list[str] = []

_OWNER = Owner(principal="uid:1", project="/p")


def _stored(note: str = "n", owner: Owner = _OWNER) -> StoredSnapshot:
    native = NativeContent(
        provider="memory", ref="r", holds=frozenset({Facet.FILES, Facet.ENV}), size_bytes=5, paused_s=0.125
    )
    snapshot = Snapshot(
        sandbox=SandboxId("sb_" + "a" * 26),
        parent=None,
        created_at="2026-01-01T00:00:00.000Z",
        note=note,
        native=native,
    )
    return StoredSnapshot(snapshot=snapshot, owner=owner)


def _find(store: SnapshotStore, prefix: str) -> StoredSnapshot:
    return store.find(prefix, principal=_OWNER.principal, project=_OWNER.project)


def test_a_snapshot_survives_its_file(tmp_path: Path) -> None:
    stored = _stored("naïve \udc80 \U0001f600\n")
    SnapshotStore(tmp_path).save(stored)
    assert SnapshotStore(tmp_path).load(stored.id) == stored


def test_saving_again_changes_nothing(tmp_path: Path) -> None:
    store, stored = SnapshotStore(tmp_path), _stored()
    store.save(stored)
    before = (tmp_path / f"{stored.id}.json").stat()
    store.save(stored)
    assert (tmp_path / f"{stored.id}.json").stat().st_ino == before.st_ino


@pytest.mark.parametrize("length", [4, 12, 64])
def test_any_unique_prefix_will_do(tmp_path: Path, length: int) -> None:
    store, stored = SnapshotStore(tmp_path), _stored()
    store.save(stored)
    assert _find(store, stored.id[:length].upper()) == stored


def test_an_ambiguous_prefix_is_refused(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    ids: dict[str, SnapshotId] = {}
    for count in range(100):
        stored = _stored(str(count))
        store.save(stored)
        if (first := stored.id[0]) in ids:
            with pytest.raises(InvalidRequestError, match="Give more of the id"):
                _find(store, first)
            return
        ids[first] = stored.id
    pytest.fail("no two of a hundred digests begin alike")


@pytest.mark.parametrize("prefix", ["", " ", "zz", "../x", "\0", "f" * 64, "f" * 5000])
def test_a_missing_snapshot_is_not_found_and_names_the_newest(tmp_path: Path, prefix: str) -> None:
    store, stored = SnapshotStore(tmp_path), _stored()
    store.save(stored)
    with pytest.raises(NotFoundError, match=stored.id[:12]):
        _find(store, prefix)


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    store, stored = SnapshotStore(tmp_path), _stored("good")
    store.save(stored)
    path = tmp_path / f"{stored.id}.json"
    path.write_bytes(path.read_bytes().replace(b"good", b"evil"))
    for prefix in (stored.id, stored.id[:12]):
        with pytest.raises(SnapshotCorruptError):
            _find(SnapshotStore(tmp_path), prefix)
        with pytest.raises(SnapshotCorruptError):
            store.find(stored.id, principal="uid:1")
    assert SnapshotStore(tmp_path).list(principal="uid:1") == ()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"schema": 1, "snapshot": {}}', b"\x00" * 100])
def test_an_unreadable_record_is_damage(tmp_path: Path, text: bytes) -> None:
    stored = _stored()
    (tmp_path / f"{stored.id}.json").write_bytes(text)
    with pytest.raises(SnapshotCorruptError):
        SnapshotStore(tmp_path).load(stored.id)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    store, stored = SnapshotStore(tmp_path), _stored()
    store.save(stored)
    path = tmp_path / f"{stored.id}.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "schema": 2}))
    with pytest.raises(StateError, match="Upgrade mcp-sandbox"):
        store.load(stored.id)


def test_others_see_nothing(tmp_path: Path) -> None:
    store, stored = SnapshotStore(tmp_path), _stored()
    store.save(stored)
    assert store.list(principal="uid:2") == ()
    assert store.list(principal="uid:1", project="/other") == ()
    with pytest.raises(NotFoundError):
        store.find(stored.id, principal="uid:2")
    with pytest.raises(NotFoundError):
        store.find(stored.id[:12], principal="uid:1", project="/other")
    assert store.find(stored.id, principal="uid:1", project="/other") == stored


def test_the_list_is_in_order_and_follows_deletion(tmp_path: Path) -> None:
    store, first = SnapshotStore(tmp_path), _stored()
    later = StoredSnapshot(snapshot=replace(first.snapshot, created_at="2026-01-02T00:00:00.000Z"), owner=_OWNER)
    store.save(later)
    store.save(first)
    assert store.list(principal="uid:1") == (first, later)
    SnapshotStore(tmp_path).delete(first.id)
    store.delete(first.id)
    assert store.list(principal="uid:1") == (later,)
