"""One page of a text file, cut out of its byte stream in bounded memory: lines by number, long ones shortened."""

import codecs
from dataclasses import dataclass

from mcp_sandbox.service.encodings import BOMS, Encoding, decode_line

__all__ = ["ANSWER_MAX_CHARS", "ANSWER_MAX_LINES", "LINE_MAX_CHARS", "LinePager", "Page", "cut_line"]

ANSWER_MAX_CHARS = 30_000
"""Characters of one answer; clients cut or refuse longer ones."""
ANSWER_MAX_LINES = 1_900
LINE_MAX_CHARS = 2_000

_FRAME_CHARS = 1_000
"""Kept free for the header and the notes around the lines."""
_FRAME_LINES = 12
_LINE_HEAD_BYTES = 4 * LINE_MAX_CHARS + 4
"""Bytes that surely hold the characters shown of a line, and show whether there are more."""
_STRIDE_BYTES = 4_096
"""Of lines that are passed over; counting them is faster than finding each one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The lines shown, and what was seen on the way to them and behind them."""

    lines: tuple[str, ...]
    first: int
    last_line_seen: int
    """How many lines were counted; all of them if the stream was read to its end."""
    full: bool
    """Whether the page ended before the file did."""
    encodings: frozenset[Encoding]
    """Of the lines shown, UTF-8 left out."""
    line_ends: frozenset[str]
    """Of the lines shown: `lf`, `crlf`."""
    final_newline: bool
    """Whether the last byte seen was a line feed."""
    cut: int
    """How many lines were shortened."""

    @property
    def last(self) -> int:
        """The number of the last line shown."""
        return self.first + len(self.lines) - 1


def cut_line(text: str, size_bytes: int) -> str:
    """Return `text` with at most the characters that are shown of one line; `size_bytes` is the whole line's."""
    if len(text) <= LINE_MAX_CHARS:
        return text
    return f"{text[:LINE_MAX_CHARS]} [line cut, it has {size_bytes:,} bytes]"


class LinePager:
    """Takes a file's bytes in pieces, and keeps the lines from `first` on until the page is full.

    Lines end with a line feed, as for `cat -n`, `grep -n` and compilers.
    """

    def __init__(self, *, first: int, count: int, bom: bytes = b"") -> None:
        self._first, self._count = first, min(count, ANSWER_MAX_LINES - _FRAME_LINES)
        self._chars_left = ANSWER_MAX_CHARS - _FRAME_CHARS
        self._encoding = next((encoding for encoding, mark in BOMS.items() if mark == bom), Encoding.UTF_8)
        self._transcode = (
            codecs.getincrementaldecoder(self._encoding)("replace") if self._encoding is not Encoding.UTF_8 else None
        )
        self._ended = 0
        """Lines whose end was seen."""
        self._head = bytearray()
        self._size = 0
        """Bytes of the present line so far; `_head` holds the first of them."""
        self._last = b"\n"
        self._lines: list[str] = []
        self._encodings: set[Encoding] = set()
        self._ends: set[str] = set()
        self._cut = 0
        self.full = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the file, without its byte order mark."""
        if self._transcode is not None:
            chunk = self._transcode.decode(chunk).encode()
        if not chunk:
            return
        start = self._skip(chunk)
        while start < len(chunk):
            if not self.full and (start := self._plain(chunk, start)) == len(chunk):
                break
            if len(self._lines) == self._count:
                self.full = True
            if self.full:
                break
            feed = chunk.find(b"\n", start)
            end = len(chunk) if feed < 0 else feed
            room = _LINE_HEAD_BYTES - len(self._head)
            if room > 0:
                self._head += chunk[start : min(end, start + room)]
            self._size += end - start
            if feed < 0:
                break
            self._take(ended=True)
            start = end + 1
        if self.full:
            self._ended += chunk.count(b"\n", start)
        self._last = chunk[-1:]

    def finish(self) -> Page:
        """Take the last line, if nothing ends it, and return the page."""
        if self._last != b"\n" and not self.full:
            self._take(ended=False)
        unended = self._last != b"\n"
        return Page(
            lines=tuple(self._lines),
            first=self._first,
            last_line_seen=self._ended + unended,
            full=self.full,
            encodings=frozenset(self._encodings),
            line_ends=frozenset(self._ends),
            final_newline=not unended,
            cut=self._cut,
        )

    def _skip(self, chunk: bytes) -> int:
        """Count lines before the page; return where in `chunk` the page begins or goes on."""
        missing = self._first - 1 - self._ended
        if missing <= 0 or self.full:
            return 0
        ends = chunk.count(b"\n")
        if ends < missing:
            self._ended += ends
            return len(chunk)
        start = 0
        while missing > (near := chunk.count(b"\n", start, start + _STRIDE_BYTES)):
            missing -= near
            start += _STRIDE_BYTES
        for _ in range(missing):
            start = chunk.index(b"\n", start) + 1
        self._ended = self._first - 1
        return start

    def _plain(self, chunk: bytes, start: int) -> int:
        """Take whole lines that show as they are, many at once; return where the first other one begins."""
        end = chunk.rfind(b"\n", start, start + self._chars_left) + 1
        block = chunk[start:end]
        if self._size or end <= start or b"\r" in block or b"\0" in block:
            return start
        try:
            lines = block.decode().split("\n", self._count - len(self._lines))
        except UnicodeDecodeError:
            return start
        lines.pop()
        left = self._chars_left
        for number, line in enumerate(lines, self._ended + 1):
            shown = f"{number:>6}\t{line}"
            left -= len(shown) + 1
            if left < 0 or len(line) > LINE_MAX_CHARS:
                break
            self._lines.append(shown)
            self._ends.add("lf")
            self._chars_left = left
            self._ended = number
            start += len(line) + 1 if line.isascii() else len(line.encode()) + 1
        return start

    def _take(self, *, ended: bool) -> None:
        """Put the present line on the page, or find that the page is full."""
        raw, size = bytes(self._head), self._size
        crlf = ended and size == len(raw) and raw.endswith(b"\r")
        if crlf:
            raw, size = raw[:-1], size - 1
        text, encoding = decode_line(raw, partial=size > len(raw))
        shown = f"{self._ended + 1:>6}\t{cut_line(text, size)}".replace("\0", "\u2400")
        if len(shown) + 1 > self._chars_left:
            self.full = True
        else:
            self._lines.append(shown)
            self._chars_left -= len(shown) + 1
            self._cut += len(text) > LINE_MAX_CHARS
            if encoding is not Encoding.UTF_8:
                self._encodings.add(encoding)
            if ended:
                self._ends.add("crlf" if crlf else "lf")
        if ended:
            self._ended += 1
            self._head.clear()
            self._size = 0
