"""Reading a file of a tree that strangers write, without being led out of it: no link is followed on the way."""

import os
import stat
from typing import Final

__all__ = ["read_beneath"]

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_beneath(root: str, relative: str, *, most_bytes: int) -> bytes:
    """Return a file below a directory. Blocks.

    Args:
        root: The directory.
        relative: A path in it; `.` and empty parts are left out.
        most_bytes: How large it may be.

    Raises:
        OSError: It is not there, is a link or behind one, is no regular file, or is too large; or leads upwards.
    """
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or relative.startswith("/"):
        raise OSError("it is no path in this directory")
    opened = os.open(root, _DIRECTORY)
    try:
        for part in parts[:-1]:
            inside = os.open(part, _DIRECTORY, dir_fd=opened)
            os.close(opened)
            opened = inside
        file = os.open(parts[-1], _FILE, dir_fd=opened)
    finally:
        os.close(opened)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is no file")
        with os.fdopen(os.dup(file), "rb") as stream:
            data = stream.read(most_bytes + 1)
    finally:
        os.close(file)
    if len(data) > most_bytes:
        raise OSError(f"it is larger than {most_bytes} bytes")
    return data
