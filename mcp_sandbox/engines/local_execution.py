"""A command whose output arrives on pipes of our own."""

import fcntl
import os
import struct
import termios
from collections import deque
from typing import Final

import anyio
import anyio.lowlevel

from mcp_sandbox.core.exec import ExecEvent, ExecResult, Exited, OutputChunk, StreamName
from mcp_sandbox.engines.descriptors import write_pipe
from mcp_sandbox.engines.guest_execution import CommandCarrier, GuestExecution
from mcp_sandbox.engines.sandbox_limits import Judge

__all__ = ["Lingering", "LocalExecution"]

READ_BYTES: Final = 65536
LINGERING_MAX: Final = 128
WATCH_AFTER_S: Final = 0.002
"""Most commands are done by then, and what they said is read at their end: watching pipes takes as long as a read."""
WITHOUT_PAUSE_MAX: Final = 4
"""Events in a row that others let pass: a command that never pauses must not keep the loop from everybody else."""


class Lingering:
    """Commands that ended while their children hold the pipes, the oldest first.

    Each one costs two of our descriptors, which belong to all sandboxes: of too many the oldest are let go of. A child
    that still writes there then ends as it would behind `| head`.
    """

    def __init__(self) -> None:
        self._commands: dict[LocalExecution, None] = {}

    def add(self, command: "LocalExecution") -> None:
        """Take in one more."""
        self._commands[command] = None
        while len(self._commands) > LINGERING_MAX:
            next(iter(self._commands)).let_go()

    def remove(self, command: "LocalExecution") -> None:
        """Forget one. Idempotent."""
        self._commands.pop(command, None)


class LocalExecution(GuestExecution):
    """Reads the pipes only when asked to: a slow consumer slows the command, and nothing piles up here."""

    def __init__(
        self, carrier: CommandCarrier, timeout_s: float | None, lingering: Lingering, judge: Judge | None = None
    ) -> None:
        super().__init__(carrier, timeout_s, judge)
        self._lingering = lingering
        self._pipes: dict[int, StreamName] = {}
        self._watched: set[int] = set()
        self._is_young = True
        self._stdin = -1
        self._sequence = self._without_pause = 0
        self._last: deque[OutputChunk] = deque()
        """What comes before the end. Taken out of the pipes at once: a child could read it away, and we would wait."""

    def _finish(self, result: ExecResult) -> None:
        if not self._result.done():
            for descriptor, name in self._pipes.items():
                if data := _read_now(descriptor, _waiting(descriptor)):
                    self._last.append(self._chunk(name, data))
        super()._finish(result)

    def open_pipes(self, *, stdin: bool, owner: tuple[int, int] | None = None) -> list[int]:
        """Make the pipes; return the ends that belong to the command, in the order the protocol wants.

        They belong to `owner`: `/dev/stdout` and its like are opened anew, which the kernel lets nobody else do.
        """
        passed: list[int] = []
        try:
            if stdin:
                readable, self._stdin = os.pipe2(os.O_CLOEXEC)
                passed.append(readable)
                os.set_blocking(self._stdin, False)
            for name in (StreamName.STDOUT, StreamName.STDERR):
                readable, writable = os.pipe2(os.O_CLOEXEC)
                self._pipes[readable] = name
                passed.append(writable)
                os.set_blocking(readable, False)
            if owner is not None:
                for descriptor in passed:
                    os.fchown(descriptor, *owner)
        except BaseException:  # above all, that there are too many already
            for descriptor in passed:
                os.close(descriptor)
            raise
        return passed

    async def receive(self) -> ExecEvent:
        """Return the next event."""
        self._without_pause += 1
        if self._without_pause > WITHOUT_PAUSE_MAX:
            self._without_pause = 0
            await anyio.lowlevel.checkpoint()
        while True:
            self._wake.clear()
            if self._last:
                return self._last.popleft()
            if self._result.done() and not self._told:
                self._told = True  # what is in the pipes now is a child's
                if self._pipes:
                    self._lingering.add(self)
                return Exited(self._result.result())
            chunk = self._read_any()
            if chunk is not None:
                return chunk
            if not self._pipes and self._told:
                raise anyio.EndOfStream
            self._without_pause = 0
            begin = self._loop.call_later(WATCH_AFTER_S if self._is_young else 0, self._watch)
            self._is_young = False
            try:
                await self._wake.wait()
            finally:
                begin.cancel()
                self._unwatch()

    def _read_any(self) -> OutputChunk | None:
        for descriptor, name in list(self._pipes.items()):
            try:
                data = os.read(descriptor, READ_BYTES)
            except BlockingIOError:
                continue
            del self._pipes[descriptor]
            if not data:
                os.close(descriptor)
                if not self._pipes:
                    self._lingering.remove(self)
                continue
            self._pipes[descriptor] = name  # to the end of the row: the streams take turns
            return self._chunk(name, data)
        return None

    def _chunk(self, name: StreamName, data: bytes) -> OutputChunk:
        self._sequence += 1
        return OutputChunk(name, data, self._sequence - 1)

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
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        self._last.clear()
        self.let_go()

    def let_go(self) -> None:
        """Close the pipes: the stream ends, whoever still writes to it. Idempotent."""
        self._lingering.remove(self)
        self._unwatch()
        for descriptor in self._pipes:
            os.close(descriptor)
        self._pipes.clear()
        self._wake.set()


def _read_now(descriptor: int, count: int) -> bytes:
    """Return what is in a pipe, up to `count` bytes."""
    try:
        return os.read(descriptor, count) if count else b""
    except BlockingIOError:
        return b""


def _waiting(descriptor: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    return int(count)
