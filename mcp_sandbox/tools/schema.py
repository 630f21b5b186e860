"""What is done with the arguments that models really send.

The schemas are plain on purpose: clients choke on unions, references and null. The checking is strict in names, since a
misspelt argument that is ignored does harm, and lenient in values, since models quote numbers and stringify lists.
"""

import difflib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, cast

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.tools.tool import Tool

__all__ = ["check_arguments", "nearest"]

_INTEGER = re.compile(r"[+-]?\d{1,18}(\.0*)?")
_TRUE = frozenset({"true", "1"})
_FALSE = frozenset({"false", "0"})


class _WrongValueError(Exception):
    """A value cannot be read as its type; says what was expected."""


def nearest(name: str, known: tuple[str, ...]) -> str | None:
    """Return the known name most like `name`, if one is like it at all."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.5)
    return by_folded[found[0]] if found else None


def check_arguments(tool: Tool, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments with every value in its type and every absent one at its default, if it has one.

    Raises:
        InvalidRequestError: Names every argument that is unknown, missing or of no use.
    """
    known = tuple(tool.properties)
    checked: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in (given or {}).items():
        fragment = tool.properties.get(name)
        if fragment is None:
            guess = nearest(name, known)
            problems.append(f"unknown argument {name!r}" + (f" (did you mean {guess!r}?)" if guess else ""))
            continue
        if _is_absent(value, fragment):
            continue
        try:
            if name in tool.required and fragment["type"] == "string" and not isinstance(value, str):
                raise _WrongValueError("a string")  # what the call is about: a number there is a mistake, not a habit
            checked[name] = _coerce(value, fragment)
        except _WrongValueError as error:
            problems.append(f"{name!r} must be {error}, not {_shown(value)}")
    missing = [name for name in tool.required if _is_absent((given or {}).get(name), tool.properties[name])]
    problems.extend(f"{name!r} is missing" for name in missing)
    if problems:
        raise InvalidRequestError(
            f"{tool.name} was not carried out",
            why="; ".join(problems),
            fix=f"Call it again with arguments out of: {', '.join(known) or '(none)'}",
        )
    for name, fragment in tool.properties.items():
        if name not in checked and "default" in fragment:
            checked[name] = fragment["default"]
    return checked


def _is_absent(value: Any, fragment: Mapping[str, Any]) -> bool:
    if value is None:
        return True
    return fragment["type"] != "string" and isinstance(value, str) and value.strip().casefold() in ("", "null", "none")


def _coerce(value: Any, fragment: Mapping[str, Any]) -> Any:
    match fragment["type"]:
        case "string":
            result: Any = _string(value)
        case "integer":
            result = _integer(value)
        case "number":
            result = _number(value)
        case "boolean":
            result = _boolean(value)
        case "array":
            result = _array(value, fragment)
        case "object":
            result = _object(value, fragment)
        case other:
            raise TypeError(f"schema fragment of unknown type {other!r}")
    if "enum" in fragment:
        result = _member(result, fragment["enum"])
    _check_bounds(result, fragment)
    return result


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise _WrongValueError("a string")


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value.strip().partition(".")[0])
    raise _WrongValueError("a whole number")


def _number(value: Any) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise _WrongValueError("a number") from None
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise _WrongValueError("a number")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().casefold() if isinstance(value, str | int) else ""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _WrongValueError("true or false")


def _array(value: Any, fragment: Mapping[str, Any]) -> list[Any]:
    items: Mapping[str, Any] = fragment["items"]
    if isinstance(value, str):
        parsed = _parsed(value)
        value = cast("list[Any]", parsed) if isinstance(parsed, list) else [value]
    elif not isinstance(value, list):
        value = [value]
    return [_coerce(item, items) for item in cast("list[Any]", value) if item is not None]


def _object(value: Any, fragment: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(value, str):
        value = _parsed(value)
    if not isinstance(value, dict):
        raise _WrongValueError("an object")
    values = fragment.get("additionalProperties")
    fields = cast("dict[str, Any]", value)
    if not isinstance(values, Mapping):
        return fields
    shape = cast("Mapping[str, Any]", values)
    return {name: _coerce(item, shape) for name, item in fields.items() if item is not None}


def _member(value: Any, members: list[Any]) -> Any:
    if value in members:
        return value
    folded = {str(member).casefold(): member for member in members}
    found = folded.get(str(value).strip().casefold())
    if found is not None:
        return found
    guess = nearest(str(value), tuple(str(member) for member in members))
    listed = ", ".join(repr(member) for member in members)
    raise _WrongValueError(f"one of {listed}" + (f" (did you mean {guess!r}?)" if guess else ""))


def _check_bounds(value: Any, fragment: Mapping[str, Any]) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if "minimum" in fragment and value < fragment["minimum"]:
        raise _WrongValueError(f"at least {fragment['minimum']}")
    if "exclusiveMinimum" in fragment and value <= fragment["exclusiveMinimum"]:
        raise _WrongValueError(f"more than {fragment['exclusiveMinimum']}")
    if "maximum" in fragment and value > fragment["maximum"]:
        raise _WrongValueError(f"at most {fragment['maximum']}")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value) if not isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
