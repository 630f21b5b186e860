"""Lower layers narrow and never widen, for every key, whatever they say."""

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_sandbox.manifest.keys import Kind, kind_of, rank, with_defaults
from mcp_sandbox.manifest.narrowing import COMMAND_LINE, Layer, Narrowed, covers, narrow

__all__: list[str] = []

_NAMES = st.sampled_from(["a.test", "b.test", "*.test", "sub.b.test", "/workspace/**", "/workspace/src/**", "X", "Y"])
_LISTS = st.lists(_NAMES, max_size=4, unique=True).map(tuple)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "sandbox.resources.memory": st.integers(1 << 20, 1 << 34),
    "sandbox.resources.cpu": st.floats(0.1, 64),
    "sandbox.timeout": st.floats(1, 10_000),
    "limits.pids": st.integers(8, 5000),
    "limits.best_effort": st.booleans(),
    "workspace.mode": st.sampled_from(["overlay", "copy", "mount", "empty"]),
    "policy.min_isolation": st.sampled_from(["namespace", "container", "user_kernel", "microvm"]),
    "capabilities.network.allowed": _LISTS,
    "capabilities.network.denied": _LISTS,
    "capabilities.filesystem.allowed": _LISTS,
    "capabilities.filesystem.denied": _LISTS,
    "capabilities.commands.denied": _LISTS,
    "allowed_env": _LISTS,
    "sandbox.provider": st.sampled_from(["local", "docker"]),
    "env.A": st.sampled_from(["1", "2"]),
    "environment.image": st.sampled_from(["dev", "prod"]),
}
_LAYERS = st.fixed_dictionaries({}, optional=_VALUES)
_NAMED = ("admin", "user", COMMAND_LINE, "project")


def layer(name: str, values: dict[str, object], *, trusted: bool = True) -> Layer:
    """Return a layer whose source is called like it."""
    return Layer(name=name, source=name, values=values, trusted=trusted)


def is_within(key: str, ceiling: object, value: object) -> bool:
    """Whether a value allows nothing that a ceiling does not."""
    match kind_of(key):
        case Kind.LEAST:
            return cast("float", value) <= cast("float", ceiling)
        case Kind.RANKED:
            return rank(key, value) <= rank(key, ceiling)
        case Kind.CUT:
            wide = cast("tuple[object, ...]", ceiling)
            return all(any(covers(key, each, one) for each in wide) for one in cast("tuple[object, ...]", value))
        case Kind.JOINED:
            return set(cast("tuple[object, ...]", ceiling)) <= set(cast("tuple[object, ...]", value))
        case Kind.CHOICE:
            return value == ceiling


@settings(max_examples=100, deadline=None)
@given(st.lists(_LAYERS, min_size=4, max_size=4), st.booleans())
def test_cfg01_what_holds_is_within_what_every_layer_above_said(said: list[dict[str, object]], trusted: bool) -> None:
    layers = [
        layer(name, values, trusted=trusted or name != "project") for name, values in zip(_NAMED, said, strict=True)
    ]
    for count in range(1, len(layers)):
        above, all_of_them = narrow(layers[:count]), narrow(layers)
        for key, held in above.held.items():
            assert is_within(key, held.value, all_of_them.value(key)), key


@settings(max_examples=100, deadline=None)
@given(_LAYERS)
def test_cfg01_a_project_that_nobody_trusts_stays_within_what_holds_anyway(said: dict[str, object]) -> None:
    done = narrow([layer("project", said, trusted=False)])
    for key, ceiling in with_defaults({}).items():
        if key in said:
            assert is_within(key, ceiling, done.value(key)), key


