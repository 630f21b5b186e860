"""Match the lines of files on the host, where the sandbox has no ripgrep or ripgrep does not know the expression.

The files are the sandbox's and the expression is the model's, so both may be hostile: lines, files and time are
bounded, and whatever calls this does so in a thread.
"""

from collections import deque
from collections.abc import Iterator

import regex

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.service.encodings import BOMS
from mcp_sandbox.service.findings import LINE_MAX_BYTES, Findings, FoundLine, SearchQuery

__all__ = ["FileMatcher", "SlowPatternError", "breaks_lines", "compile_pattern", "is_skipped"]

_SNIFFED_BYTES = 65_536
"""How far ripgrep looks for a NUL first."""
_BLOCK_TIMEOUT_S = 2.0
"""For a block of lines that takes milliseconds unless the expression backtracks without end."""


class SlowPatternError(Exception):
    """The expression took too long on a few lines."""


def breaks_lines(pattern: str) -> bool:
    r"""Whether a pattern can only match across lines, since it has a line feed or `\n` outside of a `[...]`."""
    return any(piece in ("\n", r"\n") for piece in _pieces(pattern))


def compile_pattern(query: SearchQuery) -> "regex.Pattern[str]":
    """Compile an expression of ripgrep's dialect, or of `regex`'s own where they differ.

    Raises:
        InvalidRequestError: It is none; says where it fails.
    """
    flags = regex.IGNORECASE if query.case_insensitive else 0
    if query.multiline:
        flags |= regex.MULTILINE | regex.DOTALL
    try:
        return regex.compile("".join(_translated(query.pattern)), flags)
    except (regex.error, OverflowError, RecursionError, ValueError) as error:
        raise InvalidRequestError(
            "Nothing was searched",
            why=f"the pattern is not a regular expression: {error}",
            fix=r"Escape signs that are meant as themselves with '\', as in `foo\(`",
        ) from error


def _pieces(pattern: str) -> Iterator[str]:
    """Split a pattern into escapes, character classes and single characters."""
    at = 0
    while at < len(pattern):
        start = at
        if pattern[at] == "\\":
            at += 2
            if pattern[start + 1 : at] in tuple("pPNxuU") and pattern[at : at + 1] == "{":
                end = pattern.find("}", at)
                at = end + 1 if end > 0 else len(pattern)
        elif pattern[at] == "[":
            at = _class_end(pattern, at)
        else:
            at += 1
        yield pattern[start:at]


def _class_end(pattern: str, at: int) -> int:
    at += 1
    at += pattern[at : at + 1] == "^"
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        if pattern[at] == "\\":
            at += 1
        elif pattern.startswith("[:", at) and (end := pattern.find(":]", at)) > 0:
            at = end + 1
        at += 1
    return at + 1


def _translated(pattern: str) -> Iterator[str]:
    r"""Rewrite what means something else to `regex`: `\z`, `\x{...}`, and braces that are no repetition.

    To `regex` a `{e}` or `{i<=1}` asks for fuzzy matching, while models mean the braces.
    """
    pieces = list(_pieces(pattern))
    for index, piece in enumerate(pieces):
        if piece == r"\z":
            yield r"\Z"
        elif piece[:3] in (r"\x{", r"\u{", r"\U{"):
            yield regex.escape(chr(int(piece[3:-1], 16)))
        elif piece == "{" and (not index or not regex.match(r"\{(\d+(,\d*)?|,\d+)\}", "".join(pieces[index:][:12]))):
            yield r"\{"
        else:
            yield piece


def is_skipped(head: bytes) -> bool:
    """Whether a file that begins like this is binary, as ripgrep sees it."""
    return not head.startswith(tuple(BOMS.values())) and b"\0" in head[:_SNIFFED_BYTES]


