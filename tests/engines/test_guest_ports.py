"""Connections to servers inside, over every carrier."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from command_record import start
from guest_world import NamespacedGuest, namespaces_work

from mcp_sandbox.core.exec import OutputChunk
from mcp_sandbox.core.ports import DialRequest
from mcp_sandbox.engines.carrier import GuestCarrier
from mcp_sandbox.engines.guest_ports import dial
from mcp_sandbox.engines.guest_socket import GuestSocket
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.guest.wire import GuestProtocolError

__all__: list[str] = []

TO = DialRequest(port=8123)

DEAF = """
import socket, time
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
listener.bind(("127.0.0.1", 8123))
listener.listen(512)
print("ready", flush=True)
held = []
while True:
    held.append(listener.accept())
"""

FULL = """
import socket, time
listener = socket.socket()
listener.bind(("127.0.0.1", 8123))
listener.listen(0)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture(params=["local", "stream", "stdio"])
async def carrier(request: pytest.FixtureRequest) -> AsyncIterator[GuestCarrier]:
    """A connection to an agent of the test's own, where a Python can serve."""
    if reason := namespaces_work():
        pytest.skip(reason)
    with NamespacedGuest(request.param) as guest:
        connection = await guest.connect()
        yield connection
        await connection.aclose()


@asynccontextmanager
async def serving(carrier: GuestCarrier, script: str) -> AsyncGenerator[None]:
    """Run a server inside."""
    async with await start(carrier, "python3", "-c", script) as execution:
        event = await execution.receive()
        if not isinstance(event, OutputChunk) or event.data != b"ready\n":
            pytest.skip(f"no server can run inside: {event}")
        yield


async def test_a_server_whose_row_is_full_holds_nobody_else_up(carrier: GuestCarrier) -> None:
    async with serving(carrier, FULL):
        streams = [(await dial(carrier, TO)).stream]
        late = 0
        for _ in range(4):
            try:
                streams.append((await dial(carrier, DialRequest(port=8123, within_s=0.1))).stream)
            except TimeoutError:
                late += 1
        assert late or not isinstance(streams[0], GuestSocket), "a socket of this host tells whether it is accepted"
        for stream in streams:
            await stream.aclose()
        with pytest.raises(ConnectionRefusedError):
            await dial(carrier, DialRequest(port=9))


async def test_connections_that_were_given_up_leave_nothing_in_the_bridge() -> None:
    if reason := namespaces_work():
        pytest.skip(reason)
    with NamespacedGuest("stream") as guest:
        stream = await guest.stream()
        carrier = await StreamCarrier.open(stream)
        async with serving(carrier, DEAF):
            before = len(os.listdir(f"/proc/{stream.process.pid}/fd"))
            for _ in range(20):
                connection = (await dial(carrier, TO)).stream
                with anyio.move_on_after(0.05) as scope:
                    while True:
                        await connection.send(bytes(65_536))
                assert scope.cancelled_caught
                await connection.aclose()
            with anyio.fail_after(5):
                while len(os.listdir(f"/proc/{stream.process.pid}/fd")) > before:
                    await anyio.sleep(0.01)
        await carrier.aclose()


async def test_the_end_of_the_carrier_breaks_its_connections(carrier: GuestCarrier) -> None:
    async with serving(carrier, DEAF):
        connection = (await dial(carrier, TO)).stream

        async def end() -> None:
            await anyio.lowlevel.checkpoint()
            await carrier.aclose()

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(end)
                with pytest.raises(anyio.BrokenResourceError):
                    await connection.receive()
            with pytest.raises(anyio.BrokenResourceError):
                await connection.send(b"x")
        await connection.aclose()


def test_what_is_no_connection_is_not_taken_for_one() -> None:
    readable, writable = os.pipe()
    os.close(writable)
    for descriptor in (None, readable):
        with pytest.raises(GuestProtocolError):
            GuestSocket.of(descriptor)
    with pytest.raises(OSError):
        os.fstat(readable)
