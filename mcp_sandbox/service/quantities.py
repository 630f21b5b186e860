"""Sizes and times as a reader wants them."""

from datetime import UTC, datetime

__all__ = ["age", "local_time", "seconds_of", "size"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def size(size_bytes: int) -> str:
    """Return a size with three digits and a unit: `1.25 MiB`."""
    amount, unit = float(size_bytes), 0
    while amount >= 1024 and unit + 1 < len(_UNITS):
        amount, unit = amount / 1024, unit + 1
    return (
        f"{size_bytes} B"
        if unit == 0
        else f"{amount:.3g} {_UNITS[unit]}"
        if amount < 1000
        else f"{amount:.0f} {_UNITS[unit]}"
    )


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
