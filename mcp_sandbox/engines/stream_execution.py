"""A command whose output arrives as DATA; credit is given as it is taken."""

import asyncio
import struct
from functools import partial
from typing import Final

import anyio

from mcp_sandbox.core.errors import SandboxGoneError
from mcp_sandbox.core.exec import ExecEvent, ExecResult, Exited, OutputChunk, StreamName
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines.guest_execution import EXIT, CommandCarrier, GuestExecution
from mcp_sandbox.engines.reported_limits import Report, judge_by_reports, report_at
from mcp_sandbox.engines.sandbox_limits import Judge
from mcp_sandbox.engines.stream_channels import STDERR, STDOUT, Inlet, Outlet
from mcp_sandbox.guest.wire import FRAME_MAX

__all__ = ["OUTPUT", "StreamExecution"]

OUTPUT: Final = {STDOUT: StreamName.STDOUT, STDERR: StreamName.STDERR}
_BEFORE: Final = struct.Struct("<QQ")
"""Bytes of standard output and error that come before the end; the bridge adds them to what the agent says."""
_PID: Final = struct.Struct("<I")


class StreamExecution(GuestExecution):
    """Takes from the channels only when asked to: a slow consumer slows the command, and nothing piles up here."""

    def __init__(
        self,
        carrier: CommandCarrier,
        timeout_s: float | None,
        limits: Limits | None = None,
        judge: Judge | None = None,
    ) -> None:
        super().__init__(carrier, timeout_s, judge)
        self._limits = limits
        self._before = Report()
        self._inlets: dict[StreamName, Inlet] = {}
        self._own: dict[StreamName, int] = {}
        self._stdin: Outlet | None = None
        self._sequence = 0

    @property
    def wake(self) -> asyncio.Event:
        """What to set when something came."""
        return self._wake

    def connect(self, inlets: dict[StreamName, Inlet], stdin: Outlet | None) -> None:
        """Take the channels."""
        self._inlets, self._stdin = inlets, stdin

    def ended(self, payload: bytes) -> None:
        """Take the agent's word that the process ended, and how much it said before."""
        before = _BEFORE.unpack_from(payload, len(payload) - _BEFORE.size)
        self._own = dict(zip(OUTPUT.values(), before, strict=True))
        if self._limits is not None:
            after = report_at(payload[: -_BEFORE.size], EXIT.size)
            self._judge = _in_turn(partial(judge_by_reports, self._limits, self._before, after), self._judge)
        super().ended(payload)

    def started(self, payload: bytes) -> None:
        """Take what the limits had counted before the command."""
        self._before = report_at(payload, _PID.size)

    def _finish(self, result: ExecResult) -> None:
        # What is here already came before, too. A channel that closed has nothing more.
        for name, inlet in self._inlets.items():
            self._own[name] = max(self._own.get(name, 0), inlet.arrived_bytes)
        super()._finish(result)

    def _owes(self, name: StreamName, inlet: Inlet) -> bool:
        return not inlet.exhausted and inlet.taken_bytes < self._own.get(name, 0)

    async def receive(self) -> ExecEvent:
        """Return the next event."""
        while True:
            self._wake.clear()
            if self._result.done() and not self._told and not any(self._owes(*pair) for pair in self._inlets.items()):
                self._told = True
                return Exited(self._result.result())
            for name, inlet in list(self._inlets.items()):
                if data := inlet.take(FRAME_MAX):
                    self._inlets[name] = self._inlets.pop(name)  # to the end of the row: the streams take turns
                    self._sequence += 1
                    return OutputChunk(name, data, self._sequence - 1)
            if self._told and all(inlet.exhausted for inlet in self._inlets.values()):
                raise anyio.EndOfStream
            await self._wake.wait()

    async def write_stdin(self, data: bytes) -> None:
        """Write all of `data`."""
        if self._stdin is None:
            raise anyio.ClosedResourceError
        try:
            await self._stdin.send(data)
        except (OSError, SandboxGoneError) as error:
            raise anyio.BrokenResourceError from error

    async def close_stdin(self) -> None:
        """Let the command read end of file, once it has read what came before."""
        stdin, self._stdin = self._stdin, None
        if stdin is not None:
            stdin.close()

    def _free(self) -> None:
        if self._stdin is not None:
            self._stdin.close()
            self._stdin = None
        for inlet in self._inlets.values():
            inlet.close()


def _in_turn(first: Judge, second: Judge | None) -> Judge:
    def both(result: ExecResult) -> ExecResult:
        result = first(result)
        return second(result) if second is not None else result

    return both
