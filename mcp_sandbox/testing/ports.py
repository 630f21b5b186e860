"""Servers inside can be reached from outside, wherever they listen, and nothing that they do hurts anybody else."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import pytest

from mcp_sandbox.core.capability import Capabilities, Verb
from mcp_sandbox.core.exec import ExecRequest, OutputChunk
from mcp_sandbox.core.ports import Connection, DialRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import HANG_S, new_spec, read_file, run, wait_for_file

__all__ = ["PortContract"]

PORT: Final = 8123
MUCH: Final = bytes(range(256)) * 32_768
"""8 MiB, more than all buffers on the way hold together."""

SERVER: Final = r"""
import hashlib, socket, struct, sys, threading, time
host, port, manner = sys.argv[1], int(sys.argv[2]), sys.argv[3]
listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if ":" in host:
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
listener.bind((host, port))
listener.listen(512)
print("ready", flush=True)

def serve(connection):
    try:
        if manner == "echo":
            while data := connection.recv(65536):
                connection.sendall(data)
        elif manner == "digest":
            seen = hashlib.sha256()
            while data := connection.recv(65536):
                seen.update(data)
            connection.sendall(seen.hexdigest().encode())
        elif manner == "last word":
            connection.sendall(b"that is all")
            connection.shutdown(socket.SHUT_WR)
            size = 0
            while data := connection.recv(65536):
                size += len(data)
            open("/workspace/heard", "w").write(str(size))
        elif manner == "flood":
            while True:
                connection.sendall(bytes(65536))
        elif manner == "reset":
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif manner == "tell the end":
            try:
                end = "orderly" if not connection.recv(1) else "data"
            except ConnectionResetError:
                end = "reset"
            open("/workspace/heard", "w").write(end)
        elif manner == "deaf":
            time.sleep(1000)
    except OSError:
        pass
    finally:
        connection.close()

while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

BIND_IPV6: Final = "import socket; socket.socket(socket.AF_INET6).bind(('::1', 0))"


@asynccontextmanager
async def _serving(
    sandbox: Sandbox, python: str, manner: str, host: str = "127.0.0.1", port: int = PORT
) -> AsyncGenerator[None]:
    """Run a server inside."""
    argv = (python, "-c", SERVER, host, str(port), manner)
    async with await sandbox.exec(ExecRequest(argv=argv, cwd="/workspace")) as execution:
        with anyio.fail_after(HANG_S):
            event = await execution.receive()
        assert isinstance(event, OutputChunk), event
        assert event.data == b"ready\n", event.data.decode()
        yield


@asynccontextmanager
async def _dialled(sandbox: Sandbox, port: int = PORT) -> AsyncGenerator[Connection]:
    with anyio.fail_after(HANG_S):
        connection = await sandbox.dial(DialRequest(port=port))
        async with connection.stream:
            yield connection


async def _rest(connection: Connection) -> bytes:
    """Receive to the end."""
    return b"".join([chunk async for chunk in connection.stream])