class FileMatcher:
    """Searches one file after the other, in blocks of bytes, and tells the findings.

    Args:
        expression: From `compile_pattern`.
        query: What is asked.
        findings: Where matches go.
    """

    def __init__(self, expression: "regex.Pattern[str]", query: SearchQuery, findings: Findings) -> None:
        self._expression, self._query, self._findings = expression, query, findings
        self._rest = b""
        self._dropping = False
        self._number = 0
        self._before: deque[FoundLine] = deque(maxlen=query.before)
        self._after_left = 0

    def begin(self, path: str) -> None:
        """Turn to a file, by its absolute path."""
        self._rest, self._dropping, self._number, self._after_left = b"", False, 0, 0
        self._before.clear()
        self._findings.begin(path)

    def feed(self, block: bytes) -> None:
        """Search the next bytes line by line, without a byte order mark.

        Raises:
            SlowPatternError: The expression takes too long.
        """
        head, feed, tail = block.rpartition(b"\n")
        if not feed:
            self._keep(block)
            return
        lines = head.split(b"\n")
        if self._dropping:
            lines[0] = b""
        else:
            lines[0] = self._rest + lines[0]
        self._rest, self._dropping = b"", False
        self._search(lines)
        self._keep(tail)

    def end(self, *, is_cut: bool = False) -> None:
        """Search what follows the last line feed, unless binary data cut it off, and turn away from the file.

        Raises:
            SlowPatternError: The expression takes too long.
        """
        if self._rest and not is_cut:
            self._search([self._rest])
        self._findings.end(is_cut=is_cut)

    def search_whole(self, data: bytes, *, is_cut: bool = False) -> None:
        """Search a whole file, or what comes before binary data in it, for matches that may span lines.

        Raises:
            SlowPatternError: The expression takes too long.
        """
        text = data.decode("utf-8", "surrogateescape")
        columns = self._matched_lines(text)
        wanted = sorted(columns)
        lines = data.removesuffix(b"\n").split(b"\n")
        shown = {
            near
            for number in wanted
            for near in range(max(0, number - self._query.before), min(len(lines), number + self._query.after + 1))
        }
        for number in sorted(shown):
            if self._findings.settled:
                break
            self._findings.add(FoundLine(number + 1, lines[number], columns.get(number)))
        self._findings.end(is_cut=is_cut)

    def _matched_lines(self, text: str) -> dict[int, int]:
        """Return the lines that matches touch, by index, with the byte at which the first one begins there."""
        columns: dict[int, int] = {}
        line, seen = 0, 0
        try:
            for match in self._expression.finditer(text, timeout=_BLOCK_TIMEOUT_S):
                start, end = match.span()
                if start == len(text) and (not text or text.endswith("\n")):
                    break
                line += text.count("\n", seen, start)
                seen = start
                if line not in columns:
                    columns[line] = len(_encoded(text[text.rfind("\n", 0, start) + 1 : start]))
                for extra in range(text.count("\n", start, max(start, end - 1))):
                    columns.setdefault(line + extra + 1, 0)
        except TimeoutError as error:
            raise SlowPatternError from error
        return columns

    def _keep(self, tail: bytes) -> None:
        if self._dropping:
            return
        self._rest += tail
        if len(self._rest) > LINE_MAX_BYTES:
            self._rest, self._dropping = b"", True

    def _search(self, lines: list[bytes]) -> None:
        try:
            for raw in lines:
                self._number += 1
                if self._findings.settled:
                    return
                self._look_at(raw)
        except TimeoutError as error:
            raise SlowPatternError from error

    def _look_at(self, raw: bytes) -> None:
        line = raw.removesuffix(b"\r").decode("utf-8", "surrogateescape")
        match = self._expression.search(line, timeout=_BLOCK_TIMEOUT_S) if len(raw) <= LINE_MAX_BYTES else None
        if match is not None:
            for earlier in self._before:
                self._findings.add(earlier)
            self._before.clear()
            self._findings.add(FoundLine(self._number, raw, len(_encoded(line[: match.start()]))))
            self._after_left = self._query.after
        elif self._after_left:
            self._after_left -= 1
            self._findings.add(FoundLine(self._number, raw))
        elif self._query.before:
            self._before.append(FoundLine(self._number, raw))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
