"""The kinds of values that fields have: sizes, times, names. Each says what it expects where it gets something else."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, cast

from pydantic import BeforeValidator, WithJsonSchema

from mcp_sandbox.manifest.paths import glob_problem
from mcp_sandbox.settings.limits import cores, count, seconds, size

__all__ = [
    "Cores", "Count", "Glob", "Idle", "Line", "Lines", "Name", "Names", "Requirements", "Seconds", "Size", "Text",
    "VariableName", "Yes",
]  # fmt: skip

_NAME: Final = re.compile(r"[A-Za-z0-9@_][A-Za-z0-9@._/:+-]{0,254}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_MIB: Final = 1024 * 1024
_MOST_ITEMS: Final = 1000


def _quantity(parse: Callable[[str], float | None], example: str, least: float, word: str) -> Callable[[object], Any]:
    def read(value: object) -> float:
        number = parse(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
        if number is None:
            raise ValueError(f"{value!r} is no {word}; write it like {example}")
        if number < least:
            shown = f"{least / _MIB:g} MiB" if word == "size" else f"{least:g}"
            raise ValueError(f"{value!r} is less than {shown}, the least that works")
        return number

    return read


def _number_or_text(description: str, pattern: str) -> WithJsonSchema:
    return WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": pattern}],
         "description": description}
    )  # fmt: skip


_NUMBER: Final = r"^\s*[0-9]+(\.[0-9]+)?"
Size = Annotated[
    int,
    BeforeValidator(_quantity(size, "512MiB, 4GB or 10GiB", _MIB, "size")),
    _number_or_text("A size: 512MiB, 4GB, 10GiB", _NUMBER + r"\s*([kKmMgGtT]([iI]?[bB])?|[bB])?\s*$"),
]
Idle = Annotated[
    float,
    BeforeValidator(_quantity(seconds, "15min or 2h", 60, "time")),
    _number_or_text("A time of 60 s or more: 15min, 2h", _NUMBER + r"\s*(s|sec|m|min|h|d)?\s*$"),
]
Cores = Annotated[
    float,
    BeforeValidator(_quantity(cores, "2core or 1.5", 0.01, "number of processors")),
    _number_or_text("A number of processors: 2core, 1.5", _NUMBER + r"\s*(cores?|cpus?)?\s*$"),
]
Seconds = Annotated[
    float,
    BeforeValidator(_quantity(seconds, "300, 90s, 10min or 2h", 0.1, "time")),
    _number_or_text("A time: 300 (seconds), 90s, 10min, 2h, 30d", _NUMBER + r"\s*(s|sec|m|min|h|d)?\s*$"),
]


def _counted(least: int) -> Callable[[object], int]:
    read = _quantity(count, "100", least, "whole number")
    return lambda value: int(read(value))


def Count(least: int) -> Any:  # noqa: N802 (a type)
    """Return the type of a whole number that is not less than `least`."""
    schema = {"type": "integer", "minimum": least}
    return Annotated[int, BeforeValidator(_counted(least)), WithJsonSchema(schema)]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"text is expected, not {_kind(value)}")
    return value


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list) else "a group of keys" if isinstance(value, dict) else repr(value)


def _line(value: object) -> str:
    text = _text(value)
    if not text.isprintable():
        raise ValueError("it may not hold line breaks or characters that cannot be seen")
    if not text or len(text) > 4096:
        raise ValueError("it is empty" if not text else "it is longer than 4096 characters")
    return text


def _requirement(value: object) -> str:
    if (text := _line(value)).startswith("-"):
        raise ValueError(f"{text!r:.64} is an option of an installer, and no package")
    return text


def _glob(value: object) -> str:
    if problem := glob_problem(text := _line(value)):
        raise ValueError(problem)
    return text


def _name(value: object) -> str:
    if not _NAME.fullmatch(text := _line(value)):
        raise ValueError(f"{text[:64]!r} is no name; letters, digits and @._/:+- make one")
    return text


def _variable(value: object) -> str:
    if not _VARIABLE.fullmatch(text := _line(value)):
        raise ValueError(f"{text[:64]!r} is no name of a variable; letters, digits and _ make one")
    return text


def _yes(value: object) -> bool:
    if value in (True, "true", "True", "yes"):
        return True
    if value in (False, "false", "False", "no"):
        return False
    raise ValueError(f"true or false is expected, not {value!r}")


def _listed(value: object) -> object:
    """Take one word for a list of one, as `denied: all` is written."""
    if isinstance(value, list) and len(cast("list[object]", value)) > _MOST_ITEMS:
        raise ValueError(f"it has more than {_MOST_ITEMS} entries")
    return (value,) if isinstance(value, str) else cast("object", value)


_SCALAR: Final[dict[str, Any]] = {"type": ["string", "number", "boolean"]}
_STRINGS: Final[dict[str, Any]] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": _MOST_ITEMS}]
}
Text = Annotated[str, BeforeValidator(_text), WithJsonSchema(_SCALAR)]
Line = Annotated[str, BeforeValidator(_line), WithJsonSchema(_SCALAR)]
Lines = Annotated[tuple[Line, ...], BeforeValidator(_listed), WithJsonSchema(_STRINGS)]
Requirements = Annotated[
    tuple[Annotated[str, BeforeValidator(_requirement)], ...], BeforeValidator(_listed), WithJsonSchema(_STRINGS)
]
Name = Annotated[str, BeforeValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"})]
Names = Annotated[tuple[Name, ...], BeforeValidator(_listed), WithJsonSchema(_STRINGS)]
VariableName = Annotated[
    str, BeforeValidator(_variable), WithJsonSchema({"type": "string", "pattern": f"^{_VARIABLE.pattern}$"})
]
Yes = Annotated[bool, BeforeValidator(_yes), WithJsonSchema({"type": "boolean"})]
Glob = Annotated[str, BeforeValidator(_glob), WithJsonSchema({"type": "string"})]
