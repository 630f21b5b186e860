"""Arguments: strict in names, lenient in values."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.tools.call import Answer, Call
from mcp_sandbox.tools.listing import input_schema
from mcp_sandbox.tools.schema import check_arguments, nearest
from mcp_sandbox.tools.tool import Tool

__all__: list[str] = []


async def _handler(_: Call) -> Answer:
    return Answer(text="")


TOOL = Tool(
    name="probe",
    title="Probe",
    description="Takes one of everything.",
    handler=_handler,
    properties={
        "command": {"type": "string", "description": "Text"},
        "note": {"type": "string", "description": "More text"},
        "count": {"type": "integer", "description": "Whole", "minimum": 1, "maximum": 10},
        "timeout_s": {"type": "number", "description": "Any", "exclusiveMinimum": 0},
        "force": {"type": "boolean", "description": "Switch", "default": False},
        "paths": {"type": "array", "description": "Several", "items": {"type": "string"}},
        "env": {"type": "object", "description": "Names", "additionalProperties": {"type": "string"}},
        "mode": {"type": "string", "description": "One of", "enum": ["output", "wait", "kill"], "default": "output"},
    },
    required=("command",),
)


def _check(**given_arguments: Any) -> dict[str, Any]:
    return check_arguments(TOOL, {"command": "x", **given_arguments})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", "5", 5),
        ("count", 5.0, 5),
        ("count", " 5 ", 5),
        ("count", "5.0", 5),
        ("timeout_s", "2.5", 2.5),
        ("timeout_s", 3, 3),
        ("force", "true", True),
        ("force", "False", False),
        ("force", 1, True),
        ("paths", '["a", "b"]', ["a", "b"]),
        ("paths", "a b", ["a b"]),
        ("paths", ["a", 5, None], ["a", "5"]),
        ("env", '{"A": "1", "B": 2}', {"A": "1", "B": "2"}),
        ("env", {"A": True, "B": None}, {"A": "true"}),
        ("mode", "WAIT", "wait"),
    ],
)
def test_b114_a_value_in_another_type_is_understood(name: str, value: Any, expected: Any) -> None:
    assert _check(**{name: value})[name] == expected


@pytest.mark.parametrize("name", ["count", "timeout_s", "force", "paths", "env"])
@pytest.mark.parametrize("value", [None, "null", "", "None"])
def test_b114_null_means_absent(name: str, value: Any) -> None:
    expected = {"force": False} if name == "force" else {}
    assert _check(**{name: value}) == {"command": "x", "mode": "output", "force": False} | expected


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", "5", "true", "null", "", " padded\n"])
def test_a_string_stays_as_it_is_even_if_it_looks_like_json(text: str) -> None:
    assert check_arguments(TOOL, {"command": text})["command"] == text


@pytest.mark.parametrize(("value", "text"), [(5, "5"), (2.5, "2.5"), (True, "true")])
def test_a_number_given_for_a_string_becomes_its_text(value: Any, text: str) -> None:
    assert _check(note=value)["note"] == text


@pytest.mark.parametrize("value", [5, 2.5, True])
def test_a_number_that_the_whole_call_is_about_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="'command' must be a string, not ") as refused:
        check_arguments(TOOL, {"command": value})
    assert "missing" not in str(refused.value)


@pytest.mark.parametrize(
    ("given_arguments", "words"),
    [
        ({"comand": "x"}, ["'comand'", "did you mean 'command'?", "'command' is missing"]),
        ({"command": "x", "timeout": 5}, ["'timeout'", "did you mean 'timeout_s'?"]),
        ({"command": "x", "zzz": 5}, ["unknown argument 'zzz'", "command, note, count"]),
        ({"command": "x", "count": "many"}, ["'count' must be a whole number", '"many"']),
        ({"command": "x", "count": True}, ["'count' must be a whole number"]),
        ({"command": "x", "count": 1.5}, ["'count' must be a whole number"]),
        ({"command": "x", "count": 11}, ["at most 10"]),
        ({"command": "x", "count": 0}, ["at least 1"]),
        ({"command": "x", "timeout_s": 0}, ["more than 0"]),
        ({"command": "x", "timeout_s": "nan"}, ["'timeout_s' must be a number"]),
        ({"command": "x", "force": "maybe"}, ["'force' must be true or false"]),
        ({"command": {"a": 1}}, ["'command' must be a string", "an object"]),
        ({"command": "x", "env": "A=1"}, ["'env' must be an object"]),
        ({"command": "x", "mode": "outptu"}, ["'output', 'wait', 'kill'", "did you mean 'output'?"]),
        ({"command": None}, ["'command' is missing"]),
        (None, ["'command' is missing"]),
    ],
)
def test_what_cannot_be_understood_is_refused_with_every_reason(
    given_arguments: dict[str, Any] | None, words: list[str]
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        check_arguments(TOOL, given_arguments)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_absent_arguments_have_their_default_or_are_not_there() -> None:
    assert check_arguments(TOOL, {"command": "x"}) == {"command": "x", "force": False, "mode": "output"}


def test_b114_the_schema_is_closed_and_plain() -> None:
    schema = input_schema(TOOL)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["command"]
    text = json.dumps(schema)
    assert not any(word in text for word in ("anyOf", "oneOf", "$ref", "null", '"title"'))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*TOOL.properties, "other"]), JSON))
def test_any_json_is_either_refused_or_has_the_types_of_the_schema(given_arguments: dict[str, Any]) -> None:
    types = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
    try:
        checked = check_arguments(TOOL, given_arguments)
    except InvalidRequestError as refusal:
        assert str(refusal).isprintable() or "\n" not in str(refusal)
        return
    assert checked["command"] is not None
    for name, value in checked.items():
        assert isinstance(value, types[TOOL.properties[name]["type"]])


@given(st.text(max_size=20))
def test_the_nearest_name_is_a_known_one_or_none(name: str) -> None:
    assert nearest(name, ("exec", "read_file")) in (None, "exec", "read_file")
