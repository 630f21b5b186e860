"""Extended attributes of programs (`user.*`), as tar archives carry them: pax headers `SCHILY.xattr.<name>`.

GNU tar, bsdtar and star know these. In their names `%`, `=` and what is not UTF-8 are written as in addresses. What
comes from an archive or a sandbox is somebody else's choice: it is bounded here, by what Linux itself holds.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

__all__ = ["Attributes", "attributes_of_pax", "checked_attributes", "pax_of_attributes"]

Attributes = Mapping[str, bytes]
"""Values by name, names with their `user.`; what is not UTF-8 in a name is a surrogate escape."""

_PREFIX: Final = "SCHILY.xattr."
_SPACE: Final = "user."
_NAME_BYTES: Final = 255  # XATTR_NAME_MAX
_VALUE_BYTES: Final = 64 << 10  # XATTR_SIZE_MAX
_ALL_BYTES: Final = 128 << 10
_MOST: Final = 1024


def checked_attributes(attributes: Attributes) -> Attributes:
    """Return attributes that a file can have, sorted by name.

    Raises:
        ValueError: One is no attribute of programs, or they are too many or too large.
    """
    total = 0
    for name, value in attributes.items():
        raw = name.encode("utf-8", "surrogateescape")
        if not name.startswith(_SPACE) or not len(_SPACE) < len(raw) <= _NAME_BYTES or b"\0" in raw:
            raise ValueError(f"{name[:64]!r} is no name of an attribute")
        if len(value) > _VALUE_BYTES:
            raise ValueError(f"the attribute {name[:64]!r} has {len(value):,} bytes")
        total += len(raw) + len(value)
    if len(attributes) > _MOST or total > _ALL_BYTES:
        raise ValueError(f"{len(attributes):,} attributes of {total:,} bytes are too many")
    return dict(sorted(attributes.items()))


def pax_of_attributes(attributes: Attributes) -> dict[str, str]:
    """Return the pax headers that stand for attributes."""
    return {f"{_PREFIX}{_quoted(name)}": value.decode("utf-8", "surrogateescape") for name, value in attributes.items()}


def attributes_of_pax(headers: Mapping[str, str]) -> Attributes:
    """Return what pax headers say of attributes of programs; those of the system are passed over.

    Raises:
        ValueError: As `checked_attributes`.
    """
    found = {
        unquote_to_bytes(key[len(_PREFIX) :]).decode("utf-8", "surrogateescape"): value.encode(
            "utf-8", "surrogateescape"
        )
        for key, value in headers.items()
        if key.startswith(f"{_PREFIX}{_SPACE}")
    }
    return checked_attributes(found) if found else {}


def _quoted(name: str) -> str:
    quoted = name.replace("%", "%25").replace("=", "%3D")
    return "".join(f"%{ord(each) - 0xDC00:02X}" if "\udc80" <= each <= "\udcff" else each for each in quoted)
