"""Limits as people write them: `--memory 2GiB` on the command line, or `MCP_SANDBOX_MEMORY` in a client's settings.

Imports next to nothing: a server reads its options before it answers for the first time.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp_sandbox.core.sandbox import Limits

__all__ = [
    "BEST_EFFORT", "LIMIT_OPTIONS", "LimitOption", "WantedLimits", "cores", "count", "find_limits", "seconds", "size",
]  # fmt: skip


class LimitOption:
    """One limit as an option and as a variable."""

    __slots__ = ("field", "least", "metavar", "parse", "summary")

    def __init__(
        self, field: str, metavar: str, summary: str, parse: "Callable[[str], float | None]", least: float
    ) -> None:
        self.field = field
        self.metavar = metavar
        self.summary = summary
        self.parse = parse
        self.least = least


class WantedLimits:
    """What was asked for."""

    __slots__ = ("best_effort", "given", "limits")

    def __init__(self, limits: "Limits", *, best_effort: bool, given: "frozenset[str]" = frozenset()) -> None:
        self.limits = limits
        self.best_effort = best_effort
        self.given = given
        """Names of the fields of `limits` that were asked for; the others are the usual ones."""


_SIZES = {"": 1, "b": 1}
_SIZES.update({f"{letter}{end}": 1024**power for power, letter in enumerate("kmgt", 1) for end in ("", "ib")})
_SIZES.update({f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)})
_TIMES = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_CORES = {"": 1, "core": 1, "cores": 1, "cpu": 1, "cpus": 1}


_MOST = 10**15
"""More than any machine has of anything: a petabyte, thirty million years."""


def _quantity(text: str, units: "Mapping[str, int]") -> float | None:
    stripped = text.strip().lower()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = stripped[len(number) :].strip()
    if unit not in units or not number.isascii() or not number.replace(".", "", 1).isdecimal():
        return None
    value = float(number) * units[unit]
    return value if value <= _MOST else None


def size(text: str) -> float | None:
    """Return bytes; `None` for what is no size."""
    value = _quantity(text, _SIZES)
    return None if value is None else int(value)


def seconds(text: str) -> float | None:
    """Return seconds; `None` for what is no time."""
    return _quantity(text, _TIMES)


def cores(text: str) -> float | None:
    """Return a number of processors; `None` for what is none."""
    return _quantity(text, _CORES)


def count(text: str) -> float | None:
    """Return a whole number; `None` for what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST)) else None


_MIB = 1024 * 1024
LIMIT_OPTIONS = {
    "memory": LimitOption(
        "memory_bytes", "SIZE", "memory of all its processes together, such as 2GiB", size, 16 * _MIB
    ),
    "cpus": LimitOption("cpu_count", "N", "processors that it may keep busy, such as 1.5", cores, 0.01),
    "pids": LimitOption("pids", "N", "processes and threads (default: 512)", count, 8),
    "disk": LimitOption("disk_bytes", "SIZE", "what it may write, such as 5GiB", size, _MIB),
    "inodes": LimitOption("inodes", "N", "files and directories that it may make", count, 100),
    "open-files": LimitOption("open_files", "N", "open files of each process (default: 65536)", count, 16),
    "command-time": LimitOption(
        "command_s", "TIME", "how long any command may run, such as 600 or 10min", seconds, 0.1
    ),
}
BEST_EFFORT = "best-effort"
_EXAMPLES = {"SIZE": "a size such as 512MiB, 2GiB or 4GB", "N": "a number", "TIME": "a time such as 90, 10min or 2h"}
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def find_limits(
    options: "Mapping[str, str | bool | None]", environ: "Mapping[str, str]" = os.environ
) -> WantedLimits | None:
    """Return the limits that options, else variables ask for; `None` if none does.

    Raises:
        ConfigError: A value cannot be understood, or leaves too little to work with.
    """
    given: dict[str, float] = {}
    for name, option in LIMIT_OPTIONS.items():
        variable = f"MCP_SANDBOX_{name.replace('-', '_').upper()}"
        if (text := options.get(name)) is not None:
            given[option.field] = _parsed(f"--{name}", str(text), option)
        elif text := environ.get(variable):
            given[option.field] = _parsed(variable, text, option)
    best_effort = options.get(BEST_EFFORT) or _flag("MCP_SANDBOX_BEST_EFFORT", environ)
    if not given and not best_effort:
        return None
    from mcp_sandbox.core.sandbox import Limits

    limits = Limits(**given)  # pyright: ignore[reportArgumentType]
    return WantedLimits(limits, best_effort=bool(best_effort), given=frozenset(given))


def _parsed(name: str, text: str, option: LimitOption) -> float:
    value = option.parse(text)
    if value is None or value < option.least:
        from mcp_sandbox.core.errors import ConfigError

        why = f"{_EXAMPLES[option.metavar]} is expected" if value is None else f"it is less than {_least(option)}"
        raise ConfigError(f"{name}={text!r} cannot be used", why=why, fix=f"It says: {option.summary}")
    return value


def _least(option: LimitOption) -> str:
    return f"{option.least // _MIB} MiB" if option.metavar == "SIZE" else f"{option.least:g}"


def _flag(variable: str, environ: "Mapping[str, str]") -> bool:
    text = environ.get(variable, "").lower()
    if text not in (*_YES, *_NO):
        from mcp_sandbox.core.errors import ConfigError

        raise ConfigError(f"{variable}={text!r} cannot be used", why="it is neither 1 nor 0", fix="Set it to 1 or 0")
    return text in _YES
