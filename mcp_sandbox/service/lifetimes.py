"""How long sandboxes live, and how many a project may have."""

from dataclasses import dataclass

__all__ = ["Lifetimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Durations in seconds; `None` is without end."""

    idle_s: float | None = None
    """After how long without a call the processes of a sandbox end."""
    max_age_s: float | None = 30 * 86_400.0
    """After how long without use a sandbox that is not a project's own is kept as a snapshot only."""
    max_sandboxes: int = 256
    """How many sandboxes a project may have."""
