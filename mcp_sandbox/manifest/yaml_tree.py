"""YAML as plain data with the line of every key: the part of it that a hostile file can do nothing with.

There are no anchors, aliases, tags, merges or further documents, every key is there once, and nesting and size are
bounded, so reading takes time and memory in proportion to the file. A scalar stays the text that it is (`1.10`, `no`,
`0123`), and what it means is decided by the field that it is given to; a plain `null`, `~` or nothing is `None`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from mcp_sandbox.manifest.problems import ManifestError, Problem

__all__ = ["MOST_BYTES", "Place", "YamlTree", "read_yaml"]

MOST_BYTES: Final = 256 * 1024
_MOST_DEPTH: Final = 12
_MOST_NODES: Final = 5_000
_NOTHING: Final = ("", "~", "null", "Null", "NULL")
_EVENTS: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_parse: Final[Any] = getattr(yaml, "parse")  # noqa: B009 (whose types are not known)

Place = tuple[str | int, ...]
"""Keys and positions from the top down."""


@dataclass(frozen=True, slots=True)
class YamlTree:
    """What a file says, and where."""

    value: object
    lines: dict[Place, int] = field(default_factory=dict[Place, int])

    def line(self, place: Place) -> int:
        """Return the line of a key, or of the nearest one above it; 0 if there is none."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 0)


def read_yaml(data: bytes, name: str) -> YamlTree:
    """Return what YAML says.

    Args:
        data: The file.
        name: What it is called, for errors.

    Raises:
        ManifestError: It is no YAML, or uses what a manifest may not.
    """
    if len(data) > MOST_BYTES:
        raise ManifestError(name, [Problem(0, "", f"it is larger than {MOST_BYTES // 1024} KiB")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ManifestError(name, [Problem(line, "", "it is not UTF-8")]) from None
    reading = _Reading(name)
    try:
        return reading.tree(_parse(text, Loader=_EVENTS))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise ManifestError(name, [Problem(line, "", f"it is no YAML: {error.problem or error.context}")]) from None
    except yaml.YAMLError:
        raise ManifestError(name, [Problem(0, "", "it is no YAML: it holds characters that are not text")]) from None


class _Reading:
    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: dict[Place, int] = {}
        self._nodes = 0

    def tree(self, events: Iterator[Any]) -> YamlTree:
        value: object = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._refused(event, "there may be one document only")
            elif isinstance(event, yaml.NodeEvent):
                value = self._node(event, events, ())
        return YamlTree(value, self._lines)

    def _node(self, event: Any, events: Iterator[Any], place: Place) -> object:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._refused(event, "anchors and aliases (&, *) cannot be used; repeat what they stand for")
        if event.tag is not None:
            raise self._refused(event, "tags (!) cannot be used")
        if len(place) > _MOST_DEPTH:
            raise self._refused(event, f"it is nested more than {_MOST_DEPTH} levels deep")
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise self._refused(event, f"it has more than {_MOST_NODES} keys and entries")
        self._lines.setdefault(place, event.start_mark.line + 1)
        if isinstance(event, yaml.ScalarEvent):
            return None if not event.style and event.value in _NOTHING else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(events, place)
        return self._mapping(events, place)

    def _sequence(self, events: Iterator[Any], place: Place) -> list[object]:
        items: list[object] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self._node(event, events, (*place, len(items))))
        return items

    def _mapping(self, events: Iterator[Any], place: Place) -> dict[str, object]:
        found: dict[str, object] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._refused(event, "a key must be a word")
            key = str(event.value)
            if event.anchor is not None or event.tag is not None:
                raise self._refused(event, "a key must be a plain word")
            if key in found:
                first = self._lines[(*place, key)]
                raise self._refused(event, f"{key!r} is there twice, first in line {first}")
            self._lines[(*place, key)] = event.start_mark.line + 1
            found[key] = self._node(next(events), events, (*place, key))
        return found

    def _refused(self, event: Any, what: str) -> ManifestError:
        return ManifestError(self._name, [Problem(event.start_mark.line + 1, "", what)])
