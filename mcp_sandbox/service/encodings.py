"""How the bytes of a text file are read as characters, and back without touching any others.

UTF-8 is the rule, UTF-16 is known by its byte order mark, and a line that is not UTF-8 is taken as Windows-1252 (the
web's reading of Latin-1), which gives every byte a character and every such character its byte.
"""

import codecs
import re
from enum import StrEnum

__all__ = ["BOMS", "Encoding", "decode_line", "decode_text", "detect", "encode", "is_binary", "is_binary_to_search"]

_SNIFFED_BYTES = 8192
"""How far git and others look for a NUL, too."""


class Encoding(StrEnum):
    """What a whole file looks like."""

    UTF_8 = "utf-8"
    UTF_16_LE = "utf-16-le"
    UTF_16_BE = "utf-16-be"
    WINDOWS_1252 = "windows-1252"
    MIXED = "mixed"
    """UTF-8 with bytes that are not."""


BOMS = {Encoding.UTF_16_LE: codecs.BOM_UTF16_LE, Encoding.UTF_16_BE: codecs.BOM_UTF16_BE}

_WINDOWS_1252 = "".join(
    bytes([byte]).decode("latin-1" if byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else "cp1252") for byte in range(256)
)
_WINDOWS_1252_BYTES = {character: byte for byte, character in enumerate(_WINDOWS_1252)}
_LATIN_1_TO_WINDOWS_1252 = dict(enumerate(_WINDOWS_1252))
_MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")


def detect(data: bytes) -> Encoding:
    """Return what the whole of a file looks like."""
    for encoding, bom in BOMS.items():
        if data.startswith(bom):
            return encoding
    try:
        data.decode()
    except UnicodeDecodeError:
        return Encoding.MIXED if _MULTIBYTE.search(data) else Encoding.WINDOWS_1252
    return Encoding.UTF_8


def encode(text: str, encoding: Encoding) -> bytes:
    """Encode `text` without a byte order mark.

    Raises:
        UnicodeEncodeError: The encoding has no bytes for one of its characters.
    """
    match encoding:
        case Encoding.WINDOWS_1252:
            for index, character in enumerate(text):
                if character not in _WINDOWS_1252_BYTES:
                    raise UnicodeEncodeError(encoding, text, index, index + 1, "no such character")
            return bytes(_WINDOWS_1252_BYTES[character] for character in text)
        case Encoding.MIXED:
            return text.encode()
        case _:
            return text.encode(encoding)


def decode_line(raw: bytes, *, partial: bool = False) -> tuple[str, Encoding]:
    r"""Decode one line, or the beginning of one, which may break off inside a character.

    Where UTF-8 and other bytes are mixed in it, the others become `\xNN`.
    """
    try:
        return codecs.utf_8_decode(raw, "strict", not partial)[0], Encoding.UTF_8
    except UnicodeDecodeError:
        if _MULTIBYTE.search(raw):
            return raw.decode("utf-8", "backslashreplace"), Encoding.MIXED
        return raw.decode("latin-1").translate(_LATIN_1_TO_WINDOWS_1252), Encoding.WINDOWS_1252


def decode_text(data: bytes) -> str:
    """Decode a whole file as a reader is shown it, without its byte order mark."""
    encoding = detect(data)
    if encoding in BOMS:
        return data[2:].decode(encoding, "replace")
    data = data.removeprefix(codecs.BOM_UTF8)
    if encoding is Encoding.UTF_8:
        return data.decode()
    return "\n".join(decode_line(line)[0] for line in data.split(b"\n"))


def is_binary(head: bytes) -> bool:
    """Whether a file that begins like this, and is not UTF-16, is no text."""
    sample = head[:_SNIFFED_BYTES]
    if b"\0" in sample:
        return True
    try:
        codecs.utf_8_decode(sample, "strict", False)
    except UnicodeDecodeError:
        controls = sum(byte < 32 and byte not in b"\t\n\r\f\b\x1b" for byte in sample)
        return controls * 10 > len(sample)
    return False


def is_binary_to_search(block: bytes) -> bool:
    """Whether a file whose first 64 KiB are `block` is binary to ripgrep."""
    return not block.startswith(tuple(BOMS.values())) and b"\0" in block
