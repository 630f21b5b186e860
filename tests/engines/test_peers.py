"""Connections: what ends with one, what outlives it, who may have one."""

import os
import signal
from collections.abc import Iterator

import anyio
import pytest
from command_record import drain, run, shell, start
from docker_guest import DockerGuest
from guest_world import AGENT, Guest, NamespacedGuest, namespaces_work

from mcp_sandbox.core.errors import SandboxGoneError
from mcp_sandbox.core.exec import Exited, Termination
from mcp_sandbox.core.files import ReadRequest, UploadRequest, WriteRequest
from mcp_sandbox.core.streams import BytesStream, read_all
from mcp_sandbox.engines.carrier import GuestCarrier, GuestRestarting
from mcp_sandbox.engines.guest_files import read_file, write_file
from mcp_sandbox.engines.guest_trees import unpack_tar
from mcp_sandbox.guest.wire import Type, fields
from tests.containers.engines import Dockerd

__all__ = ["Restarting"]


@pytest.fixture(params=["local", "stream", "docker"])
def shared(request: pytest.FixtureRequest) -> Iterator[Guest]:
    """An agent of the test's own that takes several connections."""
    if request.param == "docker":
        engine: Dockerd = request.getfixturevalue("dockerd")
        with DockerGuest(engine, engine.base, grace_ms=2000) as container:
            yield container
        return
    if reason := namespaces_work():
        pytest.skip(reason)
    with NamespacedGuest(request.param) as guest:
        yield guest


@pytest.fixture
def bridged() -> Iterator[NamespacedGuest]:
    """An agent behind a bridge."""
    if reason := namespaces_work():
        pytest.skip(reason)
    with NamespacedGuest("stream") as guest:
        yield guest


async def test_the_end_of_a_connection_ends_its_commands_and_no_others(shared: Guest) -> None:
    async with shared.connected() as ours, shared.connected() as theirs:
        script = "setsid sh -c 'echo $$ > /area/mine; echo up; sleep 1000' & wait"
        mine = await start(ours, "sh", "-c", script)
        other = await start(theirs, "sh", "-c", "echo up; read line; echo $line", stdin=True)
        async with mine, other:
            for execution in (mine, other):
                assert not isinstance(await execution.receive(), Exited)
            await ours.aclose()
            assert (await mine.wait()).termination is Termination.LOST
            with anyio.fail_after(5):
                while (await shell(theirs, "kill -0 $(cat /area/mine)")).result.exit_code == 0:
                    await anyio.sleep(0.01)  # nobody tells one peer of another's commands
            await other.write_stdin(b"alive\n")
            assert (await drain(other)).text() == b"alive\n"


async def test_a_file_written_over_one_connection_is_read_over_another(shared: Guest) -> None:
    async with shared.connected() as ours, shared.connected() as theirs:
        await write_file(ours, WriteRequest(path="/area/file"), b"x" * 100_000)
        async with await read_file(theirs, ReadRequest(path="/area/file")) as reader:
            assert len(await read_all(reader, 1 << 20)) == 100_000


async def test_ids_of_one_connection_mean_nothing_on_another(shared: Guest) -> None:
    async with (
        shared.connected() as ours,
        shared.connected() as theirs,
        await start(ours, "sh", "-c", "echo up; sleep 1000") as execution,
    ):
        await execution.receive()
        for number in range(10):
            assert (await theirs.request(Type.SIGNAL, fields(number, 9, 1))).payload == bytes(4)
        await ours.request(Type.PING, b"")
        with anyio.move_on_after(0.1):
            await execution.wait()
            pytest.fail("the other connection's command was killed")


async def test_an_idle_sandbox_restarts_on_request_and_every_peer_hears_of_it(shared: Guest) -> None:
    async with shared.connected() as ours, shared.connected() as theirs:
        with anyio.fail_after(5):
            await ours.request(Type.QUIESCE, b"")
            while not theirs.closed:
                await anyio.sleep(0.01)
        with pytest.raises(GuestRestarting):
            await theirs.request(Type.PING, b"")


async def test_a_busy_sandbox_does_not_restart(shared: Guest) -> None:
    async with shared.connected() as ours:
        async with await start(ours, "sleep", "1000"):
            with pytest.raises(OSError):
                await ours.request(Type.QUIESCE, b"")
        await shell(ours, "sleep 1000 > /dev/null 2>&1 &")
        with pytest.raises(OSError):
            await ours.request(Type.QUIESCE, b"")


async def test_a_shutdown_ends_everything(shared: Guest) -> None:
    async with (
        shared.connected() as ours,
        shared.connected() as theirs,
        await start(theirs, "sleep", "1000") as execution,
    ):
        with anyio.fail_after(5):
            await ours.request(Type.SHUTDOWN, b"")
            assert (await execution.wait()).termination is Termination.LOST


