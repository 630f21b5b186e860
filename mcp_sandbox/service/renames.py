"""Which deleted and added files are one that was renamed: of the same content, or of one that is much the same."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_sandbox.core.differences import Change
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.core.sandbox import WORKSPACE

__all__ = ["Entry", "candidates", "with_renames"]

_LEAST_PERCENT: Final = 50
_MOST_PAIRS: Final = 2_500
"""Pairs of files whose lines are counted; beyond, only equal ones are found."""
_MOST_FILES: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change for a reader."""

    change: Change
    source: str = ""
    """Where the file was before, if it was renamed; `change` is then what became of its content, under its new path."""
    similarity: int = 100


def candidates(changes: Sequence[Change]) -> list[str]:
    """Return the paths whose texts `with_renames` needs; none where there are too many, or nothing to pair."""
    gone, new = _gone(changes), _new(changes)
    if not gone or not new or len(gone) + len(new) > _MOST_FILES:
        return []
    return [change.path for change in (*gone, *new)]


def with_renames(changes: Sequence[Change]) -> list[Entry]:
    """Return changes with those of one renamed file as one, by path. Only files that bring their text are looked at."""
    pairs = dict(_pairs(changes)) if candidates(changes) else {}
    taken = {old.path for old, _ in pairs.values()}
    entries: list[Entry] = []
    for change in changes:
        if (found := pairs.get(change.path)) is not None:
            old, similarity = found
            entries.append(
                Entry(
                    change=Change(
                        path=change.path, before=old.before, after=change.after, content_differs=similarity < 100
                    ),
                    source=old.path, similarity=similarity,
                )
            )  # fmt: skip
        elif change.path not in taken:
            entries.append(Entry(change=change))
    return entries


def _pairs(changes: Sequence[Change]) -> "Iterator[tuple[str, tuple[Change, int]]]":
    by_content: defaultdict[bytes, list[Change]] = defaultdict(list)
    for old in _gone(changes):
        if text := _text(old):
            by_content[text].append(old)
    rest: list[Change] = []
    for new in _new(changes):
        text = _text(new)
        if text and (same := by_content.get(text)):
            old = next((each for each in same if _name(each) == _name(new)), same[0])
            same.remove(old)
            yield new.path, (old, 100)
        elif text:
            rest.append(new)
    left = [old for same in by_content.values() for old in same]
    if len(left) * len(rest) > _MOST_PAIRS:
        return
    lines = {id(change): Counter(_text(change).splitlines(keepends=True)) for change in (*left, *rest)}
    scored = [
        (_percent(lines[id(old)], lines[id(new)], max(len(_text(old)), len(_text(new)))), old, new)
        for old in left
        for new in rest
    ]
    used: set[int] = set()
    for percent, old, new in sorted(scored, key=lambda each: (-each[0], each[1].path, each[2].path)):
        if percent >= _LEAST_PERCENT and not used & {id(old), id(new)}:
            used |= {id(old), id(new)}
            yield new.path, (old, min(percent, 99))


def _percent(old: "Counter[bytes]", new: "Counter[bytes]", whole: int) -> int:
    return 100 * sum(len(line) * count for line, count in (old & new).items()) // whole


def _gone(changes: Sequence[Change]) -> list[Change]:
    return [each for each in changes if each.after is None and _is_file(each)]


def _new(changes: Sequence[Change]) -> list[Change]:
    return [each for each in changes if each.before is None and _is_file(each)]


def _is_file(change: Change) -> bool:
    side = change.before or change.after
    inside = change.path.startswith(f"{WORKSPACE}/")
    return inside and side is not None and side.kind is FileKind.FILE and side.size_bytes > 0


def _text(change: Change) -> bytes:
    side = change.before or change.after
    return (side.text if side is not None else None) or b""


def _name(change: Change) -> str:
    return change.path.rpartition("/")[2]
