"""A command whose output arrives on pipes of our own."""

import fcntl
import os
import struct
import termios
from typing import Final

import anyio
import anyio.lowlevel

from mcp_sandbox.core.exec import ExecEvent, ExecResult, Exited, OutputChunk, StreamName
from mcp_sandbox.engines.descriptors import write_pipe
from mcp_sandbox.engines.guest_execution import CommandCarrier, GuestExecution

__all__ = ["LocalExecution"]

READ_BYTES: Final = 65536


class LocalExecution(GuestExecution):
    """Reads the pipes only when asked to: a slow consumer slows the command, and nothing piles up here."""

    def __init__(self, carrier: CommandCarrier, timeout_s: float | None) -> None:
        super().__init__(carrier, timeout_s)
        self._pipes: dict[int, StreamName] = {}
        self._watched: set[int] = set()
        self._stdin = -1
        self._sequence = 0
        self._own: dict[int, int] = {}
        """Bytes in each pipe that come before the end."""

    def _finish(self, result: ExecResult) -> None:
        if not self._result.done():
            self._own = {descriptor: _waiting(descriptor) for descriptor in self._pipes}
        super()._finish(result)

    def open_pipes(self, *, stdin: bool) -> list[int]:
        """Make the pipes; return the ends that belong to the command, in the order the protocol wants."""
        passed: list[int] = []
        if stdin:
            readable, self._stdin = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._stdin, False)
            passed.append(readable)
        for name in (StreamName.STDOUT, StreamName.STDERR):
            readable, writable = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(readable, False)
            self._pipes[readable] = name
            passed.append(writable)
        return passed

    async def receive(self) -> ExecEvent:
        """Return the next event."""
        await anyio.lowlevel.checkpoint()  # a command that never pauses must not keep the loop from everybody else
        while True:
            self._wake.clear()
            if self._result.done() and not self._told and not any(self._own.values()):
                self._told = True  # what is in the pipes now is a child's
                return Exited(self._result.result())
            chunk = self._read_any()
            if chunk is not None:
                return chunk
            if not self._pipes and self._told:
                raise anyio.EndOfStream
            self._watch()
            try:
                await self._wake.wait()
            finally:
                self._unwatch()

    def _read_any(self) -> OutputChunk | None:
        for descriptor, name in list(self._pipes.items()):
            try:
                data = os.read(descriptor, READ_BYTES)
            except BlockingIOError:
                continue
            del self._pipes[descriptor]
            own = self._own.pop(descriptor, 0)
            if not data:
                os.close(descriptor)
                continue
            self._pipes[descriptor] = name  # to the end of the row: the streams take turns
            self._own[descriptor] = max(0, own - len(data))
            self._sequence += 1
            return OutputChunk(name, data, self._sequence - 1)
        return None

    def _watch(self) -> None:
        for descriptor in self._pipes:
            self._loop.add_reader(descriptor, self._wake.set)
            self._watched.add(descriptor)

    def _unwatch(self) -> None:
        for descriptor in self._watched:
            self._loop.remove_reader(descriptor)
        self._watched.clear()

    async def write_stdin(self, data: bytes) -> None:
        """Write all of `data`."""
        if self._stdin < 0:
            raise anyio.ClosedResourceError
        await write_pipe(self._stdin, data)

    async def close_stdin(self) -> None:
        """Let the command read end of file."""
        descriptor, self._stdin = self._stdin, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _free(self) -> None:
        self._unwatch()
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        for descriptor in self._pipes:
            os.close(descriptor)
        self._pipes.clear()
        self._own.clear()


def _waiting(descriptor: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    return int(count)
