"""Match the lines of files on the host, where the sandbox has no ripgrep or ripgrep does not know the expression.

The files are the sandbox's and the expression is the model's, so both may be hostile: lines, files and time are
bounded, and whatever calls this does so in a thread.
"""

import itertools
import time
from collections import deque
from collections.abc import Iterator

import regex

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.service.findings import LINE_MAX_BYTES, Findings, FoundLine, SearchQuery
from mcp_sandbox.service.patterns import pieces_of

__all__ = ["FileMatcher", "SlowPatternError", "compile_pattern"]

_BLOCK_TIMEOUT_S = 2.0
"""For a block of lines that takes milliseconds unless the expression backtracks without end."""
_SIEVE_TIMEOUT_S = 0.05


class SlowPatternError(Exception):
    """The expression took too long on a few lines."""


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


def _translated(pattern: str) -> Iterator[str]:
    r"""Rewrite what means something else to `regex`: `\z`, `\x{...}`, and braces that are no repetition.

    To `regex` a `{e}` or `{i<=1}` asks for fuzzy matching, while models mean the braces.
    """
    pieces = list(pieces_of(pattern))
    for index, piece in enumerate(pieces):
        if piece == r"\z":
            yield r"\Z"
        elif piece[:3] in (r"\x{", r"\u{", r"\U{"):
            yield regex.escape(chr(int(piece[3:-1], 16)))
        elif piece == "{" and (not index or not regex.match(r"\{(\d+(,\d*)?|,\d+)\}", "".join(pieces[index:][:12]))):
            yield r"\{"
        else:
            yield piece


class FileMatcher:
    """Searches one file after the other, in blocks of bytes, and tells the findings.

    Args:
        expression: From `compile_pattern`.
        query: What is asked.
        findings: Where matches go.
    """

    def __init__(self, expression: "regex.Pattern[str]", query: SearchQuery, findings: Findings) -> None:
        self._expression, self._query, self._findings = expression, query, findings
        self._sieve = _sieve(expression, query)
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
        if feed:
            if self._dropping:
                self._number += 1
                _, feed, head = head.partition(b"\n")
            if feed:
                self._search(self._rest + head)
            self._rest, self._dropping = b"", False
        if not self._dropping:
            self._rest += tail
            if len(self._rest) > LINE_MAX_BYTES:
                self._rest, self._dropping = b"", True

    def end(self, *, is_cut: bool = False) -> None:
        """Search what follows the last line feed, unless binary data cut it off, and turn away from the file.

        Raises:
            SlowPatternError: The expression takes too long.
        """
        if self._rest and not is_cut:
            self._search(self._rest)
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

    def _search(self, block: bytes) -> None:
        """Search whole lines, the last one without its line feed."""
        lines = block.split(b"\n")
        if not self._after_left and not self._passes(block):
            kept = lines[-self._query.before :] if self._query.before else []
            self._number += len(lines)
            self._before.extend(FoundLine(self._number - len(kept) + at, raw) for at, raw in enumerate(kept, 1))
            return
        deadline = time.monotonic() + _BLOCK_TIMEOUT_S
        for raw in lines:
            if self._findings.settled:
                return
            self._number += 1
            try:
                self._look_at(raw, deadline - time.monotonic())
            except TimeoutError as error:
                raise SlowPatternError from error

    def _passes(self, block: bytes) -> bool:
        """Whether a line of the block may match; a sieve that is slow itself is not used again."""
        if self._sieve is None:
            return True
        text = block.replace(b"\r\n", b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")
        try:
            return self._sieve.search(text, timeout=_SIEVE_TIMEOUT_S) is not None
        except TimeoutError:
            self._sieve = None
            return True

    def _look_at(self, raw: bytes, left_s: float) -> None:
        line = raw.removesuffix(b"\r").decode("utf-8", "surrogateescape")
        match = self._expression.search(line, timeout=max(left_s, 0.001)) if len(raw) <= LINE_MAX_BYTES else None
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


def _sieve(expression: "regex.Pattern[str]", query: SearchQuery) -> "regex.Pattern[str] | None":
    """Return an expression that finds something in a block of lines if the given one finds something in one of them.

    Looking around, anchors of the whole text and possessive repetition see more of a block than of a line.
    """
    for piece, following in itertools.pairwise([*pieces_of(query.pattern), ""]):
        if piece[0] == "\\" and piece[1:2].isalnum() and piece[1:2] not in tuple("dDwWsSbtrfnxuUpP"):
            return None
        if piece in ("*", "+", "?", "}") and following == "+":
            return None
    if regex.search(r"\(\?(?!:|P<|i[:)])|\(\*", query.pattern):
        return None
    return regex.compile(expression.pattern, expression.flags | regex.MULTILINE)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
