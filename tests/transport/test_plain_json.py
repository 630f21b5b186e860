"""The parser of first messages against the real one."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from mcp_sandbox.transport.plain_json import dump, parse

__all__: list[str] = []

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_LEAVES = st.none() | st.booleans() | st.integers(-(10**15) + 1, 10**15 - 1) | _TEXT
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner), max_leaves=30)


@settings(deadline=None)
@given(_VALUES)
def test_values_are_written_as_the_standard_library_writes_them(value: Any) -> None:
    assert dump(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@settings(deadline=None)
@given(_VALUES, st.sampled_from([None, 0, 2]))
def test_plain_json_is_read(value: Any, indent: int | None) -> None:
    assert parse(json.dumps(value, ensure_ascii=False, indent=indent).encode()) == value


@settings(deadline=None)
@given(_TEXT.filter(lambda text: all(ord(character) < 0x10000 for character in text)))
def test_escapes_are_read(text: str) -> None:
    assert parse(json.dumps(text).encode()) == text


@settings(deadline=None, max_examples=500)
@given(st.lists(st.sampled_from([*'{}[]",:\\ \n\t/u0129-.eE', "true", "null", "NaN", '"a"', "\\u00e9", "é", "\x00"])))
@example(["-0"])
@example(["01"])
@example(['"\\ud800"'])
@example(['{"a":1,"a":2}'])
@example(["\ufeff1"])
@example(["[" * 40 + "]" * 40])
def test_what_is_read_is_what_others_read(pieces: list[str]) -> None:
    text = "".join(pieces)
    try:
        value = parse(text.encode())
    except ValueError:
        return
    assert value == json.loads(text)
    assert value == from_json(text)


@pytest.mark.parametrize("line", [b"", b"1.0", b"1e3", b"1" * 16, b"-", b"\xff", b'"\x1f"', b"[1,]", b"{} {}", b"nul"])
def test_the_rest_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse(line)


def test_what_is_not_plain_is_not_written() -> None:
    with pytest.raises(TypeError, match="float"):
        dump({"a": 1.5})
