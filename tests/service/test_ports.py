"""Exposed ports: what is between this machine's loopback and a server inside."""

import asyncio
import errno
import json
import os
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from sandbox_world import Server, World, working_server

from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, StateError, UnsupportedError
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.service.port_relay import Places, PortRelay, open_port
from mcp_sandbox.service.ports import PortService

__all__: list[str] = []

ECHO = """
import socket, threading
def echo(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)
with socket.create_server(("127.0.0.1", 8123)) as listener:
    print("ready", flush=True)
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.make(tmp_path, "local")


@pytest.fixture
async def server(world: World) -> AsyncGenerator[Server]:
    async with working_server(world) as opened:
        yield opened


@pytest.fixture
async def ports(server: Server) -> AsyncGenerator[PortService]:
    async with PortService(server.sandboxes) as service:
        yield service


@asynccontextmanager
async def _echoing(server: Server, handle: str = "") -> AsyncGenerator[None]:
    live = await server.sandboxes.open(handle)
    async with await live.sandbox.exec(ExecRequest(argv=("python3", "-c", ECHO))) as execution:
        with anyio.fail_after(10):
            await execution.receive()
        yield


async def _echo(host_port: int, word: bytes = b"word") -> bytes:
    """Say a word and return all that comes back."""
    with anyio.fail_after(10):
        async with await anyio.connect_tcp("127.0.0.1", host_port) as client:
            await client.send(word)
            await client.send_eof()
            return b"".join([data async for data in client])


def _is_open(host_port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", host_port)) == 0


async def test_a_server_is_reached_at_the_url_that_was_answered(server: Server, ports: PortService) -> None:
    async with _echoing(server):
        exposure = await ports.expose(8123)
        assert exposure.server == "127.0.0.1:8123"
        assert exposure.exposed.url == f"http://127.0.0.1:{exposure.exposed.host_port}"
        assert await _echo(exposure.exposed.host_port) == b"word"
        assert await _echo(exposure.exposed.host_port, bytes(3 << 20)) == bytes(3 << 20)


async def test_it_is_bound_to_the_loopback_only(server: Server, ports: PortService) -> None:
    host_port = (await ports.expose(8123, wait_s=0)).exposed.host_port
    tables = [await anyio.Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    listening = [line.split() for line in tables[0].splitlines()[1:]]
    found = {line[1] for line in listening if line[3] == "0A" and int(line[1].partition(":")[2], 16) == host_port}
    assert found == {f"0100007F:{host_port:04X}"}
    assert f":{host_port:04X}" not in tables[1]


async def test_a_port_without_a_server_is_told_and_works_once_there_is_one(server: Server, ports: PortService) -> None:
    exposure = await ports.expose(8123, wait_s=0)
    assert exposure.server == ""
    with pytest.raises(anyio.BrokenResourceError):
        await _echo(exposure.exposed.host_port)
    async with _echoing(server):
        assert await _echo(exposure.exposed.host_port) == b"word"
        again = await ports.expose(8123)
        assert (again.exposed, again.server) == (exposure.exposed, "127.0.0.1:8123")


async def test_a_server_that_comes_late_is_waited_for(server: Server, ports: PortService) -> None:
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            async with _echoing(server):
                await anyio.sleep_forever()

        tasks.start_soon(serve)
        assert (await ports.expose(8123, wait_s=20)).server == "127.0.0.1:8123"
        tasks.cancel_scope.cancel()


async def test_it_lives_through_a_restore_and_the_end_of_the_sandboxs_init(
    world: World, server: Server, ports: PortService
) -> None:
    taken = await server.snapshots.create()
    host_port = (await ports.expose(8123, wait_s=0)).exposed.host_port
    async with _echoing(server), await anyio.connect_tcp("127.0.0.1", host_port) as client:
        await client.send(b"word")
        assert await client.receive() == b"word"
        await server.snapshots.restore(taken.snapshot.id)
        with anyio.fail_after(5), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await client.receive()
    async with _echoing(server):
        assert await _echo(host_port) == b"word"
    live = await server.sandboxes.open()
    init = anyio.Path(world.state.provider("local"), "sandboxes", live.record.id, "init.json")
    os.kill(json.loads(await init.read_bytes())["pid"], signal.SIGKILL)
    async with _echoing(server):
        assert await _echo(host_port) == b"word"


async def test_closing_it_ends_its_connections_and_frees_the_port(server: Server, ports: PortService) -> None:
    exposed = (await ports.expose(8123, wait_s=0)).exposed
    async with _echoing(server), await anyio.connect_tcp("127.0.0.1", exposed.host_port) as client:
        await client.send(b"word")
        assert await client.receive() == b"word"
        assert await ports.close(8123) == exposed
        with anyio.fail_after(5), pytest.raises(anyio.BrokenResourceError):
            await client.receive()
        assert not _is_open(exposed.host_port)
        assert ports.of(exposed.sandbox) == []
        with pytest.raises(NotFoundError):
            await ports.close(8123)
        assert (await ports.expose(8123, host_port=exposed.host_port)).exposed == exposed
        assert await _echo(exposed.host_port) == b"word"


async def test_the_end_of_the_service_ends_everything(server: Server) -> None:
    await server.sandboxes.open()
    before = len(os.listdir("/proc/self/fd"))
    async with _echoing(server):
        async with PortService(server.sandboxes) as ports:
            host_port = (await ports.expose(8123)).exposed.host_port
            clients = [await anyio.connect_tcp("127.0.0.1", host_port) for _ in range(20)]
            for client in clients:
                await client.send(b"word")
                assert await client.receive() == b"word"
        for client in clients:
            with pytest.raises(anyio.BrokenResourceError):
                await client.receive()
            await client.aclose()
    assert not _is_open(host_port)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_destroyed_sandbox_takes_its_ports_along(world: World, server: Server, ports: PortService) -> None:
    await server.sandboxes.create(name="second")
    ours = (await ports.expose(8123, sandbox="second", wait_s=0)).exposed
    async with world.server() as other:
        await other.sandboxes.destroy("second")
    with anyio.fail_after(10):
        await ports.wait_closed(ours)
    assert not _is_open(ours.host_port)


async def test_ports_of_two_sandboxes_lead_to_their_own(server: Server, ports: PortService) -> None:
    await server.sandboxes.create(name="second")
    async with _echoing(server, "second"):
        first = await ports.expose(8123, wait_s=0)
        second = await ports.expose(8123, sandbox="second")
        assert (first.server, second.server) == ("", "127.0.0.1:8123")
        assert await _echo(second.exposed.host_port) == b"word"


async def test_ports_that_cannot_be_had_are_refused(server: Server, ports: PortService) -> None:
    for port, host_port in ((0, 0), (65_536, 0), (-1, 0), (80, 65_536)):
        with pytest.raises(InvalidRequestError):
            await ports.expose(port, host_port=host_port)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(StateError, match="another program"):
        await ports.expose(8123, host_port=taken.getsockname()[1])
    exposed = (await ports.expose(8123, wait_s=0)).exposed
    with pytest.raises(StateError, match="already"):
        await ports.expose(8123, host_port=exposed.host_port % 65_535 + 1)


async def test_a_provider_that_cannot_is_refused(tmp_path: Path) -> None:
    async with World.make(tmp_path).server() as server, PortService(server.sandboxes) as ports:
        with pytest.raises(UnsupportedError):
            await ports.expose(8123)


async def test_a_notice_is_left_to_a_call_that_can_tell_it(server: Server, ports: PortService) -> None:
    host_port = (await ports.expose(8123, wait_s=0)).exposed.host_port
    live = await server.sandboxes.open()
    server.sandboxes.tell_again(type(live)(record=live.record, sandbox=live.sandbox, directory=live.directory,
                                           notices=("the news",)))  # fmt: skip
    with pytest.raises(anyio.BrokenResourceError):
        await _echo(host_port)
    assert (await server.sandboxes.open()).notices == ("the news",)


# ------------------------------------------------------------------------------------------------ the relay alone


@pytest.fixture
async def behind() -> AsyncIterator[int]:
    """A server that says hello, echoes, and never closes by itself."""

    async def serve(stream: ByteStream) -> None:
        async with stream:
            await stream.send(b"hello ")
            async for data in stream:
                await stream.send(data)
            await anyio.sleep_forever()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _relayed(target: int, places: int) -> AsyncGenerator[int]:
    listener = open_port(0)

    @asynccontextmanager
    async def dial() -> AsyncGenerator[ByteStream]:
        async with await anyio.connect_tcp("127.0.0.1", target) as stream:
            yield stream

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(PortRelay(listener, dial, Places(places)).run)
        yield listener.getsockname()[1]
        tasks.cancel_scope.cancel()


async def test_those_beyond_the_bound_wait_until_others_end(behind: int) -> None:
    async with _relayed(behind, 2) as host_port:
        clients = [await anyio.connect_tcp("127.0.0.1", host_port) for _ in range(4)]
        for client in clients[:2]:
            assert await client.receive() == b"hello "
        with anyio.move_on_after(0.2):
            await clients[2].receive()
            pytest.fail("a third one was served")
        for leaving, next_one in ((0, 2), (1, 3)):
            await clients[leaving].send_eof()  # its answer may still come, but others wait
            with anyio.fail_after(5):
                assert await clients[next_one].receive() == b"hello "
            with anyio.fail_after(5), pytest.raises(anyio.BrokenResourceError):
                await clients[leaving].receive()
        for client in clients:
            await client.aclose()


async def test_one_that_has_said_all_waits_for_its_answer_while_there_is_room(behind: int) -> None:
    async with _relayed(behind, 2) as host_port, await anyio.connect_tcp("127.0.0.1", host_port) as client:
        await client.send_eof()
        assert await client.receive() == b"hello "
        with anyio.move_on_after(0.2):
            await client.receive()
            pytest.fail("it was ended")


async def test_a_reset_by_the_client_ends_the_connection_behind(behind: int) -> None:
    async with _relayed(behind, 1) as host_port:
        for _ in range(3):  # with one place, each must have ended for the next one
            client = socket.create_connection(("127.0.0.1", host_port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.setblocking(False)
            with anyio.fail_after(5):
                assert await asyncio.get_running_loop().sock_recv(client, 100) == b"hello "
            client.close()


async def test_a_connection_that_leads_nowhere_is_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        target = nobody.getsockname()[1]
    async with _relayed(target, 2) as host_port:
        client = socket.create_connection(("127.0.0.1", host_port))
        client.setblocking(False)
        with anyio.fail_after(5), pytest.raises(OSError) as caught:
            await asyncio.get_running_loop().sock_recv(client, 100)
        assert caught.value.errno == errno.ECONNRESET
        client.close()
