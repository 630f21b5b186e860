"""The ends of a byte-stream carrier's channels: what comes is bounded by credit, what goes waits for it."""

import abc
import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.engines.carrier import os_error
from mcp_sandbox.guest.errnos import host_errno
from mcp_sandbox.guest.wire import FRAME_MAX, GuestProtocolError, Type

__all__ = [
    "STDERR",
    "STDOUT",
    "TO_GUEST",
    "WINDOW",
    "BoundedInlet",
    "ChannelCarrier",
    "ChannelPair",
    "Inlet",
    "Outlet",
    "WorkerInlet",
]

WINDOW: Final = 256 << 10
"""Bytes that a sender may be ahead of the receiver's credit."""
CREDIT_STEP: Final = WINDOW // 4
"""Credit is given in steps of this size: a line of output does not cost a frame of its own."""
TO_GUEST, STDOUT, STDERR = 0, 1, 2
_EPIPE: Final = 32
_NO_ERROR: Final = bytes(4)


class ChannelCarrier(abc.ABC):
    """What a channel needs of its connection."""

    @abc.abstractmethod
    def send(self, kind: Type, number: int, payload: bytes, channel: int = 0) -> None:
        """Put one message into the row of those that go out; nothing happens once the connection is over."""

    @abc.abstractmethod
    async def drained(self) -> None:
        """Wait while too much is in that row."""


class Inlet(ByteReceiveStream):
    """Bytes from the guest; what is taken here is credited there."""

    def __init__(self, carrier: ChannelCarrier, number: int, channel: int, wake: asyncio.Event) -> None:
        self._carrier, self._number, self._channel, self._wake = carrier, number, channel, wake
        self._chunks: deque[bytes] = deque()
        self._room = WINDOW
        self._owed = 0
        self._ended = False
        self._closed = False
        self._error: Exception | None = None
        self.arrived_bytes = 0
        self.taken_bytes = 0

    # ------------------------------------------------------------------------------------------ the carrier's side

    def arrived(self, data: bytes) -> None:
        """Take DATA.

        Raises:
            GuestProtocolError: It is more than the guest had credit for.
        """
        self._room -= len(data)
        if self._room < 0:
            raise GuestProtocolError(f"{-self._room} bytes more than there was credit for")
        if data and not self._closed:
            self._chunks.append(data)
            self.arrived_bytes += len(data)
        self._wake.set()

    def finished(self, error: Exception | None = None) -> None:
        """Take it that no more comes; `error` is raised once everything was received."""
        if not self._ended:
            self._ended = True
            self._error = error
        self._wake.set()

    # ------------------------------------------------------------------------------------------ the reader's side

    @property
    def exhausted(self) -> bool:
        """Whether nothing is here and nothing will come."""
        return self._ended and not self._chunks

    async def ready(self) -> None:
        """Wait until something is here, or nothing will come."""
        while not self._chunks and not self._ended:
            self._wake.clear()
            await self._wake.wait()

    def take(self, max_bytes: int) -> bytes:
        """Return what is here without waiting; empty if nothing is."""
        if not self._chunks:
            return b""
        data = self._chunks.popleft()
        if len(data) > max_bytes:
            self._chunks.appendleft(data[max_bytes:])
            data = data[:max_bytes]
        self.taken_bytes += len(data)
        self._owed += len(data)
        if self._owed >= CREDIT_STEP and not self._ended:
            self._carrier.send(Type.CREDIT, self._number, struct.pack("<I", self._owed), self._channel)
            self._room += self._owed
            self._owed = 0
        return data

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes.

        Raises:
            anyio.EndOfStream: The guest sent everything.
            OSError: The guest could not read any further.
            SandboxGoneError: The connection ended before everything was here.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        await self.ready()
        data = self.take(max_bytes)
        if not data:
            raise self._error or anyio.EndOfStream
        return data

    async def aclose(self) -> None:
        """Want no more. Idempotent."""
        self.close()

    def close(self) -> None:
        """Want no more, without waiting for anything. Idempotent."""
        self._closed = True
        self._chunks.clear()
        if not self._ended:
            self.finished()
            self._carrier.send(Type.CLOSE, self._number, _NO_ERROR, self._channel)


