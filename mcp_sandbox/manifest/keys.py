"""A manifest as one row of keys, each with a value, and what a lower layer may do with each of them."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, cast

from pydantic import BaseModel

from mcp_sandbox.core.wording import size
from mcp_sandbox.manifest.model import Manifest
from mcp_sandbox.manifest.problems import printable

__all__ = ["DEFAULTS", "OPERATORS_ALONE", "Kind", "flat", "kind_of", "nested", "rank", "shown", "with_defaults"]


class Kind(StrEnum):
    """What becomes of a key that two layers say."""

    LEAST = "the smaller one holds"
    CUT = "what both list holds"
    JOINED = "what either lists holds"
    RANKED = "the stricter one holds"
    CHOICE = "the upper one holds"


_KINDS: Final[Mapping[str, Kind]] = {
    "sandbox.resources.cpu": Kind.LEAST,
    "sandbox.resources.memory": Kind.LEAST,
    "sandbox.resources.disk": Kind.LEAST,
    "sandbox.timeout": Kind.LEAST,
    "sandbox.idle": Kind.LEAST,
    "limits.pids": Kind.LEAST,
    "limits.open_files": Kind.LEAST,
    "limits.inodes": Kind.LEAST,
    "limits.best_effort": Kind.RANKED,
    "capabilities.filesystem.allowed": Kind.CUT,
    "capabilities.filesystem.denied": Kind.JOINED,
    "capabilities.network.allowed": Kind.CUT,
    "capabilities.network.denied": Kind.JOINED,
    "capabilities.commands.allowed": Kind.CUT,
    "capabilities.commands.denied": Kind.JOINED,
    "capabilities.commands.ask": Kind.JOINED,
    "capabilities.commands.rules": Kind.JOINED,
    "capabilities.commands.default": Kind.RANKED,
    "capabilities.commands.undecidable": Kind.RANKED,
    "capabilities.commands.remove": Kind.JOINED,
    "capabilities.commands.mode": Kind.RANKED,
    "allowed_env": Kind.CUT,
    "policy.providers": Kind.CUT,
    "policy.images": Kind.CUT,
    "policy.min_isolation": Kind.RANKED,
    "workspace.mode": Kind.RANKED,
}
_RANKS: Final[Mapping[str, Mapping[object, int]]] = {
    "limits.best_effort": {False: 0, True: 1},
    "capabilities.commands.default": {"deny": 0, "ask": 1, "allow": 2},
    "capabilities.commands.undecidable": {"deny": 0, "ask": 1},
    "capabilities.commands.mode": {"strict": 0, "advisory": 1},
    "policy.min_isolation": {"microvm": 0, "user_kernel": 1, "container": 2, "namespace": 3},
    "workspace.mode": {"empty": 0, "overlay": 1, "copy": 1, "mount": 2},
}
"""From the strictest on."""
OPERATORS_ALONE: Final = ("secrets", "policy")
"""What a project may never say."""
DEFAULTS: Final[Mapping[str, object]] = {
    "limits.pids": 512,
    "limits.open_files": 65_536,
    "limits.best_effort": False,
    "workspace.mode": "overlay",
    "allowed_env": (),
}
"""What holds where nobody says anything. A project goes beyond it with the user's explicit yes only."""
_OPEN: Final = ("env", "files", "services", "secrets", "sandbox.options")
"""Groups whose keys are names that the writer chose."""
_SIZES: Final = ("sandbox.resources.memory", "sandbox.resources.disk")
_SEPARATOR: Final = "."


def kind_of(key: str) -> Kind:
    """Return what a lower layer may do with a key."""
    return _KINDS.get(key, Kind.CHOICE)


def rank(key: str, value: object) -> int:
    """Return how strict a value is; less is stricter."""
    return _RANKS[key][value]


def with_defaults(held: Mapping[str, object]) -> "dict[str, object]":
    """Return the ceilings for a layer that nobody trusts: what was said above it, else what holds anyway."""
    return {**DEFAULTS, **held}


def flat(manifest: Manifest) -> "dict[str, object]":
    """Return what a manifest says, by key; the keys that it does not say are not there."""
    return dict(_flat(manifest, ""))


def _flat(group: BaseModel, prefix: str) -> Iterator[tuple[str, object]]:
    for name, field in type(group).model_fields.items():
        value: Any = getattr(group, name)
        key = f"{prefix}{field.alias or name}"
        if value is None:
            continue
        if key in _OPEN:
            for entry, inner in value.items():
                if key == "sandbox.options":
                    yield from ((f"{key}.{entry}.{option}", text) for option, text in inner.items())
                else:
                    yield f"{key}.{entry}", _plain(inner)
        elif isinstance(value, BaseModel):
            yield from _flat(value, f"{key}.")
        else:
            yield key, _plain(value)


def _plain(value: Any) -> object:
    """Return a value without models: equal ones are equal."""
    if isinstance(value, BaseModel):
        given = {
            field.alias or name: _plain(getattr(value, name))
            for name, field in type(value).model_fields.items()
            if getattr(value, name) is not None
        }
        short = getattr(value, "short", None)
        return given[short] if short is not None and set(given) == {short} else given
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in cast("tuple[object, ...]", value))
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in cast("Mapping[str, object]", value).items()}
    return value


def nested(values: Mapping[str, object]) -> "dict[str, Any]":
    """Return values by key as a manifest is written."""
    whole: dict[str, Any] = {}
    for key, value in values.items():
        group = next((each for each in _OPEN if key.startswith(f"{each}.")), "")
        parts = [*group.split(_SEPARATOR), key[len(group) + 1 :]] if group else key.split(_SEPARATOR)
        if group == "sandbox.options":
            parts = [*group.split(_SEPARATOR), *key[len(group) + 1 :].split(_SEPARATOR, 1)]
        inside = whole
        for part in parts[:-1]:
            inside = inside.setdefault(part, {})
        inside[parts[-1]] = list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value
    return whole


def shown(key: str, value: object) -> str:
    """Return a value for a reader."""
    if key in _SIZES and isinstance(value, int):
        return size(value)
    if key in ("sandbox.timeout", "sandbox.idle"):
        return f"{value:g} s"
    if isinstance(value, tuple):
        return ", ".join(shown("", each) for each in cast("tuple[object, ...]", value)) or "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return " ".join(f"{name}={shown('', each)}" for name, each in cast("dict[str, object]", value).items())
    return printable(str(value))
