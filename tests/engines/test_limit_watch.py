"""The watch over limits that no kernel holds: it goes on whatever a look at one sandbox meets."""

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from mcp_sandbox.core.errors import ProviderError
from mcp_sandbox.core.exec import Termination
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines.limit_watch import LimitWatch, pause_s
from mcp_sandbox.engines.project_quota import DiskUsage
from mcp_sandbox.engines.sandbox_limits import SandboxLimits
from mcp_sandbox.engines.sandbox_processes import kill_processes

__all__: list[str] = []

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are seen in /proc")


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.EMFILE, "Too many open files"), ProviderError("Nothing counted", why="a test", fix="None")],
    ids=["host", "engine"],
)
async def test_a_look_that_fails_once_ends_neither_the_watch_nor_its_closing(
    failure: Exception, tmp_path: Path
) -> None:
    measured = anyio.Event()
    failures = [failure]

    async def measure() -> DiskUsage:
        if failures:
            raise failures.pop()
        measured.set()
        return DiskUsage(0, 0)

    watch = LimitWatch(tmp_path, 0)
    weak = SandboxLimits(limits=Limits(disk_bytes=1 << 20), init=lambda: None, weak=frozenset({"disk_bytes"}))
    watch.add("sb_x", weak, measure)
    with anyio.fail_after(5):
        await measured.wait()
    await watch.aclose()


_HOG = "import time; hog = bytearray(64 << 20); time.sleep(60)"


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[bytes]]:
    """A process in the place of init, with one child that uses 64 MiB; it returns the child's exit code."""
    script = f"import subprocess, sys; sys.exit(-subprocess.call([sys.executable, '-c', {_HOG!r}]))"
    top = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    yield top
    with suppress(ProcessLookupError):
        os.killpg(top.pid, signal.SIGKILL)
    top.wait()


async def test_the_loop_never_looks_at_processes_itself(tree: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Reading what `/proc` says of hundreds of processes takes tens of milliseconds; other calls go on meanwhile."""
    looked: set[int] = set()
    enough = anyio.Event()
    loop = asyncio.get_running_loop()

    def init() -> int:
        looked.add(threading.get_ident())
        loop.call_soon_threadsafe(enough.set)
        return tree.pid

    async def measure() -> DiskUsage:
        return DiskUsage(1, 1)

    watch = LimitWatch(tmp_path, reserve=1 << 62)  # the disk is full: who writes is looked for, too
    limits = Limits(memory_bytes=1 << 50, disk_bytes=1 << 50, pids=1 << 20)
    weak = SandboxLimits(limits=limits, init=init, weak=frozenset({"memory_bytes", "disk_bytes"}), running=1)
    watch.add("sb_x", weak, measure)
    for _ in range(3):
        enough = anyio.Event()
        with anyio.fail_after(5):
            await enough.wait()
    await watch.aclose()
    assert looked
    assert threading.get_ident() not in looked


def test_a_look_that_takes_long_is_taken_less_often() -> None:
    assert pause_s(0.05, took_s=0.001) == 0.05
    assert pause_s(0.05, took_s=1.0) == 3.0


async def test_the_cause_is_known_before_the_process_is_dead(tree: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """The loop may be told of a command's end while the thread still kills others."""
    limits = SandboxLimits(
        limits=Limits(memory_bytes=1 << 20), init=lambda: tree.pid, weak=frozenset({"memory_bytes"}), running=1
    )

    async def measure() -> DiskUsage:
        return DiskUsage(0, 0)

    watch = LimitWatch(tmp_path, 0)
    watch.add("sb_x", limits, measure)
    assert await anyio.to_thread.run_sync(tree.wait, 10) == signal.SIGKILL
    assert limits.kills[Termination.OOM] == 1
    assert limits.said[Termination.OOM].startswith("a process was killed at the memory limit, 1 MiB")
    await watch.aclose()


def test_more_processes_are_killed_than_there_are_descriptors() -> None:
    """A sandbox may have tens of thousands."""
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(150)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 100, hard))
        assert kill_processes(os.getpid(), [child.pid for child in children]) == len(children)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert {child.wait(5) for child in children} == {-signal.SIGKILL}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for child in children:
            child.kill()
            child.wait()