class PortContract(Contract):
    """`dial`."""

    @pytest.fixture
    def ported(self, capabilities: Capabilities, machine: Sandbox, python: str) -> Sandbox:
        """A new sandbox whose servers can be reached, or a skip."""
        if not capabilities.supports(Verb.EXPOSE):
            pytest.skip("the provider does not declare `expose`")
        return machine

    @pytest.mark.parametrize(
        ("host", "address"),
        [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")],
    )
    async def test_a_server_is_reached_wherever_it_listens(
        self, ported: Sandbox, python: str, host: str, address: str
    ) -> None:
        if ":" in host and (await run(ported, python, "-c", BIND_IPV6)).exit_code != 0:
            pytest.skip("there is no IPv6 loopback inside")
        async with _serving(ported, python, "echo", host), _dialled(ported) as connection:
            assert connection.address == f"{address}:{PORT}"
            await connection.stream.send(b"question")
            assert await connection.stream.receive() == b"question"

    async def test_a_port_on_which_nobody_listens_refuses_the_connection(self, ported: Sandbox) -> None:
        with pytest.raises(ConnectionRefusedError):
            await ported.dial(DialRequest(port=PORT))

    async def test_everything_arrives_and_the_answer_may_come_after_the_end_of_the_question(
        self, ported: Sandbox, python: str
    ) -> None:
        async with _serving(ported, python, "digest"), _dialled(ported) as connection:
            await connection.stream.send(MUCH)
            await connection.stream.send_eof()
            assert (await _rest(connection)).decode() == hashlib.sha256(MUCH).hexdigest()

    async def test_both_directions_flow_at_once(self, ported: Sandbox, python: str) -> None:
        async with _serving(ported, python, "echo"), _dialled(ported) as connection:

            async def ask() -> None:
                await connection.stream.send(MUCH)
                await connection.stream.send_eof()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                assert await _rest(connection) == MUCH

    async def test_a_server_that_has_said_all_still_hears(self, ported: Sandbox, python: str) -> None:
        async with _serving(ported, python, "last word"):
            async with _dialled(ported) as connection:
                assert await _rest(connection) == b"that is all"
                await connection.stream.send(MUCH)
                await connection.stream.send_eof()
                await wait_for_file(ported, "/workspace/heard")
            assert int(await read_file(ported, "/workspace/heard")) == len(MUCH)

    async def test_a_server_that_never_reads_holds_up_its_own_connection_only(
        self, ported: Sandbox, python: str
    ) -> None:
        async with _serving(ported, python, "deaf"):
            for _ in range(3):
                async with _dialled(ported) as connection:
                    sent = 0
                    with anyio.move_on_after(0.5) as scope:
                        while sent < 64 << 20:
                            await connection.stream.send(bytes(65_536))
                            sent += 65_536
                    assert scope.cancelled_caught, "64 MiB are held somewhere"
                    assert (await run(ported, "echo", "alive")).stdout == b"alive\n"

    async def test_a_flood_that_nobody_reads_waits(self, ported: Sandbox, python: str) -> None:
        async with _serving(ported, python, "flood"), _dialled(ported) as connection:
            assert await connection.stream.receive()
            assert (await run(ported, "echo", "alive")).stdout == b"alive\n"
            size = 0
            while size < 4 << 20:
                size += len(await connection.stream.receive())

    async def test_a_reset_is_an_error_and_no_end(self, ported: Sandbox, python: str) -> None:
        async with _serving(ported, python, "reset"), _dialled(ported) as connection:
            await connection.stream.send(b"x")
            with pytest.raises(anyio.BrokenResourceError):
                await _rest(connection)

    async def test_a_server_learns_that_a_connection_was_given_up(self, ported: Sandbox, python: str) -> None:
        async with _serving(ported, python, "tell the end"):
            async with _dialled(ported):
                pass
            await wait_for_file(ported, "/workspace/heard")
            assert await read_file(ported, "/workspace/heard") in (b"reset", b"orderly")

    async def test_a_hundred_connections_at_once(self, ported: Sandbox, python: str) -> None:
        async def ask(number: int) -> None:
            async with _dialled(ported) as connection:
                await connection.stream.send(b"%d" % number)
                await connection.stream.send_eof()
                assert await _rest(connection) == b"%d" % number

        async with _serving(ported, python, "echo"), anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(ask, number)

    async def test_connections_to_one_sandbox_do_not_reach_another(
        self, provider: Provider, ported: Sandbox, python: str
    ) -> None:
        spec = new_spec(provider.capabilities)
        async with _serving(ported, python, "echo"):
            async with await provider.create(spec) as other:
                with pytest.raises(ConnectionRefusedError):
                    await other.dial(DialRequest(port=PORT))
            await provider.destroy(spec.id)

    async def test_a_restore_ends_connections_and_new_ones_reach_what_runs_then(
        self, capabilities: Capabilities, ported: Sandbox, python: str
    ) -> None:
        if not capabilities.supports(Verb.RESTORE):
            pytest.skip("the provider does not declare `restore`")
        content = await ported.snapshot(SnapshotRequest())
        async with _serving(ported, python, "echo"), _dialled(ported) as connection:
            await connection.stream.send(b"before")
            assert await connection.stream.receive() == b"before"
            await ported.restore(content)
            with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                await connection.stream.receive()
        with pytest.raises(ConnectionRefusedError):
            await ported.dial(DialRequest(port=PORT))
        async with _serving(ported, python, "echo"), _dialled(ported) as connection:
            await connection.stream.send(b"after")
            assert await connection.stream.receive() == b"after"
