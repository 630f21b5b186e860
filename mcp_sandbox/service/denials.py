"""Sandboxes and snapshots from before something was denied: they may hold it, so they are not used."""

from collections.abc import Iterable

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.store.record import SandboxRecord
from mcp_sandbox.store.snapshots import StoredSnapshot

__all__ = ["require_denied", "require_denied_in"]

_SHORT = 12
_BACK = "or take capabilities.filesystem.denied back"


def require_denied(record: SandboxRecord, denied: Iterable[str]) -> None:
    """Return if a sandbox sees nothing of its project that is denied now.

    Raises:
        ConfigError: It was made when less was denied.
    """
    if more := [glob for glob in denied if glob not in record.denied]:
        raise ConfigError(
            f"Sandbox {record.name or record.id[:_SHORT]} not used",
            why=f"it was made before {', '.join(more)} was denied, and can see it",
            fix=f"End it with everything in it (`sandbox_destroy`), {_BACK}",
        )


def require_denied_in(stored: StoredSnapshot, denied: Iterable[str]) -> None:
    """Return if a snapshot holds nothing that is denied now.

    Raises:
        ConfigError: It was taken when less was denied.
    """
    if more := [glob for glob in denied if glob not in stored.snapshot.denied]:
        raise ConfigError(
            f"Snapshot {stored.id[:_SHORT]} not used",
            why=f"it was taken before {', '.join(more)} was denied, and may hold it",
            fix=f"Use a later one, {_BACK}",
        )
