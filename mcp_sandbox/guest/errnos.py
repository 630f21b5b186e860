"""Errno numbers of Linux, which the guest agent speaks, on hosts that count differently."""

import errno
import sys
from typing import Final

__all__ = ["host_errno"]

_MOVED: Final = {
    11: "EAGAIN", 35: "EDEADLK", 36: "ENAMETOOLONG", 37: "ENOLCK", 38: "ENOSYS", 39: "ENOTEMPTY", 40: "ELOOP",
    61: "ENODATA", 71: "EPROTO", 75: "EOVERFLOW", 84: "EILSEQ", 95: "EOPNOTSUPP", 98: "EADDRINUSE",
    99: "EADDRNOTAVAIL", 104: "ECONNRESET", 107: "ENOTCONN", 110: "ETIMEDOUT", 111: "ECONNREFUSED",
    115: "EINPROGRESS", 116: "ESTALE", 122: "EDQUOT",
}  # fmt: skip
"""Those that the agent may send and that are not everywhere what they are on Linux."""


def host_errno(number: int) -> int:
    """Return this system's number for an errno of Linux; `EIO` for what cannot be one."""
    if not 0 < number < 4096:
        return errno.EIO
    if sys.platform == "linux" or number not in _MOVED:
        return number
    return int(getattr(errno, _MOVED[number], errno.EIO))
