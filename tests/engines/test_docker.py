"""What only a container has: an engine that puts the bridge in, and images without a shell."""

import time
from collections.abc import Iterator

import anyio
import pytest
from command_record import run, shell, start
from docker_guest import DockerGuest
from guest_world import AGENT

from mcp_sandbox.core.files import ListRequest, ReadRequest, WriteRequest
from mcp_sandbox.core.streams import read_all
from mcp_sandbox.engines.guest_files import list_tree, read_file, write_file
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from tests.containers.engines import NOTHING, Dockerd

__all__: list[str] = []

GRACE_MS = 1500


@pytest.fixture
def short_lived(dockerd: Dockerd) -> Iterator[DockerGuest]:
    """A container that stops soon after its last connection."""
    with DockerGuest(dockerd, dockerd.base, grace_ms=GRACE_MS) as guest:
        yield guest


async def stopped(guest: DockerGuest) -> float:
    """Wait until the container has stopped; return how long that took."""
    began = time.monotonic()
    with anyio.fail_after(10):
        while await anyio.to_thread.run_sync(lambda: guest.running):
            await anyio.sleep(0.05)  # the engine is asked as a user would
    return time.monotonic() - began


async def test_an_image_of_nothing_has_commands_and_files(dockerd: Dockerd) -> None:
    with DockerGuest(dockerd, NOTHING, grace_ms=5000) as guest:
        async with guest.connected() as carrier:
            done = await run(carrier, f"{AGENT}/guest")
            assert (done.result.exit_code, done.errors[:12]) == (2, b"usage: guest")
            assert (await run(carrier, "sh", "-c", "true")).result.exit_code == 127
            await write_file(carrier, WriteRequest(path="/area/a/file"), b"data")
            async with await read_file(carrier, ReadRequest(path="/area/a/file")) as reader:
                assert await read_all(reader, 10) == b"data"
            listing = await list_tree(carrier, ListRequest(path="/area", depth=2))
            assert {entry.path for entry in listing.entries} == {"/area/a", "/area/a/file"}


async def test_what_the_agent_holds_cannot_be_looked_into(docker_guest: DockerGuest) -> None:
    async with docker_guest.connected() as carrier:
        script = "for f in environ mem maps fd/0 root exe; do cat /proc/1/$f > /dev/null 2>&1 && echo $f; done; true"
        assert (await shell(carrier, script)).text() == b""


async def test_a_killed_client_leaves_a_container_that_stops_by_itself(short_lived: DockerGuest) -> None:
    stream = await short_lived.stream()
    carrier = await StreamCarrier.open(stream)
    execution = await start(carrier, "sh", "-c", "trap '' TERM HUP; setsid sleep 1000 & echo up; sleep 1000")
    await execution.receive()
    stream.process.kill()
    assert await stopped(short_lived) < 5
    await execution.aclose()
    await carrier.aclose()


async def test_a_container_without_any_connection_stops_by_itself(short_lived: DockerGuest) -> None:
    assert await stopped(short_lived) < 5


async def test_a_stopped_container_starts_again_with_its_files(short_lived: DockerGuest) -> None:
    async with short_lived.connected() as carrier:
        await write_file(carrier, WriteRequest(path="/area/kept"), b"data")
    await stopped(short_lived)
    await anyio.to_thread.run_sync(short_lived.start)
    async with short_lived.connected() as carrier:
        assert (await run(carrier, "cat", "/area/kept")).text() == b"data"


async def test_docker_stop_ends_the_container_at_once(short_lived: DockerGuest, dockerd: Dockerd) -> None:
    async with short_lived.connected() as carrier:
        with anyio.fail_after(5):
            await anyio.to_thread.run_sync(lambda: dockerd.run("stop", short_lived.id))
            while not carrier.closed:
                await anyio.sleep(0.01)
