"""Snapshots as a forest: each one under the one that its sandbox took or was restored to before."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mcp_sandbox.core.snapshot import Snapshot, SnapshotId
from mcp_sandbox.store.record import SandboxRecord

__all__ = ["Branch", "lineage", "parents_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One snapshot and where it stands among the others."""

    snapshot: Snapshot
    depth: int
    """Number of branchings above it: a chain of single children stays at one depth."""
    is_here: bool
    """Whether the sandbox last took it or was restored to it."""
    size_bytes: int | None = None
    """Bytes that it alone added, if they were counted."""
    imported: bool = False
    """Whether it came in a file."""
    sandboxes: tuple[str, ...] = ()
    """Names or ids of the sandboxes that last took it, were restored to it or were made from it."""


def lineage(snapshots: Sequence[Snapshot], here: SnapshotId | None) -> Sequence[Branch]:
    """Return the snapshots parents first, children in order of age; one whose parent is not listed is a root."""
    ids = {snapshot: snapshot.id for snapshot in snapshots}
    listed = set(ids.values())
    children: dict[SnapshotId | None, list[Snapshot]] = {}
    for snapshot in sorted(snapshots, key=lambda one: (one.created_at, ids[one])):
        children.setdefault(snapshot.parent if snapshot.parent in listed else None, []).append(snapshot)
    branches: list[Branch] = []
    pending = [(root, 0) for root in reversed(children.get(None, []))]
    while pending:
        snapshot, depth = pending.pop()
        branches.append(
            Branch(snapshot=snapshot, depth=depth, is_here=ids[snapshot] == here, size_bytes=snapshot.native.size_bytes)
        )
        below = children.get(ids[snapshot], [])
        pending.extend((child, depth + (len(below) > 1)) for child in reversed(below))
    return branches


def parents_of(records: Iterable[SandboxRecord]) -> "dict[SnapshotId, list[str]]":
    """Return the snapshots that sandboxes go on from, with the names or ids of those."""
    there: dict[SnapshotId, list[str]] = {}
    for record in records:
        if record.parent is not None:
            there.setdefault(record.parent, []).append(record.name or record.id[:12])
    return there