class BoundedInlet(ByteReceiveStream):
    """At most so many bytes of a channel."""

    def __init__(self, below: Inlet, length: int | None) -> None:
        self._below, self._left = below, length

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes."""
        if self._left is not None:
            max_bytes = min(max_bytes, self._left)
            if not max_bytes:
                raise anyio.EndOfStream
        data = await self._below.receive(max_bytes)
        if self._left is not None:
            self._left -= len(data)
        return data

    async def aclose(self) -> None:
        """Want no more."""
        await self._below.aclose()


class WorkerInlet(ByteReceiveStream):
    """The output of a worker; the end comes only after a good verdict."""

    def __init__(self, below: Inlet, verdict: Callable[[], Awaitable[None]]) -> None:
        self._below, self._verdict = below, verdict

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes; raises like the verdict."""
        try:
            return await self._below.receive(max_bytes)
        except anyio.EndOfStream:
            await self._verdict()
            raise

    async def aclose(self) -> None:
        """Want no more."""
        await self._below.aclose()


class Outlet(ByteSendStream):
    """Bytes to the guest, never more than it has room for. Closing waits until all are written."""

    def __init__(self, carrier: ChannelCarrier, number: int) -> None:
        self._carrier, self._number = carrier, number
        self._window = WINDOW
        self._moved = asyncio.Event()
        self._verdict: int | None = None
        self._loss: Exception | None = None
        self._closing = False

    def credited(self, count: int) -> None:
        """Take CREDIT.

        Raises:
            GuestProtocolError: It credits what was never sent.
        """
        self._window += count
        if self._window > WINDOW:
            raise GuestProtocolError("more credit than there were bytes")
        self._moved.set()

    def finished(self, number: int, loss: Exception | None = None) -> None:
        """Take it that the guest has closed its end: `number` is an errno of Linux, or 0."""
        if self._verdict is None:
            self._verdict, self._loss = number, loss
        self._moved.set()

    async def send(self, item: bytes) -> None:
        """Send all of `item`.

        Raises:
            anyio.BrokenResourceError: Nobody reads it any more.
            OSError: It could not be written.
            SandboxGoneError: The connection is over.
        """
        if self._closing:
            raise anyio.ClosedResourceError
        view = memoryview(item)
        while view:
            await self._carrier.drained()
            while not self._window and self._verdict is None:
                self._moved.clear()
                await self._moved.wait()
            if self._verdict is not None:
                raise self._failure()
            piece = view[: min(self._window, FRAME_MAX)]
            self._window -= len(piece)
            view = view[len(piece) :]
            self._carrier.send(Type.DATA, self._number, bytes(piece), TO_GUEST)

    def _failure(self) -> Exception:
        if self._loss is not None:
            return self._loss
        if self._verdict in (0, _EPIPE):
            return anyio.BrokenResourceError()
        return os_error(host_errno(self._verdict or 0))

    def close(self) -> None:
        """Send the end, without waiting for anything. Idempotent."""
        if not self._closing:
            self._closing = True
            if self._verdict is None:
                self._carrier.send(Type.CLOSE, self._number, _NO_ERROR, TO_GUEST)

    async def aclose(self) -> None:
        """Send the end and wait until the guest has written everything.

        Raises:
            OSError: It could not.
            SandboxGoneError: The connection ended first.
        """
        if self._closing:
            return
        self.close()
        while self._verdict is None:
            self._moved.clear()
            await self._moved.wait()
        if self._loss is not None or self._verdict not in (0, _EPIPE):
            raise self._failure()


class ChannelPair(ByteStream):
    """The two channels of a connection on a byte-stream carrier."""

    def __init__(self, inlet: Inlet, outlet: Outlet) -> None:
        self._inlet, self._outlet = inlet, outlet

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes."""
        try:
            return await self._inlet.receive(max_bytes)
        except (OSError, SandboxError) as error:
            raise anyio.BrokenResourceError from error

    async def send(self, item: bytes) -> None:
        """Send all of `item`."""
        try:
            await self._outlet.send(item)
        except (OSError, SandboxError) as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """End what goes in."""
        self._outlet.close()

    async def aclose(self) -> None:
        """Give up what is not through yet. Idempotent."""
        self._outlet.close()
        self._inlet.close()
