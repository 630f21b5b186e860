"""Limits that every command of the embedded engine has, whatever was asked for."""

import os
import resource
import signal
import sys
from pathlib import Path

import anyio
import pytest
from pytest import MonkeyPatch

from mcp_sandbox.core.errors import ConfigError, UnsupportedError
from mcp_sandbox.core.exec import ExecRequest, Termination
from mcp_sandbox.core.sandbox import Limits, SandboxSpec, SandboxState
from mcp_sandbox.core.wording import limit_word
from mcp_sandbox.engines.init_process import init_pid
from mcp_sandbox.providers.local import LocalProvider, LocalSandbox
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.testing.driving import drain, sh

MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")


async def test_a_crash_inside_starts_no_program_of_the_host(tmp_path: Path) -> None:
    """core(5): a `core_pattern` that names a program runs it as the host's root unless the limit is exactly 1."""
    async with LocalProvider(tmp_path) as provider:
        sandbox = await provider.create(SandboxSpec(id=new_sandbox_id()))
        request = ExecRequest(argv=("grep", "Max core file size", "/proc/self/limits"), cwd="/")
        async with await sandbox.exec(request) as execution:
            said = (await drain(execution)).stdout
        assert said.split()[4:6] == [b"1", b"1"]
        await provider.destroy(sandbox.id)


async def test_no_sandbox_takes_the_last_of_the_hosts_disk(state_directory: Path, monkeypatch: MonkeyPatch) -> None:
    """RES-03: whatever its own limits are. What writes little goes on: it may be making room."""
    state = os.statvfs(state_directory)
    reserve = state.f_bavail * state.f_frsize - 150 * MIB
    monkeypatch.setenv("MCP_SANDBOX_DISK_RESERVE", str(reserve))
    async with LocalProvider(state_directory) as provider:
        spec = SandboxSpec(id=new_sandbox_id())
        async with await provider.create(spec) as sandbox:
            full = await sh(sandbox, "head -c 20000000000 /dev/zero > fill; echo went on > told", timeout_s=60)
            assert full.result.termination in (Termination.DISK, Termination.EXITED)
            assert "are kept" in full.result.detail
            size = int((await sh(sandbox, "stat -c %s fill")).stdout)
            assert size < 10_000 * MIB, "the rest of the disk must be there"
            small = await sh(sandbox, "echo small > small && cat small && rm fill")
            assert small.stdout == b"small\n"
            assert (await sh(sandbox, "head -c 3000000 /dev/zero > fits && sleep 0.3")).exit_code == 0
        await provider.destroy(spec.id)


@pytest.mark.parametrize("text", ["1GiB", "-1", "x"])
async def test_a_reserve_that_is_no_number_is_said(text: str, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_SANDBOX_DISK_RESERVE", text)
    with pytest.raises(ConfigError, match="MCP_SANDBOX_DISK_RESERVE"):
        async with LocalProvider(tmp_path):
            pass


async def test_a_sandbox_whose_limits_no_longer_hold_is_not_started(state_directory: Path) -> None:
    """Made where they did, or on best effort, and now somewhere else: it would run without them."""
    async with LocalProvider(state_directory) as provider:
        weak = sorted({"memory_bytes", "cpu_count", "disk_bytes"} & provider.capabilities.unenforced.keys())
        if not weak:
            pytest.skip("every limit is enforced here")
        values = {"memory_bytes": 1 << 28, "cpu_count": 1.0, "disk_bytes": 1 << 28}
        limits = Limits(**{weak[0]: values[weak[0]]})  # pyright: ignore[reportArgumentType]
        spec = SandboxSpec(id=new_sandbox_id(), limits=limits, best_effort=True)
        await (await provider.create(spec)).aclose()
        record = state_directory / "sandboxes" / spec.id / "state.json"
        record.write_text(record.read_text().replace('"best_effort": true', '"best_effort": false'))
        with anyio.fail_after(10):
            while {info.id: info.state for info in await provider.list()}[spec.id] is not SandboxState.STOPPED:
                await anyio.sleep(0.01)
        with pytest.raises(UnsupportedError, match=limit_word(weak[0])):
            await provider.attach(spec.id)
        await provider.destroy(spec.id)


async def test_when_memory_is_short_the_kernel_takes_sandboxes_first(state_directory: Path) -> None:
    async with LocalProvider(state_directory) as provider:
        spec = SandboxSpec(id=new_sandbox_id())
        async with await provider.create(spec) as sandbox:
            assert int((await sh(sandbox, "cat /proc/self/oom_score_adj")).stdout) >= 500
        await provider.destroy(spec.id)


async def test_a_command_for_which_no_descriptor_is_left_takes_none_away(state_directory: Path) -> None:
    """Nor does it count as one that runs, for which its sandbox would be watched for ever."""
    async with LocalProvider(state_directory) as provider:
        spec = SandboxSpec(id=new_sandbox_id())
        async with await provider.create(spec) as sandbox:
            request = ExecRequest(argv=("true",), cwd="/", stdin=True)
            open_before = os.listdir("/proc/self/fd")  # and the one that this takes itself
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            free = [number for number in range(len(open_before) + 9) if str(number) not in open_before]
            for room in range(5):  # it takes six
                resource.setrlimit(resource.RLIMIT_NOFILE, (free[room], hard))
                try:
                    with pytest.raises(OSError, match="Too many open files"):
                        await sandbox.exec(request)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                assert len(os.listdir("/proc/self/fd")) == len(open_before)
            assert isinstance(sandbox, LocalSandbox)
            assert sandbox._watch is not None  # pyright: ignore[reportPrivateUsage]
            assert sandbox._watch.running == 0  # pyright: ignore[reportPrivateUsage]
            assert (await sh(sandbox, "true")).exit_code == 0
        await provider.destroy(spec.id)


async def test_what_hides_behind_a_finished_command_ends_although_somebody_connects_in_the_same_moment(
    tmp_path: Path,
) -> None:
    """RES-01: init sees the end of its last peer and the next peer at once, as it does where it hardly gets to run."""
    async with LocalProvider(tmp_path) as provider:
        sandbox = await provider.create(SandboxSpec(id=new_sandbox_id()))
        await sh(sandbox, "setsid sleep 1000 < /dev/null > /dev/null 2>&1 & echo")
        pid = init_pid(tmp_path / "sandboxes" / sandbox.id)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await sandbox.aclose()

        async def look() -> None:
            async with await provider.attach(sandbox.id) as again:
                assert (await sh(again, "pgrep -c sleep")).stdout == b"0\n"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            await anyio.sleep(0.05)
            os.kill(pid, signal.SIGCONT)
        await provider.destroy(sandbox.id)
