"""Sockets inside the sandbox over a bridge: accepted connections, datagrams, connections to what listens inside."""

import shutil
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import ByteStream
from command_record import ENVIRONMENT
from guest_world import PATH, NamespacedGuest, namespaces_work
from raw_peer import frame

from mcp_sandbox.guest.wire import HEAD, ExecFlag, Frame, Type, exec_payload, fields

__all__ = ["RawStream"]

TO_GUEST, FROM_GUEST = 0, 1


class RawStream:
    """Frames over a bridge, as another host side would read and write them."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._buffer = b""
        self._kept: list[Frame] = []

    async def send(self, kind: Type, number: int, payload: bytes = b"", channel: int = 0) -> None:
        """Send one frame."""
        await self._stream.send(frame(kind, number, payload, 0, channel))

    async def _next(self) -> Frame:
        while len(self._buffer) < HEAD.size or len(self._buffer) < HEAD.size + HEAD.unpack_from(self._buffer)[0]:
            self._buffer += await self._stream.receive()
        size = HEAD.size + HEAD.unpack_from(self._buffer)[0]
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return Frame.decode(found)

    async def expect(self, kind: Type, number: int | None = None, channel: int = 0) -> Frame:
        """Return the next frame of this kind; others are kept for later."""
        with anyio.fail_after(10):
            while True:
                for at, one in enumerate(self._kept):
                    if one.type == kind and number in (None, one.id) and one.channel == channel:
                        return self._kept.pop(at)
                self._kept.append(await self._next())

    async def ask(self, kind: Type, number: int, payload: bytes) -> Frame:
        """Send a request that succeeds."""
        await self.send(kind, number, payload)
        return await self.expect(Type.OK, number)

    async def bash(self, number: int, script: str) -> None:
        """Start a script."""
        await self.send(Type.EXEC, number, exec_payload(ExecFlag(0), "/", ["bash", "-c", script], ENVIRONMENT))
        await self.expect(Type.STARTED, number)


@pytest.fixture
async def bridge() -> AsyncGenerator[RawStream]:
    """A bridge to an agent with a loopback interface."""
    if reason := namespaces_work() or ("" if shutil.which("ip", path=PATH) else "no ip(8) here"):
        pytest.skip(reason)
    with NamespacedGuest("stream") as guest:
        async with _opened(await guest.stream()) as raw:
            yield raw


@asynccontextmanager
async def _opened(stream: ByteStream) -> AsyncGenerator[RawStream]:
    raw = RawStream(stream)
    await raw.expect(Type.WELCOME)
    try:
        yield raw
    finally:
        await stream.aclose()


async def test_accepted_connections_are_channels_with_both_ends(bridge: RawStream) -> None:
    await bridge.ask(Type.LISTEN, 1, fields(8080, 0))
    await bridge.bash(2, "exec 3<>/dev/tcp/127.0.0.1/8080; printf question >&3; cat <&3")
    accepted = await bridge.expect(Type.ACCEPTED)
    assert accepted.payload == fields(1)
    assert accepted.id >= 0x80000000
    assert (await bridge.expect(Type.DATA, accepted.id, FROM_GUEST)).payload == b"question"
    await bridge.send(Type.DATA, accepted.id, b"answer", TO_GUEST)
    await bridge.send(Type.CLOSE, accepted.id, bytes(4), TO_GUEST)
    assert (await bridge.expect(Type.CREDIT, accepted.id)).payload == fields(6)
    assert (await bridge.expect(Type.DATA, 2, FROM_GUEST)).payload == b"answer"
    assert (await bridge.expect(Type.CLOSE, accepted.id, FROM_GUEST)).payload == bytes(4)
    assert (await bridge.expect(Type.EXIT, 2)).payload[:4] == bytes(4)


async def test_a_listener_that_is_closed_takes_nobody(bridge: RawStream) -> None:
    await bridge.ask(Type.LISTEN, 1, fields(8080, 0))
    await bridge.send(Type.CLOSE, 1, bytes(4))
    await bridge.ask(Type.PING, 2, b"")
    await bridge.bash(3, "exec 3<>/dev/tcp/127.0.0.1/8080")
    assert (await bridge.expect(Type.EXIT, 3)).payload[:4] != bytes(4)
    await bridge.ask(Type.LISTEN, 4, fields(8080, 0))


async def test_datagrams_keep_their_edges_and_their_senders(bridge: RawStream) -> None:
    await bridge.ask(Type.LISTEN, 1, fields(5353, 1))
    await bridge.bash(2, "exec 3<>/dev/udp/127.0.0.1/5353; printf one >&3; printf two >&3; head -c 5 <&3")
    for text in (b"one", b"two"):
        payload = (await bridge.expect(Type.DATA, 1, FROM_GUEST)).payload
        address, port, rest = struct.unpack_from("!4sHH", payload)
        assert (address, rest, payload[8:]) == (bytes([127, 0, 0, 1]), 0, text)
        assert port > 0
        sender = payload[:8]
    await bridge.send(Type.DATA, 1, sender + b"reply", TO_GUEST)
    assert (await bridge.expect(Type.CREDIT, 1)).payload == fields(13)
    assert (await bridge.expect(Type.DATA, 2, FROM_GUEST)).payload == b"reply"


async def test_a_connection_to_what_listens_inside_is_a_channel(bridge: RawStream) -> None:
    await bridge.ask(Type.LISTEN, 1, fields(8080, 0))
    await bridge.ask(Type.CONNECT, 2, fields(8080))
    accepted = await bridge.expect(Type.ACCEPTED)
    await bridge.send(Type.DATA, 2, b"hello", TO_GUEST)
    assert (await bridge.expect(Type.DATA, accepted.id, FROM_GUEST)).payload == b"hello"
    await bridge.send(Type.DATA, accepted.id, b"back", TO_GUEST)
    assert (await bridge.expect(Type.DATA, 2, FROM_GUEST)).payload == b"back"
    for channel in (TO_GUEST, FROM_GUEST):
        await bridge.send(Type.CLOSE, 2, bytes(4), channel)
    assert (await bridge.expect(Type.CLOSE, accepted.id, FROM_GUEST)).payload == bytes(4)


async def test_a_connection_to_nobody_is_refused(bridge: RawStream) -> None:
    await bridge.send(Type.CONNECT, 1, fields(9))
    assert (await bridge.expect(Type.ERROR, 1)).payload[:4] == fields(111)  # ECONNREFUSED


async def test_a_terminal_is_one_channel_each_way(bridge: RawStream) -> None:
    script = "stty size; read line; echo got $line; test -t 0 && test -t 1 && echo terminal"
    payload = exec_payload(ExecFlag.PTY, "/", ["sh", "-c", script], ENVIRONMENT, 24 << 16 | 80)
    await bridge.send(Type.EXEC, 1, payload)
    await bridge.expect(Type.STARTED, 1)
    await bridge.send(Type.RESIZE, 2, fields(1, 50 << 16 | 132))
    await bridge.expect(Type.OK, 2)
    await bridge.send(Type.DATA, 1, b"word\n", TO_GUEST)
    said = b""
    while not said.endswith(b"terminal\r\n"):
        said += (await bridge.expect(Type.DATA, 1, FROM_GUEST)).payload
    assert b"got word\r\n" in said
    assert (await bridge.expect(Type.EXIT, 1)).payload[:4] == bytes(4)
    assert (await bridge.expect(Type.CLOSE, 1, FROM_GUEST)).payload == bytes(4)
