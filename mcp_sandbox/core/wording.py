"""Sizes and limits in the words that users know."""

from typing import Final

__all__ = ["limit_option", "limit_text", "limit_word", "size"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_WORDS: Final = {
    "memory_bytes": "memory",
    "cpu_count": "cpus",
    "pids": "pids",
    "open_files": "open files",
    "disk_bytes": "disk",
    "inodes": "inodes",
    "command_s": "command time",
}


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


def limit_word(name: str) -> str:
    """Return what a field of `Limits` is called: `disk`."""
    return _WORDS.get(name, name)


def limit_text(name: str, value: float) -> str:
    """Return a limit with its value: `disk 64 MiB`."""
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{limit_word(name)} {size(value)}"
    return f"{limit_word(name)} {value:g}{' s' if name.endswith('_s') else ''}"


def limit_option(name: str) -> str:
    """Return the option of the command line that asks for a limit: `--disk`."""
    return f"--{limit_word(name).replace(' ', '-')}"
