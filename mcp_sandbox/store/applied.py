"""What came home into a project, newest last, with what stood there before: for the way back, also after a crash.

    applied/<project>/lock             held while anything is applied or undone
    applied/<project>/<number>/record.json, old/<slot>

A record is written before the first change. While it says that it is not finished, a stage in the project has what
stood there; the newest few finished ones stay.
"""

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from mcp_sandbox.core.errors import StateError
from mcp_sandbox.hostfs.host_tree import HostEntry
from mcp_sandbox.hostfs.transaction import Act, Operation
from mcp_sandbox.store.atomic import write_atomically
from mcp_sandbox.store.encoding import decode, encode

__all__ = ["KEPT", "AppliedRecord", "AppliedStore"]

KEPT: Final = 10
"""Finished ones of a project."""
_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRecord:
    """One time that changes came home."""

    number: int
    sandbox: str
    """The registry's directory of the sandbox; it may be gone."""
    at: str
    """UTC, ISO 8601."""
    stage: str
    """Name of the directory in the project where what is new was made ready, and what was old is."""
    operations: tuple[Operation, ...]
    after: "dict[str, HostEntry | None]"
    """What was there when it was finished, by path."""
    overwritten: tuple[str, ...] = ()
    """Where the project had something that the sandbox never saw, and a person gave it up."""
    finished: bool = False
    is_undo: bool = False


class AppliedStore:
    """The records of one project. Hold the lock meanwhile. Blocks.

    Args:
        directory: Private to the user.
        project: Its real path.
    """

    def __init__(self, directory: Path, project: str) -> None:
        self._directory = directory / hashlib.sha256(os.fsencode(project)).hexdigest()[:24]
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.lock = self._directory / "lock"

    def newest(self) -> AppliedRecord | None:
        """Return the newest record, finished or not.

        Raises:
            StateError: It cannot be read.
        """
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else None

    def next_number(self) -> int:
        """Return the number of a new record."""
        return max(self._numbers(), default=0) + 1

    def save(self, record: AppliedRecord) -> None:
        """Write a record so that it survives whatever comes."""
        directory = self._directory / str(record.number)
        (directory / "old").mkdir(mode=0o700, parents=True, exist_ok=True)
        fields = asdict(replace(record, after={}, operations=()))
        fields["operations"] = [asdict(each) for each in record.operations]
        fields["after"] = {path: asdict(entry) if entry else None for path, entry in record.after.items()}
        write_atomically(directory / "record.json", encode({"schema": _SCHEMA, **fields}))

    def finish(self, record: AppliedRecord, after: "dict[str, HostEntry | None]") -> None:
        """Note that a record is finished, and what there was then; from now on it can be undone."""
        self.save(replace(record, after=after, finished=True))
        for number in self._numbers()[:-KEPT]:
            shutil.rmtree(self._directory / str(number), ignore_errors=True)

    def old(self, record: AppliedRecord) -> Path:
        """Return the directory with what stood there before, by slot."""
        return self._directory / str(record.number) / "old"

    def remove(self, record: AppliedRecord) -> None:
        """Forget a record, and what it kept."""
        shutil.rmtree(self._directory / str(record.number), ignore_errors=True)

    def _numbers(self) -> Sequence[int]:
        names = (path.name for path in self._directory.iterdir() if (path / "record.json").exists())
        return sorted(int(name) for name in names if name.isdecimal())

    def _read(self, number: int) -> AppliedRecord:
        try:
            fields = decode((self._directory / str(number) / "record.json").read_bytes())
            if fields.pop("schema") != _SCHEMA:
                raise ValueError("a newer mcp-sandbox wrote it")
            operations = tuple(_operation(each) for each in fields.pop("operations"))
            after = {path: _entry(entry) for path, entry in fields.pop("after").items()}
            overwritten = tuple(fields.pop("overwritten"))
            return AppliedRecord(operations=operations, after=after, overwritten=overwritten, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(
                "What was applied last is not known", why=f"its record is damaged ({error})",
                fix=f"Remove {self._directory.name}/{number} in the state directory's `applied`",
            ) from error  # fmt: skip


def _operation(fields: "dict[str, Any]") -> Operation:
    act, before = Act(fields.pop("act")), _entry(fields.pop("before"))
    return Operation(act=act, before=before, **fields)


def _entry(fields: "dict[str, Any] | None") -> HostEntry | None:
    return None if fields is None else HostEntry(**fields)
