"""What every peer is asked to do, as far as it can."""

import abc
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum

from tests.benchmarks.measuring import Samples

__all__ = ["FILES", "TEXT", "Operation", "Target", "timed_ms"]

TEXT = ("0123456789abcdef" * 64)[:-1] + "\n"
"""A line of 1 KiB; 1,024 of them are written and read."""
FILES = 1000


class Operation(StrEnum):
    """One row of the table."""

    START = "start: to the list of tools, or to the library being loaded"
    CREATE = "a new sandbox, and `true` in it"
    EXEC = "`true`"
    FILE = "write 1 MiB and read it back"
    SNAPSHOT = "snapshot of 1,000 files"
    RESUME = "the 1,000 files back from the snapshot, and `true`"


class Target(abc.ABC):
    """One peer, or us, or the floor."""

    name: str
    isolation: str
    """What stands between a command and the machine."""
    does: frozenset[Operation]

    @abc.abstractmethod
    def do(self, operation: Operation) -> float:
        """Do it once; return milliseconds. `START` comes first; `RESUME` only after `SNAPSHOT`."""

    @abc.abstractmethod
    def close(self) -> None:
        """End it, and remove what it made. Idempotent."""


@contextmanager
def timed_ms() -> Generator[list[float]]:
    """Take the time of a block into the list that is yielded."""
    samples = Samples()
    with samples.timed():
        yield samples.values
