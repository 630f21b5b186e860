"""What new sandboxes may be called, and how many of them one call makes."""

import re
from typing import Final

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.store.identity import ID_PREFIX

__all__ = ["check_new"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_MOST_AT_ONCE: Final = 100


def check_new(name: str, count: int) -> None:
    """Refuse a name or a count that no call can use.

    Raises:
        InvalidRequestError: Says what would do.
    """
    if name and (not _NAME.match(name) or name.startswith(ID_PREFIX)):
        raise InvalidRequestError(
            f"Name {name[:64]!r} cannot be used",
            why=f"a name has 1 to 63 letters, digits, '.', '_' or '-', begins with one of the first two, and not with "
            f"{ID_PREFIX!r}",
            fix="Choose another name, or none",
        )
    if not 1 <= count <= _MOST_AT_ONCE:
        raise InvalidRequestError(
            f"{count} sandboxes not created", why=f"one call creates 1 to {_MOST_AT_ONCE}", fix="Change `count`"
        )
