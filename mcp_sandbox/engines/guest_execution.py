"""What commands of a guest agent have in common, whichever way their output travels."""

import abc
import asyncio
import errno
import os
import signal
import struct
import time
from collections.abc import Sequence
from typing import Final

import anyio

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.exec import ExecEvent, ExecRequest, ExecResult, Execution, Exited, Termination
from mcp_sandbox.engines.carrier import GuestCarrier
from mcp_sandbox.engines.sandbox_limits import Judge
from mcp_sandbox.guest.wire import ExecFlag, GuestProtocolError, Type, exec_payload, fields

__all__ = ["EXIT", "CommandCarrier", "GuestExecution", "NeverStarted", "command_payload", "never_started", "too_large"]

EXIT: Final = struct.Struct("<IQQQ")
"""Wait status, user and system microseconds, peak memory in bytes."""
AGAIN_S: Final = 1.0
"""After which a command that does not die is killed again, together with whoever traces it."""
KILL_S: Final = 5.0
"""After which nobody waits any longer for one that does not die, held by the kernel for example."""


class CommandCarrier(GuestCarrier):
    """What a command needs of its connection."""

    @abc.abstractmethod
    def post(self, kind: Type, payload: bytes) -> None:
        """Send a request whose answer nobody waits for."""

    def end_if_silent(self, since: float) -> None:
        """End the connection if nothing was heard from the agent since a moment of the event loop's clock."""

    @abc.abstractmethod
    def forget(self, number: int) -> None:
        """Stop passing events of a command on."""


class GuestExecution(Execution):
    """Knows when and how the command ends; a subclass carries its bytes."""

    def __init__(self, carrier: CommandCarrier, timeout_s: float | None, judge: Judge | None = None) -> None:
        self.number = 0
        self._judge = judge
        self._carrier = carrier
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._result: asyncio.Future[ExecResult] = self._loop.create_future()
        self._told = False
        self._started = time.monotonic()
        self._reason: Termination | None = None
        self._deadline = None if timeout_s is None else self._loop.call_later(timeout_s, self._expire)
        self._timeout_s = timeout_s
        self._killing: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------------------------------ the carrier's side

    def ended(self, payload: bytes) -> None:
        """Take the agent's word that the process ended.

        Raises:
            GuestProtocolError: Nobody can end like that.
        """
        status, user_us, system_us, rss = EXIT.unpack_from(payload)
        code = _exit_code(status)
        termination = Termination.EXITED if code >= 0 else self._reason or Termination.SIGNALED
        detail = f"killed after {self._timeout_s:g} s" if termination is Termination.TIMEOUT else ""
        self._finish(
            ExecResult(
                exit_code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                termination=termination,
                duration_s=time.monotonic() - self._started,
                cpu_s=(user_us + system_us) / 1e6,
                max_rss_bytes=rss,
                detail=detail,
            )
        )

    def lost(self, termination: Termination = Termination.LOST, detail: str = "") -> None:
        """Take it that the sandbox ended first, for a reason if it is known."""
        words = detail or "the sandbox ended while the command ran"
        self._unknown_end(words if self._reason is None or detail else "", termination)

    def _unknown_end(self, detail: str, termination: Termination = Termination.LOST) -> None:
        self._finish(
            ExecResult(
                exit_code=None,
                termination=self._reason or termination,
                duration_s=time.monotonic() - self._started,
                detail=detail,
            )
        )

    def _finish(self, result: ExecResult) -> None:
        self._cancel_timers()
        if not self._result.done():
            self._result.set_result(self._judge(result) if self._judge is not None else result)
        self._wake.set()

    def _expire(self) -> None:
        self._kill(Termination.TIMEOUT)

    def _kill(self, reason: Termination) -> None:
        if self._result.done() or self._carrier.closed:
            return
        self._reason = self._reason or reason
        if self._killing is None:
            self._kill_until(self._loop.time() + KILL_S)

    def _kill_until(self, end: float) -> None:
        if self._loop.time() >= end:
            self._unknown_end("it was killed, but its end has not come")
            self._carrier.end_if_silent(end - KILL_S)  # else its output would be waited for
        elif not self._carrier.closed:
            self._carrier.post(Type.SIGNAL, fields(self.number, signal.SIGKILL, 1))
            self._killing = self._loop.call_later(AGAIN_S, self._kill_until, end)

    def _cancel_timers(self) -> None:
        for timer in (self._deadline, self._killing):
            if timer is not None:
                timer.cancel()

    # ------------------------------------------------------------------------------------------ the caller's side

    async def signal(self, number: int, *, tree: bool = False) -> None:
        """Send a signal to the command's group or tree."""
        if not self._result.done() and not self._carrier.closed:
            await self._carrier.request(Type.SIGNAL, fields(self.number, number, int(tree)))

    async def kill(self) -> None:
        """Kill the whole tree and wait for the command's end."""
        self._kill(Termination.KILLED)
        with anyio.move_on_after(KILL_S + AGAIN_S):
            await asyncio.shield(self._result)

    async def wait(self) -> ExecResult:
        """Return the result."""
        return await asyncio.shield(self._result)

    async def aclose(self) -> None:
        """Kill the tree if the command still runs, then free the pipes."""
        try:
            if not self._result.done():
                with anyio.CancelScope(shield=True):
                    await self.kill()
        finally:
            self.release()

    def release(self) -> None:
        """Free what carries the bytes, and forget the command."""
        self._cancel_timers()
        self._carrier.forget(self.number)
        self._free()
        self._told = True
        if not self._result.done():
            self.lost()
        self._wake.set()

    @abc.abstractmethod
    def _free(self) -> None:
        """Free what carries the bytes. Idempotent."""


