"""The standard streams of a program inside a container, over a connection of the engine's API that was taken over.

Not with the SDK: it reads through a buffer, and what is in there when the connection is handed out is lost.
"""

import json
import logging
import ssl
import struct
from contextlib import suppress
from typing import Final, NoReturn
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteStream, Process

from mcp_sandbox.core.errors import ProviderError, ProviderUnavailableError, StateError
from mcp_sandbox.engines.docker_endpoint import Endpoint, TlsFiles

__all__ = ["ExecStream", "open_connection", "open_exec"]

_log = logging.getLogger(__name__)
_HEAD: Final = struct.Struct(">BxxxL")
_STDOUT, _STDERR = 1, 2
_PIECE_BYTES: Final = 256 << 10
_HEADERS_MAX: Final = 65_536
_SAID_MAX: Final = 4096
CONNECT_S: Final = 30.0
DRAIN_S: Final = 2.0
"""Which a program has to end after its input did."""


class ExecStream(ByteStream):
    """Standard input and output; what the program says on standard error is logged, and its end kept."""

    def __init__(self, below: ByteStream, received: bytes) -> None:
        self._below = below
        self._buffer = bytearray(received)
        self._left = 0
        """Bytes of the present piece that are still to come."""
        self._kind = 0
        self._closed = False
        self.errors = b""

    async def receive(self, max_bytes: int = _PIECE_BYTES) -> bytes:
        """Return what the program wrote to standard output."""
        while True:
            while not self._left:
                await self._fill(_HEAD.size)
                if self._buffer[0] > _STDERR or any(self._buffer[1:4]):
                    await self._complain()
                self._kind, self._left = _HEAD.unpack_from(self._buffer)
                del self._buffer[: _HEAD.size]
            await self._fill(1)
            data = bytes(self._buffer[: min(self._left, max_bytes)])
            del self._buffer[: len(data)]
            self._left -= len(data)
            if self._kind == _STDOUT:
                return data
            if self._kind == _STDERR:
                self.errors = (self.errors + data)[-_SAID_MAX:]
                _log.debug("a bridge says: %r", data[:_SAID_MAX])

    async def _complain(self) -> NoReturn:
        """Take what comes without a header as the engine's own words: why the program does not run."""
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError), anyio.move_on_after(DRAIN_S):
            await self._fill(_SAID_MAX)
        self.errors = bytes(self._buffer[:_SAID_MAX]).strip()
        _log.info("the container engine says: %r", self.errors)
        raise anyio.EndOfStream

    async def _fill(self, least: int) -> None:
        while len(self._buffer) < least:
            if self._closed:
                raise anyio.ClosedResourceError
            self._buffer += await self._below.receive(_PIECE_BYTES)

    async def send(self, item: bytes) -> None:
        """Write to standard input."""
        await self._below.send(item)

    async def send_eof(self) -> None:
        """End standard input, where the connection can be closed by half."""
        await self._below.send_eof()

    async def aclose(self) -> None:
        """End the input, take what still comes so that nobody hangs on it, and close the connection. Idempotent."""
        if self._closed:
            return
        self._closed = True
        gone = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)
        try:
            with anyio.move_on_after(DRAIN_S, shield=True):
                try:
                    await self._below.send_eof()
                    while True:
                        await self._below.receive(_PIECE_BYTES)
                except (*gone, NotImplementedError):  # TLS has no half-closed connections
                    pass
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._below)


class _SshStream(ByteStream):
    """A connection to an engine behind `ssh`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def receive(self, max_bytes: int = _PIECE_BYTES) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(item)

    async def send_eof(self) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.aclose()

    async def aclose(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        with anyio.CancelScope(shield=True):
            await self._process.aclose()


async def open_exec(endpoint: Endpoint, version: str, exec_id: str) -> ExecStream:
    """Start a program that the engine has prepared, and take its connection over.

    Args:
        endpoint: Where the engine is.
        version: Of its API.
        exec_id: The engine's name for the program.

    Raises:
        ProviderUnavailableError: The engine cannot be connected to, or ended the connection.
        StateError: The container does not run.
        ProviderError: It was refused.
    """
    below: ByteStream | None = None
    try:
        with anyio.fail_after(CONNECT_S):
            below = await open_connection(endpoint)
            body = json.dumps({"Detach": False, "Tty": False}).encode()
            await below.send(
                f"POST /v{version}/exec/{exec_id}/start HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\n"
                f"Upgrade: tcp\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            return ExecStream(below, await _head(below))
    except BaseException as error:
        if below is not None:
            await anyio.aclose_forcefully(below)
        if isinstance(error, (OSError, anyio.EndOfStream, anyio.BrokenResourceError)):
            why = f"the container engine does not answer ({type(error).__name__}: {error})"
            raise ProviderUnavailableError("No connection", why=why, fix="Start it, then call again") from error
        raise


async def open_connection(endpoint: Endpoint) -> ByteStream:
    """Connect to an engine. Raises what the system says."""
    if endpoint.is_here:
        return await anyio.connect_unix(endpoint.socket_path)
    parts = urlsplit(endpoint.url)
    if parts.scheme == "ssh":
        address = f"{parts.username}@{parts.hostname}" if parts.username else f"{parts.hostname}"
        port = ["-p", str(parts.port)] if parts.port else []
        command = ["ssh", "-T", "-o", "BatchMode=yes", *port, "--", address, "docker", "system", "dial-stdio"]
        return _SshStream(await anyio.open_process(command, stderr=None))
    if endpoint.tls is None and parts.scheme != "https":
        return await anyio.connect_tcp(parts.hostname or "localhost", parts.port or 2375)
    context = await anyio.to_thread.run_sync(_tls_context, endpoint.tls)
    return await anyio.connect_tcp(
        parts.hostname or "localhost", parts.port or 2376, ssl_context=context, tls_standard_compatible=False
    )


def _tls_context(files: TlsFiles | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca if files else None)
    if files and files.certificate:
        context.load_cert_chain(files.certificate, files.key)
    if files and not files.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def _head(below: ByteStream) -> bytes:
    """Take the answer's head; return what came behind it."""
    received = b""
    while b"\r\n\r\n" not in received:
        if len(received) > _HEADERS_MAX:
            raise ProviderError("No connection", why="the engine's answer has no end", fix="Report this as a bug")
        received += await below.receive()
    head, _, rest = received.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    if status in (101, 200):
        return rest
    with anyio.move_on_after(1):
        while len(rest) < _SAID_MAX and not rest.rstrip().endswith(b"}"):
            rest += await below.receive()
    said = rest.decode("utf-8", "replace").strip()
    what = "No connection into the container"
    if status == 409:
        raise StateError(what, why=said, fix="Start it")
    raise ProviderError(what, why=f"the engine answered with status {status}: {said}", fix="Try again")
