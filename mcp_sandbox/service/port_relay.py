"""A port of this machine's loopback, behind which every connection goes on to somewhere else."""

import asyncio
import contextlib
import errno
import logging
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import anyio
from anyio.abc import ByteStream

from mcp_sandbox.core.errors import InvalidRequestError, SandboxError, StateError

__all__ = ["LOOPBACK", "Places", "PortRelay", "open_port"]

_LOG = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 128
_CHUNK_BYTES: Final = 1 << 18
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NO_ROOM_S: Final = 0.1
_PROBE_S: Final = 15
_RESET: Final = struct.pack("ii", 1, 0)


def open_port(wanted: int) -> socket.socket:
    """Return a socket that listens on the loopback, on the wanted port, or with 0 on one that is free.

    Raises:
        StateError: Somebody else uses it.
        InvalidRequestError: This user may not.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, wanted))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise StateError(
                "Nothing exposed", why=f"another program on this machine uses port {wanted}",
                fix="Take another one, or leave it out to get one that is free",
            ) from error  # fmt: skip
        if error.errno == errno.EACCES:
            raise InvalidRequestError(
                "Nothing exposed", why=f"port {wanted} of this machine needs privileges",
                fix="Take one from 1024 on, or leave it out to get one that is free",
            ) from error  # fmt: skip
        raise
    return listener


class Places:
    """Room for so many connections at once.

    Where there is none, one whose client has said its last word makes room for the next: that client may be gone, and
    the server inside may never end it.
    """

    def __init__(self, count: int) -> None:
        self._free = anyio.Semaphore(count)
        self._parting: dict[anyio.CancelScope, None] = {}
        self._waiting = 0

    async def take(self) -> None:
        """Return once there is room."""
        if not self._free.value and self._parting:
            oldest = next(iter(self._parting))
            del self._parting[oldest]
            oldest.cancel()
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    def part(self, connection: anyio.CancelScope) -> None:
        """Take it that the client of a connection has nothing more to say."""
        if self._waiting:
            connection.cancel()
        else:
            self._parting[connection] = None

    def give_back(self, connection: anyio.CancelScope) -> None:
        """Take it that a connection is over."""
        self._parting.pop(connection, None)
        self._free.release()


class PortRelay:
    """Serves a listening socket, which belongs to it from now on, until it is cancelled.

    Args:
        listener: What `open_port` returned.
        dial: Makes the other half of a connection and closes it; what it raises is a reset for whoever connected.
        places: Held for each connection. Without a free one, whoever connects waits.
    """

    def __init__(
        self,
        listener: socket.socket,
        dial: Callable[[], AbstractAsyncContextManager[ByteStream]],
        places: Places,
    ) -> None:
        self._listener = listener
        self._dial = dial
        self._places = places
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Take connections; they all end with this call, and the port is free again."""
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    client = await self._accepted()
                    try:
                        await self._places.take()
                    except BaseException:
                        client.close()
                        raise
                    tasks.start_soon(self._serve, client)
        finally:
            self._listener.close()

    async def _accepted(self) -> socket.socket:
        while True:
            try:
                client, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    await anyio.sleep(_NO_ROOM_S)  # until others end
                elif error.errno not in (errno.ECONNABORTED, errno.EPROTO):
                    raise
            else:
                return client

    async def _serve(self, client: socket.socket) -> None:
        orderly = False
        scope = anyio.CancelScope()
        try:
            _look_for_life(client)
            with scope:
                async with self._dial() as stream, anyio.create_task_group() as tasks:
                    tasks.start_soon(self._bring_in, client, stream, scope)
                    tasks.start_soon(self._bring_out, stream, client)
                orderly = True
        except* (SandboxError, OSError, anyio.BrokenResourceError) as broken:
            _LOG.debug("a connection broke: %r", broken)
        except* Exception:  # noqa: BLE001 (of one connection; the others go on, and the log has it)
            _LOG.exception("a connection failed")
        finally:
            if not orderly:  # whoever connected must not take it for the end of the data
                with contextlib.suppress(OSError):
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.close()
            self._places.give_back(scope)

    async def _bring_in(self, client: socket.socket, stream: ByteStream, scope: anyio.CancelScope) -> None:
        while data := await self._loop.sock_recv(client, _CHUNK_BYTES):
            await stream.send(data)
        await stream.send_eof()
        self._places.part(scope)

    async def _bring_out(self, stream: ByteStream, client: socket.socket) -> None:
        async for data in stream:
            await self._loop.sock_sendall(client, data)
        client.shutdown(socket.SHUT_WR)


def _look_for_life(client: socket.socket) -> None:
    """Have the kernel notice a client that is gone although nothing more is sent to it."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
