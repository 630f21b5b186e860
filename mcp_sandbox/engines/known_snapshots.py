"""The records of snapshots for whoever reads all of them, again and again: each one is parsed once."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcp_sandbox.core.errors import NotFoundError

if TYPE_CHECKING:
    from mcp_sandbox.engines.layer_store import LayerStore, StoredSnapshot

__all__ = ["KnownSnapshots"]

_SETTLED_NS: Final = 1_000_000_000
"""A file that is younger may change once more without another time or inode: clocks of file systems are coarse."""

_Stamp = tuple[int, int, int]


class KnownSnapshots:
    """May be used by several threads.

    Args:
        store: What reads the records.
        directory: Where they are.
    """

    def __init__(self, store: "LayerStore", directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._known: dict[str, tuple[_Stamp, StoredSnapshot]] = {}

    def get(self, ref: str) -> "StoredSnapshot":
        """Return what `LayerStore.load_snapshot` does; raises as that does."""
        try:
            found = (self._directory / f"{ref}.json").stat()
        except FileNotFoundError:
            self._known.pop(ref, None)
            raise NotFoundError("No such snapshot content", why=f"{ref!r} was deleted", fix="List snapshots") from None
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        known = self._known.get(ref)
        if known is not None and known[0] == stamp:
            return known[1]
        snapshot = self._store.load_snapshot(ref)
        if time.time_ns() - found.st_mtime_ns > _SETTLED_NS:
            self._known[ref] = (stamp, snapshot)
        return snapshot
