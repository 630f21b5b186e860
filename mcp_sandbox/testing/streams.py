"""Byte streams that show what a reader of theirs does."""

import hashlib

import anyio
import anyio.lowlevel
from anyio.abc import ByteReceiveStream

__all__ = ["CuriousStream", "PatternStream", "digest_of"]


class CuriousStream(ByteReceiveStream):
    """Gives some bytes, then fails, or then waits for ever; it knows whether it was closed."""

    def __init__(self, data: bytes, error: Exception | None) -> None:
        self._data = data
        self._error = error
        self.asked_again = anyio.Event()
        """Set when the bytes were taken and more is wanted."""
        self.closed = False

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """Return the next bytes, or do what comes after them."""
        await anyio.lowlevel.checkpoint()
        if self._data:
            data, self._data = self._data[:max_bytes], self._data[max_bytes:]
            return data
        self.asked_again.set()
        if self._error is not None:
            raise self._error
        await anyio.sleep_forever()
        raise AssertionError

    async def aclose(self) -> None:
        """Remember it."""
        self.closed = True


class PatternStream(ByteReceiveStream):
    """A known number of bytes that are never all in memory."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._block = b"".join(b"%015d\n" % n for n in range(65_536))
        self._digest = hashlib.sha256()

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """Return the next bytes."""
        await anyio.lowlevel.checkpoint()
        if not self._left:
            raise anyio.EndOfStream
        data = self._block[: min(max_bytes, self._left)]
        self._left -= len(data)
        self._digest.update(data)
        return data

    @property
    def digest(self) -> str:
        """SHA-256 of what was given out."""
        return self._digest.hexdigest()

    async def aclose(self) -> None:
        """Do nothing."""


async def digest_of(stream: ByteReceiveStream) -> tuple[int, str]:
    """Receive everything; return its size and SHA-256."""
    size, digest = 0, hashlib.sha256()
    async for chunk in stream:
        size += len(chunk)
        digest.update(chunk)
    return size, digest.hexdigest()
