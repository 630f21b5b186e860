"""What a search says: matches as they are found, file by file in the order of their paths, cut to one answer's size."""

from dataclasses import dataclass
from enum import StrEnum

from mcp_sandbox.core.globs import GlobFilter
from mcp_sandbox.service.encodings import decode_line
from mcp_sandbox.service.paging import ANSWER_MAX_CHARS, ANSWER_MAX_LINES
from mcp_sandbox.service.paths import display, label, shorten

__all__ = ["LINE_MAX_BYTES", "Findings", "FoundLine", "OutputMode", "SearchQuery"]

LINE_MAX_BYTES = 1 << 20
"""Longer lines are not searched."""

_SHOWN_CHARS = 500
"""Characters shown of one line, around its match."""
_FRAME_CHARS = 1_500
_FRAME_LINES = 12


class OutputMode(StrEnum):
    """What is told of each file."""

    CONTENT = "content"
    FILES = "files_with_matches"
    COUNT = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """What to look for. `path` is absolute; `glob` is one as for ripgrep."""

    pattern: str
    path: str
    glob: str = ""
    mode: OutputMode = OutputMode.CONTENT
    before: int = 0
    after: int = 0
    case_insensitive: bool = False
    multiline: bool = False
    head_limit: int | None = None
    """Matching lines at most, or files at most in the other modes."""

    @property
    def filter(self) -> GlobFilter:
        """Which files are looked at."""
        return GlobFilter(self.glob)


@dataclass(frozen=True, slots=True)
class FoundLine:
    """A line of a file, as bytes without its line feed."""

    number: int
    raw: bytes
    column: int | None = None
    """Byte at which the first match in it begins; `None` for a line of context."""


class Findings:
    """Collects matches until the answer is `full`.

    Args:
        query: What is asked.
        tree: Whether its path is a directory.
    """

    def __init__(self, query: SearchQuery, *, tree: bool = False) -> None:
        self._query, self._tree = query, tree
        self._with_context = bool(query.before or query.after)
        self._lines: list[str] = []
        self._chars_left = ANSWER_MAX_CHARS - _FRAME_CHARS
        self._path = ""
        self._count = 0
        self._last_number = 0
        self._last_match = 0
        self._pending: list[FoundLine] = []
        self._notes: list[str] = []
        self.matches = 0
        self.files = 0
        self.unreadable = 0
        """Files that could not be opened."""
        self.binary = 0
        """Files that were searched only up to a NUL behind their beginning."""
        self.full = False
        self._limited = False

    def begin(self, path: str) -> None:
        """Turn to a file, by its absolute path."""
        self._path = path
        self._count = self._last_number = self._last_match = 0
        self._pending.clear()

    def add(self, line: FoundLine) -> None:
        """Take the next line of the file: a match, or context of one."""
        if self.full:
            return
        if line.column is None:
            if self._last_match and line.number <= self._last_match + self._query.after:
                self._put([line])
            elif self._query.before:
                self._pending = [*self._pending, line][-self._query.before :]
            return
        if self._query.mode is OutputMode.CONTENT:
            if self._query.head_limit is not None and self.matches >= self._query.head_limit:
                self.full = self._limited = True
                return
            self._put([*(each for each in self._pending if each.number > self._last_number), line])
            self._pending.clear()
            if self.full:
                return
        self._last_match = line.number
        self._count += 1
        self.matches += 1

    @property
    def settled(self) -> bool:
        """Whether nothing that comes in this file can change what is said of it."""
        return self.full or (self._query.mode is OutputMode.FILES and self._count > 0)

    def end(self, *, is_cut: bool = False) -> None:
        """Turn away from the file, whose rest is not searched if binary data cut it off. Idempotent."""
        count, self._count = self._count, 0
        if not count:
            return
        if self._query.mode is not OutputMode.CONTENT:
            if self._query.head_limit is not None and self.files >= self._query.head_limit:
                self.full = self._limited = True
            elif not self.full:
                name = display(shorten(self._path))
                self._emit([f"{name}:{count}" if self._query.mode is OutputMode.COUNT else name])
            if self.full:
                self.matches -= count
                return
        self.files += 1
        self.binary += is_cut and not self.full and self._query.mode is not OutputMode.FILES

    def note(self, text: str) -> None:
        """Add a remark to the end of the answer."""
        self._notes.append(f"[{text}]")

    def text(self) -> str:
        """Return the answer."""
        query = self._query
        facts = [f"matches={self.matches}", f"files={self.files}", f"path={label(query.path)}"]
        if query.mode is OutputMode.FILES:
            facts.pop(0)
        if self.full:
            facts.append("more=yes")
        notes = list(self._notes)
        if self._limited:
            notes.append(f"[there are more; head_limit={query.head_limit} ended the search]")
        elif self.full:
            notes.append("[there are more, the answer is full; narrow pattern, path or glob, or change output_mode]")
        if self.unreadable:
            notes.append(f"[{self.unreadable:,} files or directories could not be read]")
        if self.binary:
            notes.append(f"[{self.binary:,} files were searched only up to binary data in them]")
        if self._tree and not self.files and not self.full:
            notes.append(
                "[hidden and dependency directories, such as .git and node_modules, are searched only if path or glob "
                "names them]"
            )
        return "\n".join([" ".join(facts), *self._lines, *notes])

    def _put(self, lines: list[FoundLine]) -> None:
        if self._query.mode is not OutputMode.CONTENT:
            return
        shown: list[str] = []
        if not self._last_number:
            shown += ["", display(shorten(self._path))] if self._lines else [display(shorten(self._path))]
        elif self._with_context and lines[0].number > self._last_number + 1:
            shown.append("--")
        shown += [_shown(line) for line in lines]
        self._emit(shown)
        if not self.full:
            self._last_number = lines[-1].number

    def _emit(self, lines: list[str]) -> None:
        size = sum(len(line) + 1 for line in lines)
        if size > self._chars_left or len(self._lines) + len(lines) > ANSWER_MAX_LINES - _FRAME_LINES:
            self.full = True
            return
        self._chars_left -= size
        self._lines += lines


def _shown(line: FoundLine) -> str:
    raw = line.raw.removesuffix(b"\r")
    text = decode_line(raw)[0].replace("\0", "\u2400")
    if len(text) > _SHOWN_CHARS:
        column = len(decode_line(raw[: line.column or 0], partial=True)[0])
        start = max(0, min(column - _SHOWN_CHARS // 4, len(text) - _SHOWN_CHARS))
        cut = text[start : start + _SHOWN_CHARS]
        text = f"{'[...]' if start else ''}{cut}{'[...]' if start + _SHOWN_CHARS < len(text) else ''}"
    return f"{line.number}{'-' if line.column is None else ':'}{text}"
