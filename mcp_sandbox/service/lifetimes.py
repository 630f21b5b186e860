"""How long sandboxes live, and how many a project may have."""

from dataclasses import dataclass

from mcp_sandbox.core.errors import CapacityError
from mcp_sandbox.store.record import Owner
from mcp_sandbox.store.registry import Registry

__all__ = ["Lifetimes", "require_room"]

_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Durations in seconds; `None` is without end."""

    idle_s: float | None = None
    """After how long without a call the processes of a sandbox end."""
    max_age_s: float | None = 30 * 86_400.0
    """After how long without use a sandbox that is not a project's own is kept as a snapshot only."""
    max_sandboxes: int = 256
    """How many sandboxes a project may have."""


def require_room(registry: Registry, owner: Owner, count: int, most: int) -> None:
    """Return if a project may have so many more sandboxes. Blocks.

    Raises:
        CapacityError: It may not; names those that were not used for longest.
    """
    records = registry.list(principal=owner.principal, project=owner.project)
    if len(records) + count <= most:
        return
    others = sorted((one for one in records if not one.is_default), key=lambda one: one.last_used_at)
    oldest = ", ".join(f"{one.name or one.id} ({one.last_used_at[:10]})" for one in others[:_NAMED])
    unused = f"; those that were not used for longest are {oldest}" if oldest else ""
    raise CapacityError(
        "No sandbox created" if count == 1 else f"{count} sandboxes not created",
        why=f"this project has {len(records)} already, and {most} is the most{unused}",
        fix="Destroy some with sandbox_destroy, or start the server with a higher --max-sandboxes",
    )
