"""Whole trees through a guest agent, as tar streams."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import anyio
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import DownloadRequest, MkdirRequest, UploadRequest
from mcp_sandbox.engines.carrier import GuestCarrier, os_error, protocol_failure
from mcp_sandbox.engines.guest_files import Repeatable, make_directory, path_errors
from mcp_sandbox.guest.records import RecordReader, records_of_tar, tar_of_records
from mcp_sandbox.guest.wire import GuestProtocolError, Type, fields, strings

__all__ = ["pack_tar", "unpack_tar"]

EVERYTHING = 0xFFFFFFFF


class _Generated(ByteReceiveStream):
    """A byte stream over an async generator that it owns, with what the generator reads."""

    def __init__(self, pieces: AsyncIterator[bytes], below: ByteReceiveStream) -> None:
        self._pieces = pieces
        self._below = below
        self._rest = b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._rest:
            try:
                self._rest = await anext(self._pieces)
            except StopAsyncIteration:
                raise anyio.EndOfStream from None
            except GuestProtocolError as error:
                raise protocol_failure(error) from error
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return data

    async def aclose(self) -> None:
        close = getattr(self._pieces, "aclose", None)
        if close is not None:
            await close()
        await self._below.aclose()


async def pack_tar(carrier: GuestCarrier, request: DownloadRequest) -> ByteReceiveStream:
    """Open a tar stream of a tree."""
    async with path_errors(request.path):
        source = await carrier.source(Type.PACK, fields(0, EVERYTHING, EVERYTHING, request.path) + strings(()))
    return _Generated(tar_of_records(RecordReader(source.stream)), source.stream)


async def unpack_tar(carrier: GuestCarrier, request: UploadRequest, tar: ByteReceiveStream) -> None:
    """Unpack a tar stream below a directory, which is made if it is missing."""
    async with Repeatable(tar) as attempt:
        await make_directory(carrier, MkdirRequest(path=request.path))
        refusal: list[Exception] = []

        async def started() -> AsyncGenerator[bytes]:
            attempt.begun = True
            async with contextlib.aclosing(records_of_tar(tar)) as pieces:
                async for piece in _guarded(pieces, refusal):
                    yield piece

        async with contextlib.aclosing(started()) as pieces:
            try:
                await carrier.feed(Type.UNPACK, fields(request.path), _Generated(pieces, tar))
            except OSError as error:
                if refusal:
                    raise refusal[0] from None  # the worker only saw that the stream ended
                raise os_error(error.errno or 5, request.path) from None


async def _guarded(pieces: AsyncIterator[bytes], refusal: list[Exception]) -> AsyncGenerator[bytes]:
    """End the stream where the archive is refused or breaks off: the worker gives up, and the reason is at hand."""
    try:
        async for piece in pieces:
            yield piece
    except (InvalidRequestError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
        refusal.append(error)
