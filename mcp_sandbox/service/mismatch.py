"""Why an exact text is not in a file: the nearest place, and how it differs. Never used to guess where to edit."""

import difflib
import html
import re
import unicodedata
from collections.abc import Callable, Sequence

__all__ = ["explain_mismatch"]

_COMPARED_CHARACTERS = 2_000_000
_COMPARED_LINES = 20_000
_QUOTED = 100

_LOOK_ALIKES = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′`´", "'"),
        **dict.fromkeys("“”„‟″«»", '"'),
        **dict.fromkeys("‐‑‒–—―−", "-"),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad"),
        "…": "...",
    }
)


def _single_blanks(line: str) -> str:
    return " ".join(line.split())


def _no_blanks(line: str) -> str:
    return "".join(line.split())


def _plain(line: str) -> str:
    return _no_blanks(unicodedata.normalize("NFKC", line.translate(_LOOK_ALIKES)))


def _caseless(line: str) -> str:
    return _plain(line).casefold()


_FOLDS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("blanks at the end of lines", str.rstrip),
    ("indentation (tabs, spaces)", str.strip),
    ("blanks", _single_blanks),
    ("blanks", _no_blanks),
    ("characters that look alike (quotes, dashes, invisible ones)", _plain),
    ("letter case", _caseless),
)
"""From the smallest liberty to the largest; the first that finds a place names the difference."""

_REWRITES: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    (
        "old_string carries the line numbers of an answer, which are not in the file",
        "Leave the numbers and the tab or colon behind them out",
        lambda old: re.sub(r"(?m)^ *\d+(\t|[:-])", "", old),
    ),
    (
        r"old_string holds escapes such as \n or \" where the file has the characters themselves",
        "Send the characters, not escapes",
        lambda old: old.replace(r"\n", "\n").replace(r"\t", "\t").replace(r"\"", '"').replace(r"\'", "'"),
    ),
    (
        "old_string holds HTML entities such as &lt; where the file has the characters themselves",
        "Send the characters, not entities",
        html.unescape,
    ),
    (
        "old_string has blanks or line breaks at its start or end that the file has not",
        "Leave them out",
        lambda old: old.strip(" \t\n"),
    ),
)


def explain_mismatch(text: str, old: str) -> tuple[str, str]:
    """Return why `old` is not in `text`, and what to do about it. Line ends in both are line feeds."""
    if not text:
        return "the file is empty", "Write it with `write_file`"
    for why, fix, rewrite in _REWRITES:
        rewritten = rewrite(old)
        if rewritten and rewritten != old and rewritten in text:
            return f"{why} (the rest is at line {text.count(chr(10), 0, text.index(rewritten)) + 1})", fix
    lines = text[:_COMPARED_CHARACTERS].split("\n")
    wanted = old.strip("\n").split("\n")
    for difference, fold in _FOLDS:
        start = _place([fold(line) for line in lines], [fold(line) for line in wanted])
        if start is not None:
            why = (
                f"old_string is not in the file, but lines {start + 1} to {start + len(wanted)} differ from it only in"
            )
            if len(wanted) == 1:
                why = f"old_string is not in the file, but line {start + 1} differs from it only in"
            return f"{why} {difference}: {_first_difference(lines, wanted, start)}", "Copy the text as it is there"
    return _closest(lines, wanted, whole=len(text) <= _COMPARED_CHARACTERS)


def _place(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Return the index of the first line where `wanted` begins, taking its first and last line as parts of lines."""
    if not any(wanted):
        return None
    first, *middle = wanted
    if not middle:
        return next((index for index, line in enumerate(lines) if first in line), None)
    for index in range(len(lines) - len(wanted) + 1):
        if (
            lines[index].endswith(first)
            and lines[index + len(middle)].startswith(middle[-1])
            and lines[index + 1 : index + len(middle)] == middle[:-1]
        ):
            return index
    return None


def _first_difference(lines: Sequence[str], wanted: Sequence[str], start: int) -> str:
    """Name the first pair of lines that differ; partial first and last lines are compared as such."""
    last = len(wanted) - 1
    for offset, want in enumerate(wanted):
        line = lines[start + offset]
        same = (
            (want in line)
            if not last
            else line.endswith(want)
            if not offset
            else line.startswith(want)
            if offset == last
            else line == want
        )
        if not same:
            return f"line {start + offset + 1} is {_quote(line, want)} and old_string has {_quote(want, line)}"
    return "the line breaks around it"


def _closest(lines: Sequence[str], wanted: Sequence[str], *, whole: bool) -> tuple[str, str]:
    """Find the place with the most equal lines, or else the line most like the first one wanted."""
    fix = "Read the file again and copy the text as it is there"
    scope = "the file" if whole else f"the first {_COMPARED_CHARACTERS:,} characters of the file"
    start = _most_equal(lines, wanted)
    if start is None:
        anchor = next((line for line in wanted if line.strip()), "")
        near = _most_like(lines[:_COMPARED_LINES], anchor)
        if near is None:
            return f"no line of {scope} resembles {_quote(anchor, '')}", "Check the path, and read the file again"
        return (
            f"old_string is not in {scope}; most like it is line {near + 1}, which is {_quote(lines[near], anchor)} "
            f"where old_string has {_quote(anchor, lines[near])}",
            fix,
        )
    for offset, want in enumerate(wanted):
        line = lines[start + offset] if start + offset < len(lines) else None
        if line is None:
            return f"old_string is not in {scope}; most of it is at line {start + 1}, where the file ends sooner", fix
        if line.strip() != want.strip():
            return (
                f"old_string is not in {scope}; most of it is at line {start + 1}, but line "
                f"{start + offset + 1} is {_quote(line, want)} where old_string has {_quote(want, line)}",
                fix,
            )
    return f"old_string is not in {scope}; it differs in blanks at line {start + 1}", fix


def _most_equal(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Return where `wanted` would begin for the most of its lines to be equal but for blanks around them."""
    offsets: dict[str, list[int]] = {}
    for offset, want in enumerate(wanted):
        if want.strip():
            offsets.setdefault(want.strip(), []).append(offset)
    scores: dict[int, int] = {}
    for index, line in enumerate(lines):
        for offset in offsets.get(line.strip(), ())[:8]:
            scores[index - offset] = scores.get(index - offset, 0) + 1
    inside = [start for start in scores if start >= 0]
    best = max(inside, key=lambda start: (scores[start], -start), default=None)
    return None if best is None or (scores[best] == 1 and len(wanted) > 4) else best


def _most_like(lines: Sequence[str], wanted: str) -> int | None:
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted.strip()[:300])
    best, best_ratio = None, 0.55
    for index, line in enumerate(lines):
        matcher.set_seq1(line.strip()[:300])
        if matcher.real_quick_ratio() > best_ratio and matcher.quick_ratio() > best_ratio:
            ratio = matcher.ratio()
            if ratio > best_ratio:
                best, best_ratio = index, ratio
    return best


def _quote(line: str, other: str) -> str:
    """Quote a line with its blanks visible, around the first place where it differs from `other`."""
    if len(line) <= _QUOTED:
        return repr(line)
    differs = next((i for i, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), min(len(line), len(other)))
    start = max(0, min(differs - _QUOTED // 2, len(line) - _QUOTED))
    cut = line[start : start + _QUOTED]
    return f"{'...' if start else ''}{cut!r}{'...' if start + _QUOTED < len(line) else ''}"
