"""The watch over limits that no kernel holds: it goes on whatever a look at one sandbox meets."""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.errors import ProviderError
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines.limit_watch import LimitWatch
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
