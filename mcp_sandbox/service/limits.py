"""What is recorded and said of a sandbox's limits."""

from collections.abc import Mapping
from dataclasses import asdict, fields

from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.core.wording import limit_text

__all__ = ["changed_limits", "limits_in", "limits_text", "own_limits", "recorded_limits"]


def recorded_limits(limits: Limits) -> dict[str, float]:
    """Return what a record remembers: the limits that there are."""
    return {name: value for name, value in asdict(limits).items() if value is not None}


def limits_in(recorded: Mapping[str, float]) -> Limits:
    """Return the limits of a record, without those of newer versions."""
    known = [field.name for field in fields(Limits)]
    return Limits(**{name: recorded.get(name) for name in known})  # pyright: ignore[reportArgumentType]


def limits_text(recorded: Mapping[str, float]) -> str:
    """Return limits for a reader: `memory 2 GiB, pids 512`."""
    return ", ".join(limit_text(name, value) for name, value in recorded.items()) or "none"


def own_limits(recorded: Mapping[str, float]) -> str:
    """Return the limits that are not those that every sandbox has, for a reader."""
    usual = recorded_limits(Limits())
    own = {name: value for name, value in recorded.items() if usual.get(name) != value}
    return limits_text(own) if own else ""


def changed_limits(recorded: Mapping[str, float], wanted: Limits, sandbox: str) -> str:
    """Return what to tell of an existing sandbox whose limits are not those asked for, if any were."""
    now = recorded_limits(wanted)
    if wanted == Limits() or not recorded or dict(recorded) == now:
        return ""
    return (
        f"this project's sandbox has the limits that it was made with ({limits_text(recorded)}); those asked for now "
        f"({limits_text(now)}) are used once it, {sandbox}, is destroyed"
    )
