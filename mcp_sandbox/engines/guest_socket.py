"""A connection into a sandbox as a socket of this host."""

import contextlib
import os
import socket
import struct
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from mcp_sandbox.guest.wire import GuestProtocolError

__all__ = ["GuestSocket"]

_RESET: Final = struct.pack("ii", 1, 0)


class GuestSocket(ByteStream):
    """A connected TCP socket that was made inside.

    What handed it over may still hold it and change its flags, so that nothing here relies on them.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._is_open = True
        self._is_lost = False
        self._sent_all = self._received_all = False

    @classmethod
    def of(cls, descriptor: int | None) -> "GuestSocket":
        """Return the stream of a descriptor that an agent passed.

        Raises:
            GuestProtocolError: There is none, or it is something else.
        """
        if descriptor is None:
            raise GuestProtocolError("a connection without its socket")
        try:
            made = cls(descriptor)
        except OSError:
            os.close(descriptor)
            raise GuestProtocolError("a connection that is no socket") from None
        if (
            made._socket.family not in (socket.AF_INET, socket.AF_INET6)
            or made._socket.type & ~socket.SOCK_NONBLOCK != socket.SOCK_STREAM
        ):
            made._socket.close()
            raise GuestProtocolError("a socket that is no connection")
        return made

    async def connected(self) -> None:
        """Wait until the server has accepted; raises the `OSError` if it does not."""
        try:
            await anyio.wait_writable(self._socket)
            if number := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(number, os.strerror(number))
        except BaseException:
            self.close()
            raise

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return what is there, waiting for the first byte."""
        await anyio.lowlevel.checkpoint()
        while True:
            self._require_open()
            try:
                data = self._socket.recv(max_bytes, socket.MSG_DONTWAIT)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            except OSError as error:
                raise anyio.BrokenResourceError from error
            if not data:
                self._received_all = True
                raise anyio.EndOfStream
            return data

    async def send(self, item: bytes) -> None:
        """Send all of `item`."""
        view = memoryview(item)
        while view:
            await anyio.lowlevel.checkpoint()
            self._require_open()
            try:
                view = view[self._socket.send(view, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """End what goes in."""
        self._require_open()
        self._sent_all = True
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Close it, as a reset unless both directions are through. Idempotent."""
        self.close()

    def close(self) -> None:
        """Close it, without waiting for anything. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        anyio.notify_closing(self._socket)
        if not (self._sent_all and self._received_all):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()

    def lost(self) -> None:
        """Take it that the sandbox has ended: whoever waits learns it."""
        self._is_lost = True
        if self._is_open:
            with contextlib.suppress(OSError):  # it may not be connected any more
                self._socket.shutdown(socket.SHUT_RDWR)

    def _require_open(self) -> None:
        if self._is_lost:
            raise anyio.BrokenResourceError
        if not self._is_open:
            raise anyio.ClosedResourceError
