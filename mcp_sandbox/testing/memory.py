"""Snapshots that hold memory: what ran goes on where it was, after a restore, in a copy and in a fork."""

import anyio
import pytest

from mcp_sandbox.core.capability import Capabilities, Facet, Verb
from mcp_sandbox.core.exec import ExecRequest, Execution, OutputChunk
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import HANG_S, drain, new_spec, read_file, run, sh, wait_for_file

__all__ = ["MemoryContract"]

WHOLE = SnapshotRequest(holds=frozenset({Facet.FILES, Facet.MEMORY}))
SERVER = """
import os, socket, threading
count, log, kept = 0, open("log", "a"), os.urandom(1 << 20)
listener = socket.socket()
listener.bind(("127.0.0.1", 8765))
listener.listen()
open("ready", "w").write("yes")
while True:
    peer, _ = listener.accept()
    count += 1
    log.write("%d\\n" % count)
    log.flush()
    peer.sendall(b"%d %d" % (count, len(kept)))
    peer.close()
"""
ASK = "import socket; print(socket.create_connection(('127.0.0.1', 8765), 5).recv(99).decode())"


class MemoryContract(Contract):
    """Skipped where snapshots hold files only; `SnapshotContract` checks that asking for memory is refused then."""

    @pytest.fixture
    def memory(self, capabilities: Capabilities) -> None:
        """A provider whose snapshots hold memory, or a skip."""
        if Facet.MEMORY not in capabilities.snapshot_holds:
            pytest.skip("the provider's snapshots hold no memory")

    @pytest.fixture
    async def served(self, memory: None, python: str, sandbox: Sandbox) -> Sandbox:
        """A sandbox with a server that counts its callers, left behind by the command that started it."""
        await sh(sandbox, 'exec >/dev/null 2>&1 </dev/null; setsid python3 -c "$1" &', SERVER)
        await wait_for_file(sandbox, "/workspace/ready")
        assert await self.ask(sandbox) == "1 1048576"
        return sandbox

    @staticmethod
    async def ask(sandbox: Sandbox) -> str:
        """Call the server inside; return what it says."""
        done = await run(sandbox, "python3", "-c", ASK)
        assert done.exit_code == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    async def test_a_server_and_its_memory_are_alive_after_a_restore(self, served: Sandbox) -> None:
        """With its listening socket and its open file, which goes on where the file was then."""
        content = await served.snapshot(WHOLE)
        assert content.holds >= WHOLE.holds
        assert content.paused_s > 0, "what ran must have stood still, and the answer says how long"
        assert [await self.ask(served) for _ in range(2)] == ["2 1048576", "3 1048576"]
        for _ in range(2):
            await served.restore(content)
            assert await read_file(served, "/workspace/log") == b"1\n"
            assert await self.ask(served) == "2 1048576"
            assert await read_file(served, "/workspace/log") == b"1\n2\n"

    async def test_a_sandbox_from_a_snapshot_goes_on_with_what_ran(
        self, served: Sandbox, provider: Provider, capabilities: Capabilities
    ) -> None:
        if not capabilities.supports(Verb.CREATE_FROM_SNAPSHOT):
            pytest.skip("the provider does not declare 'create_from_snapshot'")
        content = await served.snapshot(WHOLE)
        spec = new_spec(capabilities, env={"NEW": "yes"})
        async with await provider.restore(content, spec) as copy:
            assert [await self.ask(copy) for _ in range(2)] == ["2 1048576", "3 1048576"]
            assert b"NEW=yes\n" in (await run(copy, "env")).stdout, "new commands have the new environment"
        assert await self.ask(served) == "2 1048576"
        await provider.destroy(spec.id)

    async def test_forks_go_on_with_what_ran_and_apart(
        self, served: Sandbox, provider: Provider, capabilities: Capabilities
    ) -> None:
        if not capabilities.supports(Verb.FORK):
            pytest.skip("the provider does not declare 'fork'")
        specs = [new_spec(capabilities) for _ in range(2)]
        forked = await served.fork(specs)
        assert forked.paused_s > 0
        assert [await self.ask(forked.sandboxes[0]) for _ in range(3)] == ["2 1048576", "3 1048576", "4 1048576"]
        assert await self.ask(forked.sandboxes[1]) == "2 1048576"
        assert await self.ask(served) == "2 1048576"
        for fork in forked.sandboxes:
            await fork.aclose()
            await provider.destroy(fork.id)

    async def test_a_command_that_runs_meanwhile_loses_nothing(self, memory: None, sandbox: Sandbox) -> None:
        """Its input, its output and its end: everything comes, once and in order."""
        script = "while read -r line; do echo got $line; done; echo end"
        async with await sandbox.exec(ExecRequest(argv=("sh", "-c", script), stdin=True)) as execution:
            for turn in range(3):
                await execution.write_stdin(b"%d\n" % turn)
                assert await _line(execution) == b"got %d\n" % turn
                await sandbox.snapshot(WHOLE)
            await execution.close_stdin()
            assert (await drain(execution)).stdout == b"end\n"

    async def test_output_that_streams_meanwhile_is_whole(self, memory: None, sandbox: Sandbox) -> None:
        script = "n=0; while [ $n -lt 20000 ]; do echo $n; n=$((n + 1)); done"
        request = ExecRequest(argv=("sh", "-c", script), timeout_s=HANG_S)
        shown = b""
        async with await sandbox.exec(request) as execution, anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.snapshot, WHOLE)
            shown = (await drain(execution)).stdout
        assert shown.split() == [b"%d" % number for number in range(20_000)]

    async def test_what_ran_in_a_copy_goes_on_although_nobody_reads_it(
        self, memory: None, sandbox: Sandbox, provider: Provider, capabilities: Capabilities
    ) -> None:
        """The copy of a command whose output went to a connection that the copy does not have."""
        if not capabilities.supports(Verb.CREATE_FROM_SNAPSHOT):
            pytest.skip("the provider does not declare 'create_from_snapshot'")
        script = "n=0; while :; do n=$((n + 1)); echo $n > turn; head -c 100000 /dev/zero; done"
        async with await sandbox.exec(ExecRequest(argv=("sh", "-c", script))) as execution:
            await execution.receive()
            content = await sandbox.snapshot(WHOLE)
            spec = new_spec(capabilities)
            async with await provider.restore(content, spec) as copy:
                before = int(await read_file(copy, "/workspace/turn") or b"0")
                with anyio.fail_after(HANG_S):
                    while int(await read_file(copy, "/workspace/turn") or b"0") < before + 20:
                        await anyio.sleep(0.02)
            await provider.destroy(spec.id)
            await execution.kill()

    async def test_another_connection_goes_on_after_a_snapshot(
        self, memory: None, sandbox: Sandbox, provider: Provider
    ) -> None:
        async with await provider.attach(sandbox.id) as second:
            async with await second.exec(ExecRequest(argv=("cat",), stdin=True)) as execution:
                await execution.write_stdin(b"before ")
                await sandbox.snapshot(WHOLE)
                await execution.write_stdin(b"after")
                await execution.close_stdin()
                assert (await drain(execution)).stdout == b"before after"
            assert (await run(second, "echo", "works")).stdout == b"works\n"

    async def test_a_restore_of_memory_that_is_gone_changes_nothing(self, served: Sandbox, provider: Provider) -> None:
        content = await served.snapshot(WHOLE)
        await provider.discard(content)
        with pytest.raises(Exception, match=r"(?i)no such|not there|deleted"):
            await served.restore(content)
        assert await self.ask(served) == "2 1048576"


async def _line(execution: Execution) -> bytes:
    said = b""
    with anyio.fail_after(HANG_S):
        while not said.endswith(b"\n"):
            event = await execution.receive()
            assert isinstance(event, OutputChunk)
            said += event.data
    return said