async def test_a_request_that_was_not_looked_at_before_a_restart_can_be_repeated() -> None:
    """The agent serves the newest peer first; it stands still until both requests are in its queues."""
    if reason := namespaces_work():
        pytest.skip(reason)
    outcome: list[str] = []

    async def ask(carrier: GuestCarrier, kind: Type) -> None:
        try:
            await carrier.request(kind, b"")
            outcome.append("answered")
        except GuestRestarting:
            outcome.append("restarting")

    with NamespacedGuest("local") as guest, anyio.fail_after(10):
        async with guest.connected() as older, guest.connected() as newer:
            os.kill(guest.init_pid, signal.SIGSTOP)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, older, Type.PING)
                tasks.start_soon(ask, newer, Type.QUIESCE)
                await anyio.sleep(0.05)
                os.kill(guest.init_pid, signal.SIGCONT)
    assert sorted(outcome) == ["answered", "restarting"]


class Restarting(BytesStream):
    """A source in the middle of which the sandbox restarts."""

    def __init__(self, data: bytes, other: GuestCarrier) -> None:
        super().__init__(data)
        self._other = other
        self.closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes, a moment after the restart."""
        if not self._other.closed:
            await self._other.request(Type.QUIESCE, b"")
            await anyio.sleep(0.1)
        return await super().receive(max_bytes)

    async def aclose(self) -> None:
        """Remember it."""
        self.closed = True
        await super().aclose()


async def test_a_write_whose_source_was_read_is_not_repeated_after_a_restart(shared: Guest) -> None:
    """A second attempt would find the source empty, and put an empty file in the old one's place."""
    async with shared.connected() as ours, shared.connected() as theirs:
        await write_file(ours, WriteRequest(path="/area/file"), b"old")
        source = Restarting(b"new", theirs)
        with anyio.fail_after(10), pytest.raises(SandboxGoneError):
            await write_file(ours, WriteRequest(path="/area/file"), source)
        assert source.closed


async def test_a_write_that_never_began_can_be_repeated_after_a_restart(shared: Guest) -> None:
    async with shared.connected() as ours, shared.connected() as theirs:
        await theirs.request(Type.QUIESCE, b"")
        source = Restarting(b"new", theirs)
        for repeatable in (
            lambda: write_file(ours, WriteRequest(path="/area/file"), source),
            lambda: unpack_tar(ours, UploadRequest(path="/area"), source),
        ):
            with anyio.fail_after(10), pytest.raises(GuestRestarting):
                await repeatable()
        assert not source.closed


async def test_a_lost_connection_is_no_end_of_file(bridged: NamespacedGuest) -> None:
    async with bridged.connected() as carrier:
        await write_file(carrier, WriteRequest(path="/area/big"), bytes(4 << 20))
        async with await read_file(carrier, ReadRequest(path="/area/big")) as reader:
            await reader.receive()
            os.kill(bridged.init_pid, signal.SIGKILL)
            with anyio.fail_after(10), pytest.raises(SandboxGoneError):
                await read_all(reader, 1 << 30)


async def test_nobody_inside_gives_orders_to_the_agent(shared: Guest) -> None:
    """A command that connects would keep a sandbox alive whose server is gone, and could stop the others."""
    async with shared.connected() as carrier:
        with anyio.fail_after(10):
            done = await shell(carrier, f"sleep 0.5 | {AGENT}/guest bridge {AGENT} | wc -c")
        assert done.text().strip() == b"0"


async def test_a_command_cannot_end_the_agent(shared: Guest) -> None:
    async with shared.connected() as carrier:
        for number in (1, 2, 9, 15, 19):
            await run(carrier, "kill", f"-{number}", "1")
        await carrier.request(Type.PING, b"")


async def test_an_agent_that_nobody_uses_ends_after_its_grace() -> None:
    if reason := namespaces_work():
        pytest.skip(reason)
    with NamespacedGuest("local", grace_ms=300) as guest:
        async with guest.connected() as carrier:
            await shell(carrier, "setsid sleep 1000 > /dev/null 2>&1 &")
            await anyio.sleep(0.5)
            await carrier.request(Type.PING, b"")
        assert await anyio.to_thread.run_sync(guest.wait_ended) == 0


async def test_a_bridge_that_hears_nothing_ends(bridged: NamespacedGuest) -> None:
    stream = await bridged.stream(timeout_s=1)
    with anyio.fail_after(10):
        await stream.receive()
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
        assert await stream.process.wait() == 1
    await stream.aclose()
