"""What is said of a command whose container ended, stopped or does not answer, and how soon."""

import time
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.exec import ExecRequest, Termination
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines.docker_stream import ExecStream
from mcp_sandbox.testing.driving import new_spec, put, run, wait_for_file
from tests.containers.engines import Dockerd
from tests.providers.docker_sandboxes import provider_on

__all__: list[str] = []

SOON_S = 15.0
"""Far below the 75 s after which an agent counts as gone, and enough for a busy machine."""


async def test_the_memory_limit_of_a_gvisor_container_ends_the_command_at_once(
    dockerd: Dockerd, tmp_path: Path
) -> None:
    """The host kills the whole sandbox then; the connection into it stays open for a minute more."""
    if "runsc" not in dockerd.runtimes:
        pytest.skip("no runsc here: tests/containers/install-runsc")
    async with provider_on(dockerd, tmp_path / "state", runtime="runsc") as provider:
        spec = replace(new_spec(provider.capabilities), limits=Limits(memory_bytes=200 << 20), best_effort=True)
        async with await provider.create(spec) as sandbox:
            start = time.monotonic()
            ended = await run(sandbox, "python3", "-c", "x = bytearray(400 << 20)", timeout_s=60)
            assert time.monotonic() - start < SOON_S
            assert (ended.result.termination, "200 MiB" in ended.result.detail) == (Termination.OOM, True), ended
            assert (await run(sandbox, "echo", "again")).stdout == b"again\n"
        await provider.destroy(spec.id)


async def test_a_container_that_somebody_kills_is_said_to_have_ended(dockerd: Dockerd, tmp_path: Path) -> None:
    async with provider_on(dockerd, tmp_path / "state") as provider:
        spec = new_spec(provider.capabilities, {"memory_bytes": 200 << 20})
        async with await provider.create(spec) as sandbox:
            script = "echo > /workspace/up; sleep 1000"
            async with await sandbox.exec(ExecRequest(argv=("sh", "-c", script))) as command:
                await wait_for_file(sandbox, "/workspace/up")
                await anyio.to_thread.run_sync(dockerd.run, "kill", f"mcp-sandbox-{spec.id}")
                with anyio.fail_after(SOON_S):
                    result = await command.wait()
                assert (result.termination, result.detail) == (
                    Termination.LOST, "the container ended (exit 137) while the command ran"
                )  # fmt: skip
        await provider.destroy(spec.id)


async def test_a_deadline_holds_where_the_agent_does_not_answer(dockerd: Dockerd, tmp_path: Path) -> None:
    """Its container is paused: nobody inside can end the command, nor its output."""
    async with provider_on(dockerd, tmp_path / "state") as provider:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            await put(sandbox, "/workspace/file", b"")
            request = ExecRequest(argv=("sleep", "1000"), timeout_s=2)
            async with await sandbox.exec(request) as command:
                await anyio.to_thread.run_sync(dockerd.run, "pause", f"mcp-sandbox-{spec.id}")
                with anyio.fail_after(SOON_S), pytest.raises(anyio.EndOfStream):
                    while True:
                        await command.receive()
                assert (await command.wait()).termination is Termination.TIMEOUT
            await anyio.to_thread.run_sync(dockerd.run, "unpause", f"mcp-sandbox-{spec.id}")
            assert (await run(sandbox, "echo", "again")).stdout == b"again\n"
        await provider.destroy(spec.id)


async def test_words_of_the_engine_in_place_of_a_stream_are_no_output(tmp_path: Path) -> None:
    """What dockerd writes on the connection if the container stopped after the program was prepared."""
    said = b"cannot exec in a stopped container: unknown\r\n"

    async def answer(peer: anyio.abc.SocketStream) -> None:
        async with peer:
            await peer.send(said)

    async with await anyio.create_unix_listener(tmp_path / "socket") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        stream = ExecStream(await anyio.connect_unix(tmp_path / "socket"), b"")
        with anyio.fail_after(SOON_S), pytest.raises(anyio.EndOfStream):
            await stream.receive()
        assert stream.errors == said.strip()
        await stream.aclose()
        tasks.cancel_scope.cancel()
