"""A byte stream that refuses to carry more than the policy allows."""

from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.errors import PolicyDeniedError

__all__ = ["BoundedReceiveStream", "refuse_oversize"]


def refuse_oversize(size_bytes: int, max_bytes: int) -> None:
    """Raise `PolicyDeniedError` if there are more bytes than allowed."""
    if size_bytes > max_bytes:
        raise PolicyDeniedError(
            "Nothing written",
            why=f"there are more than the {max_bytes} bytes that the policy allows in one request",
            fix="Write less, or have the operator raise 'max_write_bytes' in the policy",
        )


class BoundedReceiveStream(ByteReceiveStream):
    """Passes bytes on until their total exceeds `max_bytes`."""

    def __init__(self, inner: ByteReceiveStream, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._seen_bytes = 0

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """Return the next bytes, or refuse."""
        data = await self._inner.receive(max_bytes)
        self._seen_bytes += len(data)
        refuse_oversize(self._seen_bytes, self._max_bytes)
        return data

    async def aclose(self) -> None:
        """Close the stream inside."""
        await self._inner.aclose()
