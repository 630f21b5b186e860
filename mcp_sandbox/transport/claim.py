"""The descriptors that carry the protocol, moved to where nobody else writes to or reads from. POSIX only.

Imports next to nothing, so that a process can claim its wire before it loads anything that might print.
"""

import os
import sys

if sys.platform != "win32":  # there, the SDK's transport serves
    import fcntl

__all__ = ["Wire", "claim_wire"]


class Wire:
    """Descriptors that nobody else in the process knows, so that no child and no `print` can touch the protocol."""

    __slots__ = ("input", "output", "parent")

    def __init__(self, *, input: int, output: int, parent: int) -> None:
        self.input = input
        self.output = output
        self.parent = parent
        """Process id of whoever started this process."""


def claim_wire() -> Wire:
    """Move the protocol away from descriptors 0 and 1. Call it first of all, and once.

    Afterwards descriptor 0 is at its end, and what anybody prints goes to standard error.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        wire = Wire(input=_moved(0, null), output=_moved(1, null), parent=os.getppid())
        os.dup2(null, 0)
        try:
            os.dup2(2, 1)
        except OSError:
            os.dup2(null, 1)
    finally:
        if null > 2:  # else it took the place of a standard descriptor that was closed
            os.close(null)
    return wire


def _moved(descriptor: int, null: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, 3)
