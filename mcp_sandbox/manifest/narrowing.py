"""Layers of what was said, from the administrator down: a lower one may narrow what an upper one says, never widen it.

Pure: values in, what holds and what was refused out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from mcp_sandbox.manifest.keys import OPERATORS_ALONE, Kind, kind_of, rank, shown, with_defaults

__all__ = ["COMMAND_LINE", "DEFAULT", "Held", "Layer", "Narrowed", "Refused", "covers", "narrow"]

COMMAND_LINE: Final = "command line"
"""The name of the layer between the user's file and the project: what it narrows, somebody wanted so just now."""
DEFAULT: Final = "default"
"""The source of what holds where nobody says anything."""


_CHOSEN_FROM: Final[Mapping[str, str]] = {
    "sandbox.provider": "policy.providers",
    "sandbox.fallback": "policy.providers",
    "environment.image": "policy.images",
}
"""Keys whose values another key limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one source says."""

    name: str
    """admin, user, command line or project."""
    source: str
    """What it is called, for a reader."""
    values: Mapping[str, object]
    """By key."""
    trusted: bool = True
    """Whether it may go beyond what holds where nobody says anything."""


@dataclass(frozen=True, slots=True)
class Held:
    """A value that holds, and who said it."""

    value: object
    sources: tuple[str, ...]
    by_hand: bool = False
    """Whether the command line said it, alone."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A value that a layer may not say."""

    key: str
    source: str
    why: str
    fix: str

    def __str__(self) -> str:
        """Return it for a reader."""
        return f"{self.key} in {self.source}: {self.why}"


@dataclass(slots=True)
class Narrowed:
    """What became of all layers."""

    held: dict[str, Held] = field(default_factory=dict[str, Held])
    refused: list[Refused] = field(default_factory=list[Refused])
    told: list[str] = field(default_factory=list[str])
    """What was asked for and is not so, although nobody did wrong."""

    def value(self, key: str) -> object:
        """Return what holds for a key, or `None`."""
        held = self.held.get(key)
        return None if held is None else held.value


def narrow(layers: Sequence[Layer]) -> Narrowed:
    """Return what holds.

    Args:
        layers: From the top down.
    """
    done = Narrowed()
    for layer in layers:
        for key, value in layer.values.items():
            _take(done, layer, key, value)
    _drop_others_fallback(done, [layer.source for layer in layers])
    for key, offered in _CHOSEN_FROM.items():
        _refuse_others(done, key, offered)
    return done


def _drop_others_fallback(done: Narrowed, order: Sequence[str]) -> None:
    """Let nobody replace a provider that somebody above them has named: what is taken instead may isolate less."""
    provider, fallback = done.held.get("sandbox.provider"), done.held.get("sandbox.fallback")
    if provider is None or fallback is None:
        return
    if min(map(order.index, fallback.sources)) > max(map(order.index, provider.sources)):
        done.told.append(
            f"sandbox.fallback: {_by(provider)} says {shown('sandbox.provider', provider.value)}, so what "
            f"{_by(fallback)} would take instead does not hold"
        )
        del done.held["sandbox.fallback"]


def _refuse_others(done: Narrowed, key: str, offered: str) -> None:
    chosen, allowed = done.held.get(key), done.held.get(offered)
    if chosen is None or allowed is None:
        return
    beyond = [each for each in _list(chosen.value) if each not in _list(allowed.value)]
    if beyond:
        why = f"{shown(key, tuple(beyond))} is not among what {_by(allowed)} allows ({shown(key, allowed.value)})"
        fix = f"Choose another one, or change {_by(allowed)}"
        done.refused.append(Refused(key, " and ".join(chosen.sources), why, fix))


def _take(done: Narrowed, layer: Layer, key: str, value: object) -> None:
    if layer.name == "project" and key.partition(".")[0] in OPERATORS_ALONE:
        why = "a project may not say this"
        fix = "Say it in ~/.config/mcp-sandbox/config.yaml, and remove it from the project"
        done.refused.append(Refused(key, layer.source, why, fix))
        return
    above = done.held.get(key)
    if above is None:
        ceilings = {} if layer.trusted else with_defaults({})
        if key not in ceilings:
            done.held[key] = _said(layer, value)
            return
        above = Held(ceilings[key], (DEFAULT,))
    kept = _combined(done, layer, key, above, value)
    done.held[key] = kept