@settings(max_examples=100, deadline=None)
@given(_LAYERS, _LAYERS)
def test_every_value_that_does_not_hold_is_named(upper: dict[str, object], lower: dict[str, object]) -> None:
    done = narrow([layer("user", upper), layer("project", lower)])
    named = [each.key for each in done.refused] + [told.partition(":")[0] for told in done.told]
    for key, value in lower.items():
        held = done.value(key)
        if kind_of(key) is Kind.JOINED:
            assert set(cast("tuple[object, ...]", value)) <= set(cast("tuple[object, ...]", held))
        elif key.startswith("policy."):
            assert key in named
        elif held != value and not (kind_of(key) is Kind.CUT and set(cast(Any, held)) == set(cast(Any, value))):
            assert key in named or kind_of(key) is Kind.RANKED, key


@settings(max_examples=100, deadline=None)
@given(_LAYERS, _LAYERS)
def test_saying_something_twice_changes_nothing(upper: dict[str, object], lower: dict[str, object]) -> None:
    once = narrow([layer("user", upper), layer("project", lower)])
    twice = narrow([layer("user", upper), layer("project", lower), layer("project", lower)])
    assert {key: each.value for key, each in once.held.items()} == {key: each.value for key, each in twice.held.items()}


def done(upper: dict[str, object], lower: dict[str, object], name: str = "user") -> Narrowed:
    """Narrow what a layer says by a project."""
    return narrow([layer(name, upper), layer("project", lower)])


def test_more_than_an_upper_layer_allows_is_refused_by_key_and_by_who_said_it() -> None:
    (refused,) = done({"sandbox.resources.memory": 1 << 30}, {"sandbox.resources.memory": 1 << 31}).refused
    assert (refused.key, refused.source) == ("sandbox.resources.memory", "project")
    assert refused.why == "2 GiB is more than 1 GiB, which user allows"


def test_what_the_command_line_narrows_is_told_and_not_refused() -> None:
    found = done({"capabilities.network.allowed": ()}, {"capabilities.network.allowed": ("a.test",)}, COMMAND_LINE)
    assert (found.refused, found.value("capabilities.network.allowed")) == ([], ())
    assert found.told == ["capabilities.network.allowed: command line says nothing, so a.test of project does not hold"]


@pytest.mark.parametrize("key", ["secrets.A", "policy.images", "policy.providers"])
def test_cfg06_a_project_never_says_what_operators_alone_do(key: str) -> None:
    found = narrow([layer("project", {key: ("x",)})])
    assert found.held == {}
    assert [each.key for each in found.refused] == [key]


@pytest.mark.parametrize(
    ("key", "wide", "narrow_one", "expected"),
    [
        ("capabilities.network.allowed", "*.api.test", "sub.api.test", True),
        ("capabilities.network.allowed", "*.api.test", "api.test", False),
        ("capabilities.network.allowed", "*.api.test", "evilapi.test", False),
        ("capabilities.network.allowed", "*.api.test", "api.test.evil.test", False),
        ("capabilities.filesystem.allowed", "/workspace/**", "/workspace/src/**", True),
        ("capabilities.filesystem.allowed", "/workspace/**", "/workspace/../etc/**", False),
        ("capabilities.filesystem.allowed", "/workspace/**", "/workspacex/**", False),
        ("allowed_env", "*", "HOME", False),
    ],
)
def test_net10_what_an_entry_allows(key: str, wide: str, narrow_one: str, expected: bool) -> None:
    assert covers(key, wide, narrow_one) is expected


def test_a_provider_that_somebody_named_is_replaced_by_nobody_below() -> None:
    named: dict[str, object] = {"sandbox.provider": "gvisor"}
    wanted: dict[str, object] = {"sandbox.fallback": ("local",)}
    done = narrow([layer("user", named), layer("project", wanted)])
    assert done.value("sandbox.fallback") is None
    assert "sandbox.fallback: user says gvisor" in done.told[0]
    for layers in ([layer("user", {**named, **wanted})], [layer("project", {**named, **wanted})]):
        assert narrow(layers).value("sandbox.fallback") == ("local",)
    assert narrow([layer("project", wanted)]).value("sandbox.fallback") == ("local",)
