"""Byte streams over file descriptors that the event loop can watch, or that are regular files."""

import asyncio
import os
import socket
import stat

import anyio
from anyio import to_thread
from anyio.abc import ByteReceiveStream, ByteSendStream

from mcp_sandbox.guest.wire import GuestProtocolError

__all__ = ["FileSource", "FileTarget", "PipeSource", "PipeTarget", "regular_file", "seqpacket_pair", "write_pipe"]

CHUNK_BYTES = 1 << 18
IN_PLACE_BYTES = 1 << 20
BUFFER_BYTES = 1 << 20


def seqpacket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected SEQPACKET sockets with room for many frames."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    return pair


def regular_file(descriptor: int | None) -> int:
    """Return the descriptor of a regular file that an agent passed; on anything else our loop might wait for ever.

    Raises:
        GuestProtocolError: There is none, or it is something else.
    """
    if descriptor is None:
        raise GuestProtocolError("an open file without its descriptor")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise GuestProtocolError("a descriptor that is no regular file")
    return descriptor


async def write_pipe(descriptor: int, data: bytes) -> None:
    """Write all of `data` to a non-blocking pipe.

    Raises:
        anyio.BrokenResourceError: Nobody reads it any more.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            await anyio.wait_writable(descriptor)
        except BrokenPipeError as error:
            raise anyio.BrokenResourceError from error


class _Descriptor:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def _use(self) -> int:
        if self._descriptor < 0:
            raise anyio.ClosedResourceError
        return self._descriptor

    async def aclose(self) -> None:
        """Close the descriptor. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class FileSource(_Descriptor, ByteReceiveStream):
    """Reads a regular file. Small reads happen in place: the page cache answers in microseconds."""

    def __init__(self, descriptor: int, length: int | None) -> None:
        super().__init__(descriptor)
        self._left = length

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes, at most `max_bytes`."""
        want = min(max_bytes, CHUNK_BYTES) if self._left is None else min(max_bytes, CHUNK_BYTES, self._left)
        data = os.read(self._use(), want) if want else b""
        if not data:
            raise anyio.EndOfStream
        if self._left is not None:
            self._left -= len(data)
        await asyncio.sleep(0)
        return data


class FileTarget(_Descriptor, ByteSendStream):
    """Writes a regular file: the first bytes of a new one in place, the rest in a thread.

    Who knows the file can hold its lock while we write, for seconds: whoever appends is met by that, and so is whoever
    takes long enough to be found out.
    """

    def __init__(self, descriptor: int, *, is_new: bool) -> None:
        super().__init__(descriptor)
        self._in_place_bytes = IN_PLACE_BYTES if is_new else 0

    async def send(self, item: bytes) -> None:
        """Write all of `item`."""
        descriptor = self._use()
        view = memoryview(item)
        for at in range(0, len(view), CHUNK_BYTES):
            piece = view[at : at + CHUNK_BYTES]
            if self._in_place_bytes >= len(piece):
                self._in_place_bytes -= len(piece)
                _write_all(descriptor, piece)
                await asyncio.sleep(0)
            else:
                self._in_place_bytes = 0
                await to_thread.run_sync(_write_all, descriptor, piece)


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


class PipeSource(_Descriptor, ByteReceiveStream):
    """Reads a non-blocking pipe."""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return what is there, at most `max_bytes`, waiting for the first byte."""
        while True:
            try:
                data = os.read(self._use(), max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._use())
                continue
            if not data:
                raise anyio.EndOfStream
            return data


class PipeTarget(_Descriptor, ByteSendStream):
    """Writes a non-blocking pipe."""

    async def send(self, item: bytes) -> None:
        """Write all of `item`."""
        await write_pipe(self._use(), item)
