"""Replace one text by another in the bytes of a file: exact and unique, and no byte outside the match ever changes.

Line ends are the one freedom: a line feed matches whatever ends a line in the file, and what is put in gets the ends
of what it replaces. Everything else that does not match is refused, with what differs.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.service.encodings import BOMS, Encoding, decode_text, detect, encode
from mcp_sandbox.service.mismatch import explain_mismatch

__all__ = ["EDIT_MAX_BYTES", "Edit", "Edited", "apply_edit"]

EDIT_MAX_BYTES = 16 << 20
"""Size of a file that can be edited, before and after."""

_COUNTED_MATCHES = 1000
_NAMED_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What to replace, and by what."""

    old: str
    new: str
    replace_all: bool = False
    """Replace every match; else there must be one only."""

    def __post_init__(self) -> None:
        """Refuse an edit that can change nothing.

        Raises:
            InvalidRequestError: Both texts are the same, at least but for line ends, or one is not valid Unicode.
        """
        for name, text in (("old_string", self.old), ("new_string", self.new)):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise _refusal(f"{name} holds half of a surrogate pair", fix="Send it as valid Unicode") from error
        if self.old == self.new:
            raise _refusal("old_string and new_string are identical", fix="Give the text as it shall become")
        if _line_feeds(self.old) == _line_feeds(self.new):
            raise _refusal(
                "old_string and new_string differ only in line ends, and an edit keeps those of the file",
                fix="Convert line ends with a command, such as `sed -i 's/\\r$//' FILE`",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """The file as it becomes."""

    data: bytes
    lines: tuple[int, ...]
    """Where each match began, counted from 1 in the file as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Carrier:
    """A file as a string with one character per unit of its encoding, which turns back into the very same bytes."""

    units: str
    pack: Callable[[str], bytes]
    encodings: tuple[Encoding, ...]
    """What the file's text may be in, likeliest first."""
    bom: bytes = b""
    tail: bytes = b""

    def carry(self, text: str, encoding: Encoding) -> str | None:
        """Return `text` in units, or `None` if the encoding cannot hold it."""
        try:
            raw = encode(text, encoding)
        except UnicodeEncodeError:
            return None
        return text if encoding in BOMS else raw.decode("latin-1")

    def bytes_with(self, units: str) -> bytes:
        """Return the file's bytes with other units."""
        return self.bom + self.pack(units) + self.tail


def apply_edit(data: bytes, edit: Edit) -> Edited:
    """Return `data` with the replacement made.

    Raises:
        InvalidRequestError: The old text is not there, or there more often than once; says what differs, or where.
    """
    carrier = _carry(data)
    for encoding in carrier.encodings:
        old = carrier.carry(_line_feeds(edit.old), encoding)
        if not old or not (spans := _find(carrier.units, old, every=edit.replace_all)):
            continue
        new = carrier.carry(edit.new, encoding)
        if new is None:
            raise _refusal(
                f"new_string holds {_alien(edit.new, encoding)!r}, which the file's encoding {encoding} cannot hold",
                fix="Leave it out, or convert the file to UTF-8 with a command such as `iconv`",
            )
        lines = _line_numbers(carrier.units, spans)
        if len(spans) > 1 and not edit.replace_all:
            raise _ambiguous(lines)
        grown = len(data) + len(spans) * (len(carrier.pack(new)) - len(old))
        if grown > EDIT_MAX_BYTES:
            raise _refusal(
                f"{len(spans):,} replacements would make a file of about {grown:,} bytes", fix="Use a command instead"
            )
        return Edited(data=carrier.bytes_with("".join(_spliced(carrier.units, spans, new))), lines=lines)
    raise _refusal(*_mismatch(data, edit))


def _line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n")


def _carry(data: bytes) -> _Carrier:
    encoding = detect(data)
    if encoding in BOMS:
        even = len(data) - len(data) % 2
        return _Carrier(
            units=data[2:even].decode(encoding, "surrogatepass"),
            pack=lambda units: units.encode(encoding, "surrogatepass"),
            encodings=(encoding,),
            bom=data[:2],
            tail=data[even:],
        )
    likely = {
        Encoding.UTF_8: (Encoding.UTF_8,),
        Encoding.MIXED: (Encoding.UTF_8, Encoding.WINDOWS_1252),
    }.get(encoding, (Encoding.WINDOWS_1252, Encoding.UTF_8))
    return _Carrier(units=data.decode("latin-1"), pack=_pack_bytes, encodings=likely)


def _pack_bytes(units: str) -> bytes:
    return units.encode("latin-1")


def _find(units: str, old: str, *, every: bool) -> list[tuple[int, int]]:
    """Return where `old` is: apart from each other if `every` one shall be replaced, else overlapping ones too."""
    pattern = re.compile(r"(?:\r\n|(?<!\r)\n)".join(re.escape(line) for line in old.split("\n")))
    if every:
        return [match.span() for match in pattern.finditer(units)]
    spans: list[tuple[int, int]] = []
    start = 0
    while len(spans) <= _COUNTED_MATCHES and (match := pattern.search(units, start)):
        spans.append(match.span())
        start = match.start() + 1
    return spans


def _line_numbers(units: str, spans: list[tuple[int, int]]) -> tuple[int, ...]:
    numbers: list[int] = []
    line, seen = 1, 0
    for start, _ in spans:
        line += units.count("\n", seen, start)
        seen = start
        numbers.append(line)
    return tuple(numbers)


def _spliced(units: str, spans: list[tuple[int, int]], new: str) -> Iterator[str]:
    kept = 0
    for start, end in spans:
        yield units[kept:start]
        yield _with_ends_of(units, start, end, new)
        kept = end
    yield units[kept:]


def _with_ends_of(units: str, start: int, end: int, new: str) -> str:
    """Return `new` with the line ends of what it replaces, or else of the line it goes into."""
    lines = _line_feeds(new).split("\n")
    if len(lines) == 1:
        return new
    ends = re.findall(r"\r?\n", units[start:end])
    if not ends:
        feed = units.find("\n", end)
        feed = units.rfind("\n", 0, start) if feed < 0 else feed
        if feed < 0:
            return new
        ends = ["\r\n" if units[feed - 1 : feed] == "\r" else "\n"]
    feeds = len(lines) - 1
    ends += [ends[-1]] * feeds
    return "".join(line + end for line, end in zip(lines, [*ends[:feeds], ""], strict=True))


def _alien(text: str, encoding: Encoding) -> str:
    try:
        encode(text, encoding)
    except UnicodeEncodeError as error:
        return text[error.start]
    return ""


def _ambiguous(lines: tuple[int, ...]) -> InvalidRequestError:
    more = len(lines) > _COUNTED_MATCHES
    count = f"more than {_COUNTED_MATCHES:,}" if more else f"{len(lines):,}"
    named = ", ".join(map(str, lines[:_NAMED_LINES])) + (", ..." if len(lines) > _NAMED_LINES else "")
    return _refusal(
        f"old_string is there {count} times, at lines {named}",
        fix="Add lines around the place that is meant until it is unique, or set replace_all to change every one",
    )


def _mismatch(data: bytes, edit: Edit) -> tuple[str, str]:
    text = _line_feeds(decode_text(data))
    return explain_mismatch(text, _line_feeds(edit.old))


def _refusal(why: str, fix: str) -> InvalidRequestError:
    return InvalidRequestError("Nothing was changed", why=why, fix=fix)
