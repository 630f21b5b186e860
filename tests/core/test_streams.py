"""The small byte streams."""

import anyio
import pytest

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.streams import BytesStream, Head, read_all, read_head


async def test_bytes_come_in_pieces_of_at_most_the_size_asked_for() -> None:
    async with BytesStream(b"abcde") as stream:
        assert await stream.receive(3) == b"abc"
        assert await stream.receive() == b"de"
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()


async def test_a_closed_stream_gives_nothing() -> None:
    stream = BytesStream(b"abc")
    await stream.aclose()
    await stream.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await stream.receive()


@pytest.mark.parametrize("size", [0, 1, 5])
async def test_everything_is_read_up_to_the_limit(size: int) -> None:
    assert await read_all(BytesStream(b"x" * size), 5) == b"x" * size


async def test_more_than_the_limit_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="more than 5 bytes"):
        await read_all(BytesStream(b"x" * 6), 5)


async def test_a_head_says_whether_it_is_complete() -> None:
    assert await read_head(BytesStream(b"abc"), 3) == Head(b"abc", complete=True)
    assert await read_head(BytesStream(b"abcd"), 3) == Head(b"abc", complete=False)
