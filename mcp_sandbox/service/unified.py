"""Changes as a unified diff, in the form that `git apply` takes in a copy of the workspace.

What lies elsewhere is shown as comments, which `git apply` skips: it would make a file `etc/x` in the project of it.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from mcp_sandbox.core.differences import Action, Change, Side
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.core.sandbox import WORKSPACE

__all__ = ["unified"]

_CONTEXT: Final = 3
_MOST_EDITS: Final = 400
"""Beyond, all between the first and the last difference is shown as replaced: the time grows with the square of it."""
_KINDS: Final = {FileKind.FILE: 0o100000, FileKind.SYMLINK: 0o120000}
_NOTHING: Final = "/dev/null"
_ESCAPES: Final = {
    **{"\a": "\\a", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\v": "\\v", "\f": "\\f", "\r": "\\r"},
    **{'"': '\\"', "\\": "\\\\"},
}
_NO_NEWLINE: Final = "\\ No newline at end of file\n"


class _Block(NamedTuple):
    """Lines of the old text that others of the new text stand for."""

    old: slice
    new: slice


def unified(change: Change, source: str = "", similarity: int = 100) -> str:
    """Return the diff of one path; empty where there is nothing that a diff could say, as for a directory.

    Args:
        change: What changed. Of a file that was renamed: what its content was and is, under its new path.
        source: Its old path, if it was renamed.
        similarity: How much of its content is the same then, in percent.

    The time grows with what changed, up to a second: call it in a thread where others wait.
    """
    if change.action is Action.TYPE_CHANGED:
        gone = Change(path=change.path, before=change.before, after=None)
        return unified(gone) + unified(Change(path=change.path, before=None, after=change.after))
    if any(side.kind not in _KINDS for side in (change.before, change.after) if side is not None):
        return ""
    inside = change.path.startswith(f"{WORKSPACE}/")
    name = change.path.removeprefix(f"{WORKSPACE}/" if inside else "/")
    old = source.removeprefix(f"{WORKSPACE}/" if inside else "/") or name
    head = f"diff --git {_quoted(f'a/{old}')} {_quoted(f'b/{name}')}\n"
    text = "".join([head, *_modes(change), *_renamed(old, name, similarity), *_content(change, old, name)])
    return text if inside else _commented(text)


def _quoted(name: str) -> str:
    """Return a name as git writes it: in quotes and with escapes where it could be taken for something else."""
    if name.isprintable() and not {'"', "\\"} & set(name):
        return name
    return '"' + "".join(_escaped(character) for character in name) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return character if character.isprintable() else "".join(f"\\{byte:03o}" for byte in os.fsencode(character))


def _file(name: str) -> str:
    """Return a name for a line that it ends; a tab tells spaces in it from what `patch` expects behind it."""
    quoted = _quoted(name)
    return f"{quoted}\t" if " " in quoted and not quoted.startswith('"') else quoted


def _commented(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.removesuffix("\n").split("\n"))


def _renamed(old: str, name: str, similarity: int) -> Iterator[str]:
    if old != name:
        yield f"similarity index {similarity}%\nrename from {_quoted(old)}\nrename to {_quoted(name)}\n"


def _modes(change: Change) -> Iterator[str]:
    before, after = _mode(change.before), _mode(change.after)
    if change.before is None:
        yield f"new file mode {after}\n"
    elif change.after is None:
        yield f"deleted file mode {before}\n"
    elif before != after:
        yield f"old mode {before}\nnew mode {after}\n"


def _mode(side: Side | None) -> str:
    return "" if side is None else f"{_KINDS[side.kind] | (side.mode if side.kind is FileKind.FILE else 0):o}"


def _content(change: Change, old_path: str, name: str) -> Iterator[str]:
    if not change.content_differs:
        return
    old_name = f"a/{old_path}" if change.before is not None else _NOTHING
    new_name = f"b/{name}" if change.after is not None else _NOTHING
    old, new = _lines(change.before), _lines(change.after)
    if old is None or new is None:
        yield f"Binary files {_quoted(old_name)} and {_quoted(new_name)} differ\n"
        return
    blocks = _blocks(old, new)
    if blocks:
        yield f"--- {_file(old_name)}\n+++ {_file(new_name)}\n"
    for hunk in _hunks(blocks):
        yield from _hunk(hunk, old, new)


def _lines(side: Side | None) -> list[str] | None:
    """Return the lines of a text with their ends; `None` for what is none, or was too large to be fetched."""
    if side is None:
        return []
    if side.text is None or b"\0" in side.text:
        return None
    try:
        parts = side.text.decode().split("\n")
    except UnicodeDecodeError:
        return None
    return [f"{part}\n" for part in parts[:-1]] + [part for part in parts[-1:] if part]


def _blocks(old: Sequence[str], new: Sequence[str]) -> list[_Block]:
    shorter, start, end = min(len(old), len(new)), 0, 0
    while start < shorter and old[start] == new[start]:
        start += 1
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    inner_old, inner_new = old[start : len(old) - end], new[start : len(new) - end]
    found = _shortest(inner_old, inner_new)
    if found is None:
        found = [_Block(slice(0, len(inner_old)), slice(0, len(inner_new)))]
    return [_Block(_shifted(block.old, start), _shifted(block.new, start)) for block in found]


def _shifted(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def _shortest(old: Sequence[str], new: Sequence[str]) -> list[_Block] | None:
    """Return the shortest way from one to the other (Myers, 1986); `None` if it is longer than `_MOST_EDITS`."""
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(min(_MOST_EDITS, len(old) + len(new)) + 1):
        trace.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            down = _is_down(furthest, diagonal, edits)
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            while x < len(old) and x - diagonal < len(new) and old[x] == new[x - diagonal]:
                x += 1
            furthest[diagonal] = x
            if x >= len(old) and x - diagonal >= len(new):
                return _walked_back(trace, len(old), len(new))
    return None


def _is_down(furthest: dict[int, int], diagonal: int, edits: int) -> bool:
    """Whether a line is added on the way to a diagonal; else one is taken away."""
    return diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])


def _walked_back(trace: Sequence[dict[int, int]], x: int, y: int) -> list[_Block]:
    blocks: list[_Block] = []
    for edits in range(len(trace) - 1, 0, -1):
        furthest, diagonal = trace[edits], x - y
        down = _is_down(furthest, diagonal, edits)
        before = diagonal + 1 if down else diagonal - 1
        x = furthest[before]
        y = x - before
        step = _Block(slice(x, x if down else x + 1), slice(y, y + 1 if down else y))
        if blocks and (blocks[-1].old.start, blocks[-1].new.start) == (step.old.stop, step.new.stop):
            last = blocks.pop()
            step = _Block(slice(step.old.start, last.old.stop), slice(step.new.start, last.new.stop))
        blocks.append(step)
    return blocks[::-1]


def _hunks(blocks: Sequence[_Block]) -> Iterator[list[_Block]]:
    """Yield blocks that stand so near to each other that their contexts touch."""
    hunk: list[_Block] = []
    for block in blocks:
        if hunk and block.old.start - hunk[-1].old.stop > 2 * _CONTEXT:
            yield hunk
            hunk = []
        hunk.append(block)
    if hunk:
        yield hunk


def _hunk(blocks: Sequence[_Block], old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    first, last = blocks[0], blocks[-1]
    before, after = min(_CONTEXT, first.old.start), min(_CONTEXT, len(old) - last.old.stop)
    at, end = first.old.start - before, last.old.stop + after
    yield f"@@ -{_range(at, end)} +{_range(first.new.start - before, last.new.stop + after)} @@\n"
    for block in blocks:
        yield from _marked(" ", old[at : block.old.start])
        yield from _marked("-", old[block.old])
        yield from _marked("+", new[block.new])
        at = block.old.stop
    yield from _marked(" ", old[at:end])


def _range(start: int, stop: int) -> str:
    count = stop - start
    return f"{start + (count > 0)},{count}" if count != 1 else f"{start + 1}"


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n{_NO_NEWLINE}"
