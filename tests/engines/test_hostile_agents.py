"""Hosts that are told nonsense by an agent: whoever waits gets a documented error, and soon."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream
from raw_peer import frame, mutated

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.exec import ExecRequest, Exited
from mcp_sandbox.core.files import ListRequest, ReadRequest, StatRequest, WriteRequest
from mcp_sandbox.core.streams import BytesStream, read_all
from mcp_sandbox.engines.carrier import GuestCarrier, GuestRestarting
from mcp_sandbox.engines.descriptors import seqpacket_pair
from mcp_sandbox.engines.guest_files import list_tree, read_file, stat_path, write_file
from mcp_sandbox.engines.local_carrier import LocalCarrier
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.engines.stream_channels import WINDOW
from mcp_sandbox.guest.wire import FRAME_MAX, MORE, GuestProtocolError, Type, fields

__all__: list[str] = []

WELCOME = frame(Type.WELCOME, 0, fields(1))
DOCUMENTED = (SandboxError, OSError, GuestRestarting, GuestProtocolError)

ANSWERS = (
    (Type.OK, b""), (Type.OK, bytes(64)), (Type.OK, struct.pack("<I", 1) + b"/area/a\0.write-1\0"),
    (Type.OK, struct.pack("<IIIIQqI", 0o100644, 0, 0, 1, 10, 0, 0)), (Type.ERROR, struct.pack("<I", 2) + b"exec\0"),
    (Type.STARTED, fields(5)), (Type.EXIT, struct.pack("<IQQQQQ", 0, 1, 1, 1, 5, 5)),
    (Type.EXIT, struct.pack("<IQQQQQ", 0x137F, 1, 1, 1, 1 << 60, 0)), (Type.DATA, b"bytes"), (Type.CREDIT, fields(9)),
    (Type.CLOSE, fields(0)), (Type.CLOSE, fields(5)), (Type.ACCEPTED, fields(1)), (Type.WELCOME, fields(1)), (77, b""),
)  # fmt: skip


class _SocketStream(ByteStream):
    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await asyncio.get_running_loop().sock_recv(self._socket, max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, item)
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        self._socket.close()


@asynccontextmanager
async def connected(kind: str) -> AsyncGenerator[tuple[GuestCarrier, socket.socket]]:
    """Connect a host to an agent that is our own puppet."""
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    if kind == "local":
        ours, theirs = seqpacket_pair()
        theirs.send(WELCOME)
        carrier: GuestCarrier = (local := LocalCarrier(ours))
        await local.welcome()
    else:
        ours, theirs = socket.socketpair()
        theirs.send(WELCOME)
        carrier = await StreamCarrier.open(_SocketStream(ours))
    theirs.setblocking(False)
    try:
        yield carrier, theirs
    finally:
        theirs.close()
        await carrier.aclose()
    assert faults == []


async def read(carrier: GuestCarrier) -> None:
    async with await read_file(carrier, ReadRequest(path="/f")) as reader:
        await read_all(reader, 1 << 20)


async def command(carrier: GuestCarrier) -> None:
    async with await carrier.exec(ExecRequest(argv=("x",), cwd="/"), []) as execution:
        while not isinstance(await execution.receive(), Exited):
            pass


USES: tuple[Callable[[GuestCarrier], Awaitable[object]], ...] = (
    read,
    command,
    lambda carrier: stat_path(carrier, StatRequest(path="/f")),
    lambda carrier: write_file(carrier, WriteRequest(path="/f"), b"x" * 100_000),
    lambda carrier: list_tree(carrier, ListRequest(path="/d")),
    lambda carrier: carrier.feed(Type.UNPACK, fields("/d"), BytesStream(b"x" * 1000)),
)


def talk(theirs: socket.socket, random_: random.Random) -> None:
    """Say some of what an agent could say, more or less."""
    for _ in range(random_.randrange(1, 12)):
        kind, payload = random_.choice(ANSWERS)
        number, channel = random_.choice((0, 1, 1, 1, 2, 3)), random_.choice((0, 1, 1, 2))
        one = frame(kind, number, mutated(random_, payload), random_.choice((0, 0, 0, 0, MORE)), channel)
        try:
            theirs.send(mutated(random_, one) if random_.randrange(6) == 0 else one)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return


@pytest.mark.parametrize("kind", ["local", "stream"])
@pytest.mark.parametrize("seed", range(60))
async def test_nonsense_from_an_agent_is_a_documented_error(kind: str, seed: int) -> None:
    random_ = random.Random(seed)
    for use in USES:
        async with connected(kind) as (carrier, theirs):
            task = asyncio.ensure_future(use(carrier))
            for _ in range(4):
                talk(theirs, random_)
                await asyncio.sleep(0)
            theirs.close()
            with anyio.fail_after(10):
                with suppress(*DOCUMENTED):
                    await task


async def test_more_bytes_than_there_was_credit_for_cut_the_connection() -> None:
    async with connected("stream") as (carrier, theirs):
        execution = asyncio.create_task(carrier.exec(ExecRequest(argv=("x",), cwd="/"), []))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(theirs, frame(Type.STARTED, 1, fields(5)))
        async with await execution:
            for _ in range(WINDOW // FRAME_MAX):
                await loop.sock_sendall(theirs, frame(Type.DATA, 1, bytes(FRAME_MAX), 0, 1))
            await asyncio.sleep(0.05)
            assert not carrier.closed
            await loop.sock_sendall(theirs, frame(Type.DATA, 1, b"x", 0, 1))
            with anyio.fail_after(5):
                while not carrier.closed:
                    await asyncio.sleep(0.01)


@pytest.mark.parametrize("greeting", [b"", b"\0" * 12, frame(Type.WELCOME, 0, fields(99)), frame(Type.WELCOME, 0, b"")])
async def test_an_agent_of_another_version_is_refused(greeting: bytes) -> None:
    ours, theirs = seqpacket_pair()
    theirs.send(greeting)
    theirs.close()
    carrier = LocalCarrier(ours)
    with anyio.fail_after(5), pytest.raises(DOCUMENTED):
        await carrier.welcome()
    await carrier.aclose()
    ours, theirs = socket.socketpair()
    theirs.send(greeting)
    theirs.close()
    with anyio.fail_after(5), pytest.raises(DOCUMENTED):
        await StreamCarrier.open(_SocketStream(ours))
