"""Sizes and times as a reader wants them."""

from datetime import UTC, datetime

from mcp_sandbox.core.wording import size

__all__ = ["age", "local_time", "seconds_of", "size"]

_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def seconds_of(timestamp: str) -> str:
    """Return a time of a record without its fraction: `2026-01-31T12:00:00Z`."""
    return f"{timestamp[:19]}Z"


def local_time(timestamp: str) -> str:
    """Return a time of a record as the person's clock has it, to the minute: `2026-01-31 12:00`."""
    try:
        return datetime.fromisoformat(timestamp).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):
        return "?"


def age(timestamp: str, *, at: datetime | None = None) -> str:
    """Return how long ago a time of a record was, in its largest unit: `5 min`."""
    try:
        elapsed = (at or datetime.now(UTC)) - datetime.fromisoformat(timestamp)
    except ValueError:
        return "?"
    elapsed_s = max(0, int(elapsed.total_seconds()))
    for step_s, unit in _STEPS:
        if elapsed_s >= step_s:
            return f"{elapsed_s // step_s} {unit}"
    return f"{elapsed_s} s"
