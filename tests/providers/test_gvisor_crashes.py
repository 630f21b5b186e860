"""A server that is killed while it captures or brings back what runs: nothing is lost, and nothing is left."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.core.snapshot import NativeContent
from mcp_sandbox.engines.init_process import init_pid
from mcp_sandbox.providers.gvisor import GvisorProvider
from mcp_sandbox.testing.driving import read_file, sh
from mcp_sandbox.testing.memory import WHOLE

__all__: list[str] = []

pytestmark = pytest.mark.skipif(
    not (os.environ.get("MCP_SANDBOX_RUNSC") or shutil.which("runsc")),
    reason="no runsc in PATH: tests/containers/install-runsc brings one",
)
SERVER = """
import anyio, sys
from pathlib import Path
from mcp_sandbox.providers.gvisor import GvisorProvider
from mcp_sandbox.testing.driving import new_spec, sh
from mcp_sandbox.testing.memory import WHOLE

async def main():
    async with GvisorProvider(Path(sys.argv[1])) as provider:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            await sh(sandbox, "echo kept > file; exec >/dev/null 2>&1 </dev/null; setsid sleep 4321 &")
            content = await sandbox.snapshot(WHOLE)
            print(f"{spec.id} {content.ref}", flush=True)
            sys.stdin.readline()
            while True:
                if sys.argv[2] == "snapshot":
                    await sandbox.snapshot(WHOLE)
                else:
                    await sandbox.restore(content)

anyio.run(main)
"""


@dataclass(frozen=True, slots=True)
class Killed:
    """What a server had made before it was killed."""

    sandbox: SandboxId
    content: NativeContent


@pytest.fixture(params=[("snapshot", 0.02), ("snapshot", 0.09), ("restore", 0.05), ("restore", 0.2)], ids=str)
async def killed(request: pytest.FixtureRequest, state_directory: Path) -> AsyncIterator[Killed]:
    """A server that was killed so many seconds after it had begun; its processes are gone within five more."""
    verb, after_s = request.param
    program = [sys.executable, "-c", SERVER, str(state_directory), verb]
    async with await anyio.open_process(program, stderr=None) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        with anyio.fail_after(60):
            name, ref = (await server.stdout.receive()).decode().split()
        await server.stdin.send(b"\n")
        await anyio.sleep(after_s)  # any moment will do: none is to be a bad one
        server.send_signal(signal.SIGKILL)
    directory = state_directory / "sandboxes" / name
    with anyio.fail_after(5):
        while init_pid(directory) is not None:
            await anyio.sleep(0.02)
    holds = WHOLE.holds
    yield Killed(SandboxId(name), NativeContent(provider="gvisor", ref=ref, holds=holds, size_bytes=None))


async def test_crash01_the_next_server_finds_the_files_and_brings_back_what_ran(
    killed: Killed, state_directory: Path
) -> None:
    """CRASH-01."""
    async with GvisorProvider(state_directory) as provider:
        async with await provider.attach(killed.sandbox) as sandbox:
            assert await read_file(sandbox, "/workspace/file") == b"kept\n"
            await sandbox.restore(killed.content)
            assert b"sleep" in (await sh(sandbox, "cat /proc/[0-9]*/comm")).stdout
            assert await read_file(sandbox, "/workspace/file") == b"kept\n"
        await provider.destroy(killed.sandbox)
        store = provider._engine.store  # pyright: ignore[reportPrivateUsage]
        store.collect(provider._engine.bases.built or "", now=time.time() + 86_400)  # pyright: ignore[reportPrivateUsage]
        named = {json.loads(path.read_bytes()).get("memory") for path in (state_directory / "snapshots").glob("*.json")}
        assert {path.name for path in (state_directory / "memory").iterdir()} <= named
        assert not (state_directory / "sandboxes" / killed.sandbox).exists()
