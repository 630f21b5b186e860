"""Records of snapshots that are parsed once: never an old one for a new one."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_sandbox.core.errors import NotFoundError
from mcp_sandbox.engines.identity import choose_identity
from mcp_sandbox.engines.layer_store import LayerStore, StoredSnapshot

__all__: list[str] = []

_ONE = StoredSnapshot(base="b", layers=("one",), project=None)


def test_a_record_is_parsed_once_and_again_when_it_was_replaced(tmp_path: Path) -> None:
    store = LayerStore(tmp_path, choose_identity())
    ref = store.add_snapshot(_ONE)
    path = tmp_path / "snapshots" / f"{ref}.json"
    os.utime(path, (1e9, 1e9))
    assert store.known.get(ref) == _ONE
    assert store.known.get(ref) is store.known.get(ref)
    store.save_snapshot(ref, replace(_ONE, layers=("two",)))
    assert store.known.get(ref).layers == ("two",)


def test_a_record_of_this_moment_is_not_remembered(tmp_path: Path) -> None:
    """One that replaces it at once may have its time, its size and, since that was freed, its inode."""
    store = LayerStore(tmp_path, choose_identity())
    ref = store.add_snapshot(_ONE)
    assert store.known.get(ref) == _ONE
    path = tmp_path / "snapshots" / f"{ref}.json"
    found = path.stat()
    path.write_bytes(path.read_bytes().replace(b"one", b"two"))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert store.known.get(ref).layers == ("two",)


def test_a_record_that_was_deleted_is_gone(tmp_path: Path) -> None:
    store = LayerStore(tmp_path, choose_identity())
    ref = store.add_snapshot(_ONE)
    os.utime(tmp_path / "snapshots" / f"{ref}.json", (1e9, 1e9))
    assert store.known.get(ref) == _ONE
    store.remove_snapshot(ref)
    with pytest.raises(NotFoundError):
        store.known.get(ref)