def _combined(done: Narrowed, layer: Layer, key: str, above: Held, value: object) -> Held:
    match kind_of(key):
        case Kind.LEAST:
            return _ranked(done, layer, key, above, value, cast("float", value), cast("float", above.value))
        case Kind.RANKED:
            return _ranked(done, layer, key, above, value, rank(key, value), rank(key, above.value))
        case Kind.CUT:
            return _cut(done, layer, key, above, _list(value))
        case Kind.JOINED:
            more = tuple(each for each in _list(value) if each not in _list(above.value))
            return Held((*_list(above.value), *more), (*above.sources, layer.source)) if more else above
        case Kind.CHOICE:
            if value != above.value:
                done.told.append(_overruled(key, above, value, layer))
            return above


def _ranked(done: Narrowed, layer: Layer, key: str, above: Held, value: object, wide: float, ceiling: float) -> Held:
    if wide < ceiling:
        return _said(layer, value)
    if wide > ceiling and above.by_hand:
        done.told.append(_overruled(key, above, value, layer))
    elif wide > ceiling:
        why = f"{shown(key, value)} is more than {shown(key, above.value)}, which {_by(above)} allows"
        done.refused.append(Refused(key, layer.source, why, _way_out(above, layer)))
    return above


def _cut(done: Narrowed, layer: Layer, key: str, above: Held, wanted: "tuple[object, ...]") -> Held:
    ceiling = _list(above.value)
    kept = tuple(each for each in wanted if any(covers(key, wide, each) for wide in ceiling))
    beyond = [each for each in wanted if each not in kept]
    if beyond and above.by_hand:
        done.told.append(_overruled(key, above, tuple(beyond), layer))
    elif beyond and key == "allowed_env":
        done.told.append(
            f"{key}: {shown(key, tuple(beyond))} of {layer.source} is not passed on, "
            f"because {_by(above)} does not list it"
        )
    elif beyond:
        why = f"{shown(key, tuple(beyond))} is not among what {_by(above)} allows ({shown(key, ceiling)})"
        done.refused.append(Refused(key, layer.source, why, _way_out(above, layer)))
    return _said(layer, kept) if set(map(repr, kept)) != set(map(repr, ceiling)) else above


def covers(key: str, wide: object, narrow: object) -> bool:
    """Whether an entry of a list allows all that another one does."""
    if wide == narrow:
        return True
    if not (isinstance(wide, str) and isinstance(narrow, str)):
        return False
    if key == "capabilities.network.allowed" and wide.startswith("*."):
        return narrow.endswith(wide[1:]) and len(narrow) > len(wide) - 1
    if key == "capabilities.commands.allowed":
        return narrow.split()[: len(wide.split())] == wide.split()
    if key == "capabilities.filesystem.allowed" and wide.endswith("/**"):
        return narrow.startswith(wide[:-2]) and ".." not in narrow.split("/")
    return False


def _said(layer: Layer, value: object) -> Held:
    return Held(value, (layer.source,), layer.name == COMMAND_LINE)


def _overruled(key: str, above: Held, value: object, layer: Layer) -> str:
    return f"{key}: {_by(above)} says {shown(key, above.value)}, so {shown(key, value)} of {layer.source} does not hold"


def _list(value: object) -> "tuple[object, ...]":
    return cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)


def _by(above: Held) -> str:
    return "the usual setting" if above.sources == (DEFAULT,) else " and ".join(above.sources)


def _way_out(above: Held, layer: Layer) -> str:
    if above.sources == (DEFAULT,):
        return f"Take it out of {layer.source}, or say yes to that file as it is with `mcp-sandbox trust`"
    return f"Take it out of {layer.source}, or change {_by(above)}"
