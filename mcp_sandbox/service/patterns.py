"""What can be told of a regular expression without compiling it."""

from collections.abc import Iterator

__all__ = ["breaks_lines", "pieces_of"]


def breaks_lines(pattern: str) -> bool:
    r"""Whether a pattern can only match across lines, since it has a line feed or `\n` outside of a `[...]`."""
    return any(piece in ("\n", r"\n") for piece in pieces_of(pattern))


def pieces_of(pattern: str) -> Iterator[str]:
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
