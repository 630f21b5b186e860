"""Small byte streams that every layer needs. Whoever opened a stream closes it; nothing here does it for them."""

from typing import NamedTuple

import anyio.lowlevel
from anyio import ClosedResourceError, EndOfStream
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.errors import InvalidRequestError

__all__ = ["BytesStream", "Head", "read_all", "read_head"]


class BytesStream(ByteReceiveStream):
    """Bytes in memory as a stream."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes.

        Raises:
            EndOfStream: Everything was received.
            ClosedResourceError: The stream is closed.
        """
        await anyio.lowlevel.checkpoint()
        if self._closed:
            raise ClosedResourceError
        if not self._data:
            raise EndOfStream
        chunk, self._data = self._data[:max_bytes], self._data[max_bytes:]
        return bytes(chunk)

    async def aclose(self) -> None:
        """Let go of the bytes. Idempotent."""
        self._closed = True
        self._data = memoryview(b"")


class Head(NamedTuple):
    """The beginning of a stream."""

    data: bytes
    complete: bool
    """Whether that was all of it."""


async def read_head(stream: ByteReceiveStream, limit: int) -> Head:
    """Receive up to `limit` bytes, and find out whether there are more.

    One byte more than `limit` may be taken from the stream to find out.
    """
    chunks: list[bytes] = []
    size = 0
    while size <= limit:
        try:
            chunk = await stream.receive(min(1 << 20, limit + 1 - size))
        except EndOfStream:
            return Head(b"".join(chunks), complete=True)
        chunks.append(chunk)
        size += len(chunk)
    return Head(b"".join(chunks)[:limit], complete=False)


async def read_all(stream: ByteReceiveStream, limit: int) -> bytes:
    """Receive everything.

    Raises:
        InvalidRequestError: There are more than `limit` bytes; at most one more than that was held.
    """
    head = await read_head(stream, limit)
    if not head.complete:
        raise InvalidRequestError(
            "Content too large",
            why=f"it has more than {limit:,} bytes, which is all that can be taken at once",
            fix="Take a part of it, or work on it inside the sandbox with a command",
        )
    return head.data
