"""What is remembered of the jobs of one sandbox, also after the server that ran them has ended.

One JSON file a job, in the sandbox's registry directory. Everything here blocks; call it in a thread.
"""

import json
import os
import re
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

from mcp_sandbox.core.errors import NotFoundError, StateError
from mcp_sandbox.core.exec import ExecResult, Termination
from mcp_sandbox.store.atomic import locked, write_atomically
from mcp_sandbox.store.encoding import encode
from mcp_sandbox.store.record import now

__all__ = ["JobOwner", "JobRecord", "JobStatus", "JobStore", "this_process"]

KEPT = 200
"""Finished jobs that are remembered; older ones are forgotten, their ids never used again."""
_COMMAND_CHARACTERS = 2_000
_ID = re.compile(r"j[1-9][0-9]{0,9}", re.ASCII)


class JobStatus(StrEnum):
    """Whether a job runs, or how it ended."""

    RUNNING = "running"
    EXITED = "exited"
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    KILLED = "killed"
    OOM = "oom"
    LOST = "lost"
    """The sandbox or the server that ran it ended first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOwner:
    """The server process that runs a job, told apart from every other one that has or had its number."""

    pid: int
    started: str
    """When it started, in the kernel's units; empty where that cannot be found out."""
    boot: str
    """Id of the boot of the machine; empty where there is none."""

    @property
    def is_alive(self) -> bool:
        """Whether that very process still runs."""
        return self == _identity(self.pid) if self.started else _runs(self.pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job. Fields may be added; `SCHEMA` rises when an old version would misread the record."""

    SCHEMA: ClassVar[int] = 1

    id: str
    """`j` and a number, counted per sandbox."""
    command: str
    """Its beginning, if it is long."""
    cwd: str
    owner: JobOwner
    stdout_path: str
    """Where its whole standard output is, inside the sandbox."""
    stderr_path: str
    started_at: str
    """UTC, ISO 8601."""
    timeout_s: float | None = None
    ended_at: str | None = None
    status: JobStatus = JobStatus.RUNNING
    exit_code: int | None = None
    signal: int | None = None
    duration_s: float | None = None
    detail: str = ""
    output_bytes: int | None = None
    """Bytes it had written when it ended."""

    @property
    def seen(self) -> "JobRecord":
        """The record as it is to be understood now: a job whose server is dead is lost."""
        if self.status is JobStatus.RUNNING and not self.owner.is_alive:
            return replace(self, status=JobStatus.LOST, detail="the server that ran it ended, and the job with it")
        return self

    def ended(self, result: ExecResult, *, output_bytes: int) -> "JobRecord":
        """Return the record of the same job after its end."""
        return replace(
            self,
            ended_at=now(),
            status=JobStatus(result.termination.value),
            exit_code=result.exit_code,
            signal=result.signal,
            duration_s=round(result.duration_s, 3),
            detail=result.detail,
            output_bytes=output_bytes,
        )

    @property
    def result(self) -> ExecResult | None:
        """How it ended; `None` while it runs."""
        if self.status is JobStatus.RUNNING:
            return None
        return ExecResult(
            exit_code=self.exit_code,
            signal=self.signal,
            termination=Termination(self.status.value),
            duration_s=self.duration_s or 0.0,
            detail=self.detail,
        )

    @classmethod
    def parse(cls, text: bytes) -> "JobRecord":
        """Read a record from its file.

        Raises:
            StateError: It is damaged, or a newer version wrote it.
        """
        try:
            data = cast("dict[str, Any]", json.loads(text))
            if data["schema"] > cls.SCHEMA:
                raise StateError(
                    "Job record not read",
                    why=f"a newer mcp-sandbox wrote it (schema {data['schema']}, this version knows {cls.SCHEMA})",
                    fix="Upgrade mcp-sandbox",
                )
            known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
            known["owner"] = JobOwner(**known["owner"])
            known["status"] = JobStatus(known["status"])
            return cls(**known)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(
                "Job record not read", why="it is damaged", fix="Remove it from the sandbox's registry directory"
            ) from error


class JobStore:
    """The job records of one sandbox.

    Args:
        directory: The sandbox's registry directory, which exists.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "jobs"

    def create(
        self, *, command: str, cwd: str, timeout_s: float | None, spool_directory: str, started_at: str
    ) -> JobRecord:
        """Enter a job that runs in this process, under the next id.

        Raises:
            FileNotFoundError: The sandbox's directory is gone.
        """
        self._directory.mkdir(mode=0o700, exist_ok=True)
        with locked(self._directory / "lock"):
            number = self._last_number() + 1
            record = JobRecord(
                id=f"j{number}",
                command=command if len(command) <= _COMMAND_CHARACTERS else f"{command[:_COMMAND_CHARACTERS]}...",
                cwd=cwd,
                owner=this_process(),
                stdout_path=f"{spool_directory}/j{number}.out",
                stderr_path=f"{spool_directory}/j{number}.err",
                started_at=started_at,
                timeout_s=timeout_s,
            )
            write_atomically(self._directory / "count", b"%d\n" % number)
            self.save(record)
        return record

    def save(self, record: JobRecord) -> None:
        """Put a record in place of the one with its id."""
        write_atomically(self._path(record.id), encode({"schema": JobRecord.SCHEMA, **asdict(record)}))

    def get(self, job_id: str) -> JobRecord:
        """Return a record as it is to be understood now.

        Raises:
            NotFoundError: There is no such job.
            StateError: Its record cannot be read.
        """
        try:
            return JobRecord.parse(self._path(job_id).read_bytes()).seen
        except FileNotFoundError:
            known = ", ".join(f"j{number}" for number in self._numbers()[-10:]) or "none"
            raise NotFoundError(
                f"No job {job_id!r}", why=f"this sandbox has {known}", fix='Call `job` with action "list" to see them'
            ) from None

    def records(self) -> tuple[JobRecord, ...]:
        """Return every record that can be read, oldest first."""
        found: list[JobRecord] = []
        for number in self._numbers():
            try:
                found.append(self.get(f"j{number}"))
            except (NotFoundError, StateError):
                continue
        return tuple(found)

    def forget_oldest(self) -> tuple[JobRecord, ...]:
        """Remove the records of finished jobs but the newest `KEPT`, and return them: their files may go too."""
        if len(self._numbers()) <= KEPT:
            return ()
        old = [record for record in self.records()[:-KEPT] if record.status is not JobStatus.RUNNING]
        for record in old:
            self._path(record.id).unlink(missing_ok=True)
        return tuple(old)

    def _path(self, job_id: str) -> Path:
        if not _ID.fullmatch(job_id):
            raise NotFoundError(
                f"No job {job_id!r}", why="ids are j1, j2, ...", fix='Call `job` with action "list" to see them'
            )
        return self._directory / f"{job_id}.json"

    def _numbers(self) -> list[int]:
        names = (path.stem[1:] for path in self._directory.glob("j*.json"))
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def _last_number(self) -> int:
        try:
            counted = int((self._directory / "count").read_bytes())
        except (FileNotFoundError, ValueError):
            counted = 0
        return max([counted, *self._numbers()])


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _identity(pid: int) -> JobOwner | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # man 5 proc_pid_stat: the name, in parentheses, may hold anything; the start time is field 22.
    fields_from_state = stat.rpartition(")")[2].split()
    if fields_from_state[0] in ("Z", "X"):
        return None
    return JobOwner(pid=pid, started=fields_from_state[19], boot=_boot())


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def this_process() -> JobOwner:
    """Return what identifies this process."""
    return _identity(os.getpid()) or JobOwner(pid=os.getpid(), started="", boot=_boot())