def _exit_code(status: int) -> int:
    """Return the exit code, or minus the signal, of a wait status as Linux encodes it."""
    number = status & 0x7F
    if number == 0x7F or status >> 16:
        raise GuestProtocolError(f"a wait status of {status:#x}")
    return -number if number else status >> 8


class NeverStarted(Execution):
    """A command that the kernel refused to start: a result like any other."""

    def __init__(self, result: ExecResult) -> None:
        self._result = result
        self._told = False

    async def receive(self) -> ExecEvent:
        """Return the one event."""
        if self._told:
            raise anyio.EndOfStream
        self._told = True
        return Exited(self._result)

    async def write_stdin(self, data: bytes) -> None:
        """Say that nobody reads."""
        raise anyio.BrokenResourceError

    async def close_stdin(self) -> None:
        """Do nothing."""

    async def signal(self, number: int, *, tree: bool = False) -> None:
        """Do nothing."""

    async def kill(self) -> None:
        """Do nothing."""

    async def wait(self) -> ExecResult:
        """Return the result."""
        return self._result

    async def aclose(self) -> None:
        """Do nothing."""


def command_payload(request: ExecRequest, environment: Sequence[str]) -> bytes:
    """Pack the request for an agent.

    Raises:
        InvalidRequestError: A string cannot be one of a process.
    """
    try:
        return exec_payload(ExecFlag.STDIN if request.stdin else ExecFlag(0), request.cwd, request.argv, environment)
    except ValueError as error:
        raise InvalidRequestError(
            "Command refused", why=f"an argument, a variable or the directory holds what no process can ({error})",
            fix="Leave NUL bytes and lone surrogates out",
        ) from None  # fmt: skip


def too_large(request: ExecRequest, payload: bytes) -> NeverStarted:
    """Return the result of a command that does not fit into a message."""
    return never_started(errno.E2BIG, "exec", request, f"arguments and environment take {len(payload)} bytes")


def never_started(number: int, step: str, request: ExecRequest, reason: str = "") -> NeverStarted:
    """Return the result of a command that failed at `step` with an errno."""
    words = reason or os.strerror(number)
    detail = {
        "chdir": f"cannot enter directory {request.cwd!r}: {words}",
        "exec": f"cannot run {request.argv[0]!r}: {words}",
        "fork": f"cannot start a process: {words}; the sandbox has as many as its limit allows",
    }.get(step, f"cannot start the command at step {step!r}: {words}")
    missing = step == "exec" and number in (errno.ENOENT, errno.ENOTDIR)
    return NeverStarted(ExecResult(exit_code=127 if missing else 126, detail=detail))
