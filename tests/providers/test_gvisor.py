"""What only gVisor has: a program that users bring along, memory that belongs to its version, a kernel to be killed."""

import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.errors import ProviderUnavailableError, StateError, UnsupportedError
from mcp_sandbox.core.exec import ExecRequest, Termination
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines import stream_answers
from mcp_sandbox.engines.runsc import find_runsc
from mcp_sandbox.providers.gvisor import GvisorProvider
from mcp_sandbox.testing.driving import new_spec, read_file, run, sh, wait_for_file
from mcp_sandbox.testing.memory import WHOLE

__all__: list[str] = []

needs_runsc = pytest.mark.skipif(
    not (os.environ.get("MCP_SANDBOX_RUNSC") or shutil.which("runsc")),
    reason="no runsc in PATH: tests/containers/install-runsc brings one",
)
USERS = """
import os, signal
for user in range(1, 60000):
    if os.fork():
        os.wait()
        continue
    os.setuid(user)
    for _ in range(12):
        if not os.fork():
            signal.pause()
    os._exit(0)
"""
"""Leaves a dozen processes of each user."""
SERVER = """
import anyio, sys
from pathlib import Path
from mcp_sandbox.providers.gvisor import GvisorProvider
from mcp_sandbox.testing.driving import new_spec, sh

async def main():
    async with GvisorProvider(Path(sys.argv[1])) as provider:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            await sh(sandbox, "echo kept > file; exec >/dev/null 2>&1 </dev/null; setsid sleep 1000 &")
            print(spec.id, flush=True)
            await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.fixture
async def provider(state_directory: Path) -> AsyncIterator[GvisorProvider]:
    """An opened provider."""
    async with GvisorProvider(state_directory) as provider:
        yield provider


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("runsc version 0.0~20221219.0", "is 0.0~20221219.0, and the oldest that will do is of May 2024"),
        (None, "what MCP_SANDBOX_RUNSC names does not run"),
    ],
)
async def test_a_runsc_that_will_not_do_is_refused_and_the_error_says_which_one_would(
    said: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "runsc"
    if said is not None:
        program.write_text(f"#!/bin/sh\necho '{said}'\n")
        program.chmod(0o755)
    monkeypatch.setenv("MCP_SANDBOX_RUNSC", str(program))
    with pytest.raises(ProviderUnavailableError) as refused:
        await find_runsc()
    assert why in refused.value.why
    assert "apt-get install runsc" in refused.value.fix


@needs_runsc
async def test_res01_programs_that_become_one_user_after_the_other_end_with_their_kernel_and_the_next_command_works(
    state_directory: Path, provider: GvisorProvider
) -> None:
    """RES-01: gVisor counts the processes of each user for itself; the host counts all of them."""
    spec = new_spec(provider.capabilities, {"pids": 16})
    async with await provider.create(spec) as sandbox:
        with anyio.fail_after(120):
            crowd = await run(sandbox, "python3", "-c", USERS, timeout_s=100)
            assert crowd.result.termination is Termination.LOST
            assert (await run(sandbox, "echo", "works")).stdout == b"works\n"
    await provider.destroy(spec.id)


@needs_runsc
async def test_a_gvisor_that_does_not_answer_is_ended_and_whoever_ran_a_command_there_is_told_why(
    state_directory: Path, provider: GvisorProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        await sh(sandbox, "echo kept > file")
        async with await sandbox.exec(ExecRequest(argv=("cat",), stdin=True)) as execution:
            (kernel,) = [
                pid for pid in _children(_outer_init(state_directory, spec.id)) if "runsc-sandbox" in _command(pid)
            ]
            os.kill(kernel, signal.SIGSTOP)
            monkeypatch.setattr(stream_answers, "WELCOME_S", 1.0)
            with anyio.fail_after(30):
                async with await provider.attach(spec.id) as another:
                    assert await read_file(another, "/workspace/file") == b"kept\n"
                    result = await execution.wait()
            assert result.termination is Termination.LOST
            assert "did not answer within 1 s" in result.detail
            assert "files are kept" in result.detail
        assert (await run(sandbox, "cat", "file")).stdout == b"kept\n"
    await provider.destroy(spec.id)


@needs_runsc
async def test_memory_of_another_version_is_refused_and_nothing_is_touched(
    provider: GvisorProvider, state_directory: Path
) -> None:
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        await sh(sandbox, "exec >/dev/null 2>&1 </dev/null; setsid sleep 1000 &")
        content = await sandbox.snapshot(WHOLE)
        memory = json.loads((state_directory / "snapshots" / f"{content.ref}.json").read_bytes())["memory"]
        facts = state_directory / "memory" / memory / "facts.json"
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "runsc": "0.0~20300101.0"}))
        async with await sandbox.exec(ExecRequest(argv=("cat",), stdin=True)) as execution:
            with pytest.raises(StateError, match=r"0\.0~20300101\.0"):
                await sandbox.restore(content)
            with pytest.raises(StateError):
                await provider.restore(content, new_spec(provider.capabilities))
            await execution.close_stdin()
            assert (await execution.wait()).exit_code == 0
    await provider.destroy(spec.id)


@needs_runsc
async def test_whoever_asks_for_something_during_a_restore_does_not_end_what_it_brings_back(
    provider: GvisorProvider,
) -> None:
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        await sh(sandbox, "exec >/dev/null 2>&1 </dev/null; setsid sleep 1000 &")
        content = await sandbox.snapshot(WHOLE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.restore, content)
            for _ in range(5):
                await anyio.sleep(0.02)
                tasks.start_soon(run, sandbox, "true")
        assert b"sleep" in (await sh(sandbox, "cat /proc/[0-9]*/comm")).stdout
    await provider.destroy(spec.id)


@needs_runsc
async def test_a_deleted_file_that_is_open_is_named_as_the_reason_and_all_goes_on(provider: GvisorProvider) -> None:
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        script = "exec 3>gone; rm gone; echo x > ready; read -r line; echo $line >&3 && echo fine"
        async with await sandbox.exec(ExecRequest(argv=("sh", "-c", script), stdin=True)) as execution:
            await wait_for_file(sandbox, "/workspace/ready")
            with pytest.raises(UnsupportedError, match="deleted"):
                await sandbox.snapshot(WHOLE)
            await execution.write_stdin(b"line\n")
            result = await execution.wait()
        assert (result.exit_code, result.termination) == (0, Termination.EXITED)
    await provider.destroy(spec.id)


@needs_runsc
async def test_of_a_killed_server_nothing_is_left_but_the_files(state_directory: Path) -> None:
    program = [sys.executable, "-c", SERVER, str(state_directory)]
    async with await anyio.open_process(program, stdin=None, stderr=None) as server:
        assert server.stdout is not None
        with anyio.fail_after(60):
            name = (await server.stdout.receive()).decode().strip()
        init = _outer_init(state_directory, name)
        kernels = [pid for pid in _children(init) if "runsc-sandbox" in _command(pid)]
        assert kernels
        server.send_signal(signal.SIGKILL)
    with anyio.fail_after(5):
        while any(_command(pid) for pid in (init, *kernels)):
            await anyio.sleep(0.02)
    async with GvisorProvider(state_directory) as provider:
        found = {str(info.id): info for info in await provider.list()}
        async with await provider.attach(found[name].id) as again:
            assert await read_file(again, "/workspace/file") == b"kept\n"
            assert (await run(again, "echo", "works")).stdout == b"works\n"
        await provider.destroy(found[name].id)


def _outer_init(state: Path, sandbox: str) -> int:
    return int(json.loads((state / "sandboxes" / sandbox / "init.json").read_bytes())["pid"])


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if f"\nPPid:\t{pid}\n" in text:
            found.append(int(path.parent.name))
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@needs_runsc
async def test_few_processes_and_little_memory_leave_gvisor_its_own_threads(provider: GvisorProvider) -> None:
    """A control group counts what gVisor starts for itself."""
    capabilities = provider.capabilities
    if "memory_bytes" not in capabilities.limits:
        pytest.skip("memory cannot be limited here")
    spec = replace(new_spec(capabilities), limits=Limits(memory_bytes=512 << 20, pids=30))
    async with await provider.create(spec) as sandbox:
        assert (await run(sandbox, "echo", "works")).stdout == b"works\n"
    await provider.destroy(spec.id)
