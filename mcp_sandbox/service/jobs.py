"""Commands that run on by themselves: found by id, read, waited for, fed and killed.

A server knows its own jobs at first hand. What other servers run, and what ran before it started, it knows from the
records in the registry and from the spool files in the sandbox.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import anyio
from anyio import lowlevel, to_thread

from mcp_sandbox.core.errors import NotFoundError, StateError
from mcp_sandbox.core.files import RemoveRequest
from mcp_sandbox.service.command import Outcome, Progress, RunningCommand
from mcp_sandbox.service.connections import LiveSandbox
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.spool import SpoolRooms
from mcp_sandbox.service.spooled import SpoolCursor
from mcp_sandbox.service.telling import using
from mcp_sandbox.store.jobs import JobRecord, JobStatus, JobStore

__all__ = ["JobService"]

_LOG = logging.getLogger(__name__)

_KEPT = 64
"""Finished jobs that are known at first hand; older ones are read from their files."""
_FEED_S = 10.0
_QUIET_S = 0.15
_KILL_S = 2.0
_FLUSH_S = 2.0
_POLL_S = 0.25

_Start = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


class _Job:
    def __init__(self, record: JobRecord, command: RunningCommand, store: JobStore) -> None:
        self.record = record
        self.command = command
        self.store = store
        self.ended = anyio.Event()


class JobService:
    """The jobs of every sandbox.

    Args:
        sandboxes: Where sandboxes are found.
        start: Starts a task that outlives the call it belongs to.
        rooms: Where output is spooled.
    """

    def __init__(self, sandboxes: SandboxService, start: _Start, rooms: SpoolRooms) -> None:
        self._sandboxes = sandboxes
        self._start = start
        self._rooms = rooms
        self._jobs: OrderedDict[tuple[str, str], _Job] = OrderedDict()
        self._cursors: dict[tuple[str, str], SpoolCursor] = {}

    async def adopt(self, command: RunningCommand) -> None:
        """Give a command an id and let it run on. Must not be cancelled; the command is the caller's if it fails.

        Raises:
            NotFoundError: The sandbox was destroyed.
        """
        live = command.live
        directory = await self._rooms.directory(live.sandbox)
        store = JobStore(live.directory)
        enter = partial(
            store.create,
            command=command.line,
            cwd=command.cwd,
            timeout_s=command.timeout_s,
            spool_directory=directory,
            started_at=command.started_at,
        )
        try:
            record = await to_thread.run_sync(enter)
        except FileNotFoundError:
            raise NotFoundError(
                "The command was ended", why="its sandbox was destroyed", fix="Call it again in another sandbox"
            ) from None
        command.job_id = record.id
        await command.rename_spool(f"{directory}/{record.id}")
        command.output.keep_whole()
        command.output.spool_all()
        job = _Job(record, command, store)
        self._jobs[live.record.id, record.id] = job
        self._forget_oldest()
        self._start(partial(self._attend, job))
        self._start(partial(_remove_forgotten, live, store))

    async def introduce(self, command: RunningCommand) -> Outcome:
        """Return the first answer about an adopted command. Cancelling kills the job: nobody would know its id."""
        try:
            await lowlevel.checkpoint()
            return await self._outcome(command, ())
        except BaseException:
            with anyio.move_on_after(_KILL_S, shield=True):
                await command.execution.kill()
            raise

    async def records(self, sandbox: str = "") -> tuple[JobRecord, ...]:
        """Return the jobs of a sandbox, oldest first."""
        async with using(self._sandboxes, sandbox or None) as live:
            return await to_thread.run_sync(JobStore(live.directory).records)

    async def output(self, job_id: str, *, sandbox: str = "") -> Outcome:
        """Return all that a job has said.

        Raises:
            NotFoundError: There is no such job.
        """
        async with using(self._sandboxes, sandbox or None) as live:
            job = self._jobs.get((live.record.id, job_id))
            if job is None:
                return await self._read(live, job_id, whole=True)
            return await self._outcome(job.command, live.notices, whole=True)

    async def wait(
        self, job_id: str, *, sandbox: str = "", within_s: float, progress: Progress | None = None
    ) -> Outcome:
        """Return once a job has ended, with all it said, or that many seconds later, with what is new.

        Raises:
            NotFoundError: There is no such job.
        """
        async with using(self._sandboxes, sandbox or None) as live:
            job = self._jobs.get((live.record.id, job_id))
            deadline = time.monotonic() + within_s
            if job is None:
                return await self._wait_for_another(live, job_id, deadline, progress)
            while not job.ended.is_set() and (left := deadline - time.monotonic()) > 0:
                with anyio.move_on_after(min(left, 1.0)):
                    await job.ended.wait()
                if progress is not None and not job.ended.is_set():
                    await progress(job.command.elapsed_s, job.command.output.last_line())
            return await self._outcome(job.command, live.notices, whole=job.ended.is_set())

    async def feed(
        self, job_id: str, text: str, *, sandbox: str = "", close: bool = False, within_s: float = 1.0
    ) -> Outcome:
        """Write to a job's standard input; return what it says next, as soon as it pauses.

        Raises:
            NotFoundError: There is no such job.
            StateError: It takes no input.
        """
        async with using(self._sandboxes, sandbox or None) as live:
            job = self._jobs.get((live.record.id, job_id))
            if job is None:
                record = await to_thread.run_sync(JobStore(live.directory).get, job_id)
                raise _not_ours(record) if record.status is JobStatus.RUNNING else _has_ended(job_id)
            if job.ended.is_set():
                raise _has_ended(job_id)
            was_read = await _write(job, text, close=close)
            await self._pause(job, time.monotonic() + within_s)
            note = () if was_read else (f"{job_id} did not read all of the input within {_FEED_S:g} s",)
            return await self._outcome(job.command, (*live.notices, *note))

    async def kill(self, job_id: str, *, sandbox: str = "", number: int | None = None) -> Outcome:
        """Kill a job with all it started, or send its process group a signal; return what is left to say.

        Raises:
            NotFoundError: There is no such job.
            StateError: Another server runs it.
        """
        async with using(self._sandboxes, sandbox or None) as live:
            job = self._jobs.get((live.record.id, job_id))
            if job is None:
                record = await to_thread.run_sync(JobStore(live.directory).get, job_id)
                if record.status is JobStatus.RUNNING:
                    raise _not_ours(record)
                return await self._read(live, job_id, whole=True)
            if not job.ended.is_set():
                with anyio.move_on_after(_KILL_S):
                    await (job.command.execution.kill() if number is None else job.command.execution.signal(number))
                    await job.ended.wait()
            return await self._outcome(job.command, live.notices, whole=True)

    async def _attend(self, job: _Job) -> None:
        command = job.command
        try:
            await command.output.settle()
            while not await command.follow(3600.0):
                pass
            held = await command.finish_output()
            with anyio.move_on_after(_FLUSH_S):  # whoever hears of the end may read the file at once
                await command.output.flush()
            await self._note_end(job)
            if held:
                await command.drain()
        finally:
            await command.close()
            command.lose("the server gave it up")
            job.ended.set()

    async def _note_end(self, job: _Job) -> None:
        result = job.command.result
        if result is not None:
            job.record = job.record.ended(result, output_bytes=job.command.output.total_bytes)
            try:
                await to_thread.run_sync(job.store.save, job.record)
            except OSError as error:  # the sandbox was destroyed, or the disk is full
                _LOG.warning("the end of job %s is not recorded: %s", job.record.id, error.strerror)
        job.ended.set()

    async def _pause(self, job: _Job, deadline: float) -> None:
        """Return when a job has said something and then nothing for a moment, or has ended."""
        wait_s = deadline - time.monotonic()
        while wait_s > 0 and not job.ended.is_set():
            with anyio.move_on_after(wait_s) as scope:
                await job.command.changed()
            if scope.cancelled_caught:
                return
            wait_s = min(_QUIET_S, deadline - time.monotonic())

    async def _outcome(self, command: RunningCommand, notes: tuple[str, ...], *, whole: bool = False) -> Outcome:
        return command.outcome(spool_path=await command.spool_path(), notes=notes, whole=whole)

    async def _wait_for_another(
        self, live: LiveSandbox, job_id: str, deadline: float, progress: Progress | None
    ) -> Outcome:
        store = JobStore(live.directory)
        started = time.monotonic()
        while (record := await to_thread.run_sync(store.get, job_id)).status is JobStatus.RUNNING:
            if (left := deadline - time.monotonic()) <= 0:
                break
            await anyio.sleep(min(_POLL_S, left))
            if progress is not None:
                await progress(time.monotonic() - started, "")
        return await self._read(live, job_id, whole=record.status is not JobStatus.RUNNING)

    async def _read(self, live: LiveSandbox, job_id: str, *, whole: bool) -> Outcome:
        """Return what the files say of a job: all, or what is new."""
        record = await to_thread.run_sync(JobStore(live.directory).get, job_id)
        key = (live.record.id, job_id)
        if whole or key not in self._cursors:
            self._cursors[key] = SpoolCursor(live.sandbox, record)
        return await self._cursors[key].outcome(record, live.notices)

    def _forget_oldest(self) -> None:
        ended = [key for key, job in self._jobs.items() if job.ended.is_set()]
        for key in ended[:-_KEPT]:
            del self._jobs[key]


async def _remove_forgotten(live: LiveSandbox, store: JobStore) -> None:
    """Remove what is left of jobs that were so many jobs ago that their records go."""
    for record in await to_thread.run_sync(store.forget_oldest):
        for path in (record.stdout_path, record.stderr_path):
            await live.sandbox.remove(RemoveRequest(path=path, missing_ok=True))


def _not_ours(record: JobRecord) -> StateError:
    return StateError(
        f"{record.id} was left alone",
        why=f"another server of this sandbox runs it (process {record.owner.pid})",
        fix="Find its process with `exec` (ps) and use kill there, or wait for it",
    )


def _has_ended(job_id: str) -> StateError:
    return StateError("Nothing was written", why=f"{job_id} has ended", fix="Start it again")


async def _write(job: _Job, text: str, *, close: bool) -> bool:
    """Write to a job's standard input; return whether all was taken in time.

    Raises:
        StateError: It takes no input, or no more.
    """
    job_id = job.record.id
    try:
        with anyio.move_on_after(_FEED_S) as scope:
            await job.command.write_stdin(text.encode("utf-8", "surrogateescape"))
        if close:
            await job.command.execution.close_stdin()
    except anyio.ClosedResourceError:
        raise StateError(
            "Nothing was written",
            why=f"the standard input of {job_id} is closed",
            fix="Start it with run_in_background to keep its input open",
        ) from None
    except anyio.BrokenResourceError:
        raise StateError("Nothing was written", why=f"{job_id} reads no more input", fix="See its output") from None
    return not scope.cancelled_caught
