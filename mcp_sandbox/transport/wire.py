"""Lines read from and written to the descriptors that carry the protocol, without threads. POSIX only."""

import fcntl
import os
import select
import stat
from contextlib import suppress
from enum import Enum
from typing import Final, Literal

import anyio
from anyio import to_thread

__all__ = ["TOO_LONG", "LineReader", "LineWriter", "TooLong", "reader_gone"]

MAX_LINE_BYTES = 16 * 1024 * 1024
_READ_BYTES = 65_536
_PIPE_BYTES = 1 << 20
"""As much as Linux lets anybody have: a long line else comes in 64 KiB at a time, each with two changes of process."""


class TooLong(Enum):
    """What is returned in place of a line that was skipped."""

    TOO_LONG = "too long"


TOO_LONG: Final[Literal[TooLong.TOO_LONG]] = TooLong.TOO_LONG


def _make_waitable(descriptor: int) -> bool:
    """Return whether one can wait for a descriptor; files are always ready, and terminals are shared with a shell."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        os.set_blocking(descriptor, False)
        return True
    return os.isatty(descriptor)


def _widen(descriptor: int) -> None:
    """Let a pipe hold more, where it is one and this user may."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


class LineReader:
    """Lines from a descriptor, in bounded memory; `begun` is what comes before anything that can still be read."""

    def __init__(self, descriptor: int, *, begun: bytes = b"", max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._descriptor = descriptor
        self._read_bytes = _READ_BYTES
        self._max_line_bytes = max_line_bytes
        self._waits = _make_waitable(descriptor)
        self._blocks = os.get_blocking(descriptor)
        _widen(descriptor)
        self._buffer = bytearray(begun)
        self._searched = 0
        self._skipping = False
        self._ended = False

    async def next(self) -> bytes | Literal[TooLong.TOO_LONG] | None:
        """Return the next line without its end, `TOO_LONG` once for a line that is, and `None` at the end.

        A last line that nothing ends is a line. Cancelling loses nothing.
        """
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                if not self._skipping:
                    return line if len(line) <= self._max_line_bytes else TOO_LONG
                self._skipping = False
                continue
            if len(self._buffer) > self._max_line_bytes or self._skipping:
                was_skipping, self._skipping = self._skipping, True
                self._buffer.clear()
                self._searched = 0
                if not was_skipping:
                    return TOO_LONG
            self._searched = len(self._buffer)
            if self._ended:
                rest = bytes(self._buffer)
                self._buffer.clear()
                self._searched = 0
                return rest or None
            await self._fill()

    async def _fill(self) -> None:
        if self._blocks and self._waits:
            await anyio.wait_readable(self._descriptor)
        while True:
            try:
                if self._blocks:
                    data = await to_thread.run_sync(os.read, self._descriptor, self._read_bytes)
                else:
                    data = os.read(self._descriptor, self._read_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._descriptor)
                continue
            except OSError:  # the other end of a socket was reset: nothing more will come
                data = b""
            self._buffer += data
            self._read_bytes = _PIPE_BYTES if len(data) >= _READ_BYTES else _READ_BYTES
            self._ended = not data
            return


class LineWriter:
    """Lines to a descriptor, each one whole: a writer that is cancelled half-way leaves the rest to the next one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _make_waitable(descriptor)
        self._blocks = os.get_blocking(descriptor)
        self._pending = bytearray()
        # Held while the pending bytes are written, so that lines do not run into each other.
        self._lock = anyio.Lock(fast_acquire=True)

    async def write(self, line: bytes) -> None:
        """Write a line, which ends itself, waiting while the reader is slow.

        Raises:
            BrokenPipeError, OSError: Nobody reads any more.
        """
        async with self._lock:
            self._pending += line
            await self._drain()

    async def flush(self) -> None:
        """Write what a cancelled writer left behind."""
        async with self._lock:
            await self._drain()

    async def _drain(self) -> None:
        while self._pending:
            try:
                if self._blocks:
                    written = await to_thread.run_sync(os.write, self._descriptor, bytes(self._pending))
                else:
                    written = os.write(self._descriptor, self._pending)
            except BlockingIOError:
                await anyio.wait_writable(self._descriptor)
            else:
                del self._pending[:written]


async def reader_gone(descriptor: int) -> bool:
    """Return `True` once nobody reads a pipe or socket that we write to, `False` if that cannot be told."""
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    await anyio.wait_readable(descriptor)  # the kernel reports the error as "readable"
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(happened & (select.POLLERR | select.POLLHUP) for _, happened in poll.poll(0))
