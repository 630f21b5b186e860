"""How long things live, as the command line says it; read before anything heavy is loaded."""

__all__ = ["duration_s", "lifetimes"]

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_LEAST_IDLE_S = 60
"""A call may be under way for most of a minute before it becomes a job."""


def duration_s(text: str) -> float | None:
    """Return the seconds that `90s`, `15m` (or `15min`), `12h` or `30d` means; `None` for `never`.

    Raises:
        ValueError: It means nothing.
    """
    if text == "never":
        return None
    number = text.rstrip("".join(_UNITS))
    unit = text[len(number) :]
    if unit not in _UNITS or not number.isascii() or not number.isdecimal() or int(number) == 0:
        raise ValueError(f"{text!r} is no duration such as 90s, 15m, 12h or 30d, and not 'never'")
    return float(int(number) * _UNITS[unit])


def lifetimes(*, idle_time: str | None, max_age: str | None, max_sandboxes: str | None) -> "dict[str, float | None]":
    """Return what options say, as the fields of `service.lifetimes.Lifetimes`; what they do not say is left out.

    Raises:
        ValueError: One makes no sense; the message says which, and what would.
    """
    said: dict[str, float | None] = {}
    if idle_time is not None:
        said["idle_s"] = seconds = duration_s(idle_time)
        if seconds is not None and seconds < _LEAST_IDLE_S:
            raise ValueError(f"{idle_time!r} is less than the shortest idle time, {_LEAST_IDLE_S}s")
    if max_age is not None:
        said["max_age_s"] = duration_s(max_age)
    if max_sandboxes is not None:
        if not max_sandboxes.isascii() or not max_sandboxes.isdecimal() or int(max_sandboxes) == 0:
            raise ValueError(f"{max_sandboxes!r} is no number of sandboxes")
        said["max_sandboxes"] = int(max_sandboxes)
    return said
