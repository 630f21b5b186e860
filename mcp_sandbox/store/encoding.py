"""How records are written: JSON objects that a person can read and compare."""

import json
from collections.abc import Mapping
from typing import Any, cast

__all__ = ["decode", "encode", "pairs"]


def encode(data: Mapping[str, Any]) -> bytes:
    """Return indented JSON with a final newline."""
    return json.dumps(data, indent=2).encode() + b"\n"


def decode(text: bytes) -> dict[str, Any]:
    """Return the object that a file holds.

    Raises:
        ValueError: It is not JSON in UTF-8, or not an object.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(data, dict):
        raise ValueError("it is not an object")
    return cast("dict[str, Any]", data)


def pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """Return sorted pairs of texts as they were before they were written.

    Raises:
        ValueError, TypeError: They are none.
    """
    found = tuple((name, text) for name, text in value)
    if any(type(text) is not str for pair in found for text in pair) or sorted(dict(found).items()) != list(found):
        raise ValueError("these are no sorted pairs of texts")
    return found
