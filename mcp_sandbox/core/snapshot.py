"""An immutable capture of one sandbox: a small record that names its content."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import NewType

from mcp_sandbox.core.capability import Facet
from mcp_sandbox.core.sandbox import SandboxId

__all__ = ["NativeContent", "Snapshot", "SnapshotId", "SnapshotRequest"]

SnapshotId = NewType("SnapshotId", str)
"""Hex SHA-256 of the record's canonical form. Any unique prefix will do for a user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """Take a snapshot."""

    holds: frozenset[Facet] = frozenset({Facet.FILES})
    """What it must hold at least; a provider that cannot refuses before it touches anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeContent:
    """Content that stays with the provider that made it."""

    provider: str
    ref: str
    """The provider's own name for it: layers, an image, a checkpoint."""
    holds: frozenset[Facet]
    size_bytes: int | None
    """Bytes that this snapshot alone added; `None` where counting them would have taken longer than taking it."""
    paused_s: float = 0.0
    """How long processes stood still while it was taken; 0 when none ran."""
    method: str = ""
    """How it was taken, for a reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The record of one snapshot. Every field is covered by its id."""

    sandbox: SandboxId
    parent: SnapshotId | None
    """The snapshot that the sandbox last took or was restored to."""
    created_at: str
    """UTC, ISO 8601."""
    note: str
    native: NativeContent
    cwd: str = "/workspace"
    image: str = ""
    """Name of the image that the sandbox started from; empty is the provider's default. Not in records without one."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables that commands had besides the provider's own, sorted; sandboxes from it have them, too. As `image`."""
    denied: tuple[str, ...] = ()
    """What of the project its sandbox could not see: globs relative to it. Not in records without any."""
    schema: int = 1

    def canonical(self) -> bytes:
        """Return the bytes that the id is the digest of: JSON, sorted keys, no spaces, ASCII."""
        fields = asdict(self)
        fields["native"]["holds"] = sorted(self.native.holds)
        for name in ("image", "env", "denied"):
            if not fields[name]:
                del fields[name]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @property
    def id(self) -> SnapshotId:
        """The digest of the canonical form."""
        return _id(self)


@lru_cache(maxsize=1024)
def _id(snapshot: Snapshot) -> SnapshotId:
    return SnapshotId(hashlib.sha256(snapshot.canonical()).hexdigest())
