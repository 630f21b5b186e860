"""Changes as lines: one line each for a summary, or a diff; and lines that nothing in them can disguise."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final

from mcp_sandbox.core.differences import Action, Side
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.service.paths import display
from mcp_sandbox.service.quantities import size
from mcp_sandbox.service.renames import Entry
from mcp_sandbox.service.unified import unified

__all__ = ["diff_of", "summary_line", "totals", "visible"]

_LETTERS: Final = {Action.ADDED: "A", Action.DELETED: "D", Action.MODIFIED: "M", Action.TYPE_CHANGED: "T"}
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def summary_line(entry: Entry, *, name: str = "") -> str:
    """Return what became of one path: `M src/app.py  120 B -> 140 B`.

    Args:
        entry: What became of it.
        name: What it is called, if not by its whole path.
    """
    change = entry.change
    details = ", ".join([_sizes(entry), *_modes(entry), *["owner"] * change.owner_differs])
    if entry.source:
        return f"R {display(entry.source)} -> {display(name or change.path)}  {entry.similarity} % the same, {details}"
    return f"{_LETTERS[change.action]} {display(name or change.path)}  {details}"


def totals(entries: Sequence[Entry]) -> str:
    """Return how many there are of each: `2 added, 1 modified`."""
    counts = Counter("renamed" if entry.source else str(entry.change.action) for entry in entries)
    words = [f"{count} {action.replace('_', ' ')}" for action, count in sorted(counts.items())]
    return ", ".join(words) or "nothing changed"


def diff_of(entry: Entry) -> str:
    """Return the diff of one path, or a comment where a diff has nothing to say of it.

    The time grows with what changed, up to a second: call it in a thread where others wait.
    """
    text = unified(entry.change, entry.source, entry.similarity)
    if not text:
        return f"# {summary_line(entry)}\n"
    if "\nBinary files " in text:
        text += f"# {_sizes(entry)}{_why_unshown(entry)}\n"
    return text


def _why_unshown(entry: Entry) -> str:
    sides = [side for side in (entry.change.before, entry.change.after) if side is not None]
    is_large = any(side.text is None and side.kind is FileKind.FILE for side in sides)
    return ", too large to be shown" if is_large else ""


def visible(line: str) -> str:
    """Return a line in which every character can be seen: escapes, bidirectional and zero-width ones by number."""
    if line.isprintable():
        return line
    return "".join(
        letter if letter == "\t" or unicodedata.category(letter) not in _HIDDEN else _escaped(letter) for letter in line
    )


def _escaped(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _sizes(entry: Entry) -> str:
    shown = [_size(side) for side in (entry.change.before, entry.change.after) if side is not None]
    return shown[0] if len(set(shown)) == 1 else " -> ".join(shown)


def _size(side: Side) -> str:
    return size(side.size_bytes) if side.kind is FileKind.FILE else side.kind


def _modes(entry: Entry) -> list[str]:
    before, after = entry.change.before, entry.change.after
    if before is None or after is None or before.mode == after.mode or after.kind is FileKind.SYMLINK:
        return []
    return [f"mode {before.mode:04o} -> {after.mode:04o}"]
