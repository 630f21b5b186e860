"""One command that runs, whoever waits for it: read from start to end by one task at a time, never by two."""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import anyio
from anyio import lowlevel

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.exec import ExecResult, Execution, Exited, StreamName, Termination
from mcp_sandbox.service.connections import LiveSandbox
from mcp_sandbox.service.output import NOTHING, Captured, Output
from mcp_sandbox.service.shell import Invocation, Shells
from mcp_sandbox.service.spool import Spool, SpoolRooms, fresh_name
from mcp_sandbox.store.record import now

__all__ = ["Outcome", "Progress", "RunningCommand"]

Progress = Callable[[float, str], Awaitable[None]]
"""Takes the seconds since the start, and the last that the command wrote, raw."""

_BEAT_S = 1.0
_LATE_S = 0.05
"""How long after a command's own end its children may still write into its answer."""
_ABORT_S = 2.0
_BUSY_BYTES = 16_384
_SUFFIXES = {StreamName.STDOUT: "out", StreamName.STDERR: "err"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What can be said of a command now."""

    cwd: str
    elapsed_s: float
    result: ExecResult | None = None
    """`None` while it runs."""
    stdout: Captured = NOTHING
    stderr: Captured = NOTHING
    job_id: str = ""
    """The job it is, if it is one."""
    command: str = ""
    spool_path: str = ""
    """Where the whole output is or will be, without `.out` or `.err`; that of its children, if it has ended."""
    gap: bool = False
    """Whether some of its output never arrived."""
    notes: tuple[str, ...] = ()
    """What else a reader must know."""


class RunningCommand:
    """A command from its start to the end of its output.

    Args:
        live: Where it runs.
        execution: The live handle; this object closes it.
        invocation: How it was started.
        shells: Who made the invocation.
        line: The command line.
        cwd: Where it was started.
        timeout_s: The deadline that the engine enforces.
        rooms: Where its spool files go, once there are any.
    """

    def __init__(
        self,
        *,
        live: LiveSandbox,
        execution: Execution,
        invocation: Invocation,
        shells: Shells,
        rooms: SpoolRooms,
        line: str,
        cwd: str,
        timeout_s: float | None,
    ) -> None:
        self.live = live
        self.execution = execution
        self.output = Output(self._open_spool)
        self.line = line
        self.cwd = cwd
        self.timeout_s = timeout_s
        self.started_at = now()
        self.result: ExecResult | None = None
        self.job_id = ""
        self.notes = (*live.notices, *((invocation.note,) if invocation.note else ()))
        self._invocation = invocation
        self._shells = shells
        self._rooms = rooms
        self._spool_path = ""
        self._writing: set[anyio.CancelScope] = set()
        self._started = time.monotonic()
        self._changed: anyio.Event | None = None
        self._closed = False

    @property
    def elapsed_s(self) -> float:
        """Seconds that it ran, or has been running."""
        return self.result.duration_s if self.result is not None else time.monotonic() - self._started

    async def spool_path(self) -> str:
        """Return where the whole output is or would be, without `.out` or `.err`."""
        if not self._spool_path:
            self._spool_path = f"{await self._rooms.directory(self.live.sandbox)}/{fresh_name()}"
        return self._spool_path

    async def rename_spool(self, path: str) -> None:
        """Let the output be somewhere else."""
        self._spool_path = path
        for stream, spool in self.output.spools.items():
            await spool.rename(f"{path}.{_SUFFIXES[stream]}")

    async def _open_spool(self, stream: StreamName) -> Spool:
        return await self._rooms.open(self.live.sandbox, f"{await self.spool_path()}.{_SUFFIXES[stream]}")

    async def write_stdin(self, data: bytes) -> None:
        """Write all of `data` to its standard input, for as long as it reads.

        Raises:
            anyio.BrokenResourceError: It closed its input or ended.
            anyio.ClosedResourceError: It was given no input, or that is closed.
        """
        if self._closed:
            raise anyio.BrokenResourceError
        with anyio.CancelScope() as scope:
            self._writing.add(scope)
            try:
                await self.execution.write_stdin(data)
            finally:
                self._writing.discard(scope)
        if scope.cancelled_caught:
            raise anyio.BrokenResourceError

    async def follow(self, within_s: float, progress: Progress | None = None) -> bool:
        """Read until the command's own process ends; return whether it did within that time. Cancelling is safe."""
        deadline = time.monotonic() + within_s
        beat = time.monotonic() + _BEAT_S if progress is not None else deadline
        while self.result is None:
            now_s = time.monotonic()
            if now_s >= deadline:
                return False
            if progress is not None and now_s >= beat:
                beat = now_s + _BEAT_S
                await progress(self.elapsed_s, self.output.last_line())
            unsettled = False
            with anyio.move_on_after(min(deadline, beat) - now_s):
                while self.result is None and not unsettled:
                    unsettled = await self._receive()
            if unsettled:
                await self.output.settle()
        return True

    async def finish_output(self) -> bool:
        """Take what was written before the end; return whether children still hold the pipes."""
        deadline = time.monotonic() + _LATE_S
        while (left := deadline - time.monotonic()) > 0:
            unsettled = False
            try:
                with anyio.move_on_after(left):
                    while not unsettled and time.monotonic() < deadline:
                        unsettled = await self._receive()
            except anyio.EndOfStream:
                return False
            if unsettled:
                await self.output.settle()
        return True

    async def drain(self) -> None:
        """Take what children write until none of them holds the pipes, so that none dies of a closed one."""
        try:
            while True:
                if await self._receive():
                    await self.output.settle()
        except anyio.EndOfStream:
            return

    async def _receive(self) -> bool:
        """Take one event; return whether the output must settle before the next.

        Raises:
            anyio.EndOfStream: There will be no more, and the end was seen.
        """
        try:
            event = await self.execution.receive()
        except (SandboxError, anyio.ClosedResourceError, anyio.EndOfStream) as error:
            if self.result is not None:
                raise anyio.EndOfStream from None
            self.lose(str(error) if isinstance(error, SandboxError) else "the connection to the sandbox was closed")
            return False
        unsettled = False
        if isinstance(event, Exited):
            self.result = event.result
        else:
            unsettled = self.output.add(event)
            if len(event.data) >= _BUSY_BYTES:  # an engine may never have to wait: let others have their turn
                await lowlevel.cancel_shielded_checkpoint()
        self._notify()
        return unsettled

    def lose(self, detail: str) -> None:
        """Note that nothing more will be heard of it."""
        if self.result is None:
            self.result = ExecResult(
                exit_code=None, termination=Termination.LOST, duration_s=self.elapsed_s, detail=detail
            )
        self._notify()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def changed(self) -> None:
        """Return when it has said something more, or ended. Somebody else must be reading."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def outcome(self, *, notes: tuple[str, ...] = (), spool_path: str = "", whole: bool = False) -> Outcome:
        """Return what it said since the last time, or with `whole` from the start, and how it ended, if it has."""
        final = self.result is not None
        stdout, stderr = self.output.whole(final=final) if whole else self.output.take(final=final)
        told, self.notes = self.notes, ()
        return Outcome(
            cwd=self.cwd,
            elapsed_s=self.elapsed_s,
            result=self.result,
            stdout=stdout,
            stderr=stderr,
            job_id=self.job_id,
            command=self.line,
            spool_path=spool_path,
            gap=self.output.gap,
            notes=(*told, *notes),
        )

    async def close(self) -> None:
        """Kill what still runs, free everything, and let the spool files be finished. Bounded; not to be cancelled."""
        self._closed = True
        self.output.close()
        with anyio.move_on_after(_ABORT_S, shield=True):
            while self._writing:  # the engine frees the pipe that they wait for
                for scope in self._writing:
                    scope.cancel()
                await lowlevel.checkpoint()
            await self.execution.aclose()
        if self._invocation.script:
            with anyio.move_on_after(_ABORT_S, shield=True), suppress(OSError, SandboxError):
                await self._shells.clean_up(self.live.sandbox, self._invocation)
