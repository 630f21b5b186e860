"""Many sandboxes alive in one process: `python -m tests.benchmarks.alive ENGINE_ROOT COUNT SAMPLES` prints rows.

In a process of its own, whose memory is that of a server and of nothing else.
"""

import contextlib
import json
import os
import re
import select
import subprocess
import sys
from pathlib import Path

import anyio

from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.providers.local import LocalProvider
from tests.benchmarks.calls import new_spec, run
from tests.benchmarks.commands import resident_mib
from tests.benchmarks.measuring import Row, Samples
from tests.benchmarks.sandboxes import init_of

__all__ = ["alive_rows"]


def alive_rows(engine_root: Path, many: int, count: int) -> list[Row]:
    """Run this module."""
    command = [sys.executable, "-m", "tests.benchmarks.alive", str(engine_root), str(many), str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [Row(**fields) for fields in json.loads(done.stdout)]


async def _rows(engine_root: Path, many: int, count: int) -> list[Row]:
    """Create, use and end many sandboxes."""
    creating, alone, among, ending = Samples(), Samples(), Samples(), Samples()
    async with contextlib.AsyncExitStack() as stack:
        provider = await stack.enter_async_context(LocalProvider(engine_root))
        first = await provider.create(new_spec())
        await alone.repeat_async(count, lambda: run(first, "true"))
        before, free = resident_mib(os.getpid()), _free_mib()
        made: list[Sandbox] = [first]
        for _ in range(many - 1):
            with creating.timed():
                made.append(await provider.create(new_spec()))
        inits = [init_of(engine_root, sandbox.id) for sandbox in made]
        memory = (sum(map(_share_mib, inits)) + resident_mib(os.getpid()) - before) / many
        machine = max(0.0, (free - _free_mib()) / many)
        for number in range(count):
            sandbox = made[number * (many // count)]
            with among.timed():
                await run(sandbox, "true")
        pidfds = [os.pidfd_open(init) for init in inits]
        with ending.timed():
            await stack.aclose()
            for pidfd in pidfds:
                _wait_dead(pidfd)
    ending.values[:] = [ending.values[0] / many]
    async with LocalProvider(engine_root) as provider:
        for sandbox in made:
            await provider.destroy(sandbox.id)
    alive = f"{many:,} alive"
    return [
        Row.of(f"engine: create, until {alive}", creating, target=5.0),
        Row.of(f"engine: memory of each of {alive}: its processes, and what the server grew by",
               Samples(values=[memory]), unit="MiB", target=0.5),
        Row.of(f"engine: memory of each of {alive}, with the kernel's: what the machine has less",
               Samples(values=[machine]), unit="MiB"),
        Row.of("engine: exec of `true` in that process, one alive", alone, target=2.0),
        Row.of(f"engine: exec of `true` in that process, {alive}", among, target=3.0),
        Row.of(f"engine: the end of a server with {alive}, until every process is dead, each", ending, target=5.0),
    ]  # fmt: skip


def _share_mib(pid: int) -> float:
    """Return the memory of one process: its share of every page, or only its own pages where we may see no more."""
    try:
        shown = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    except OSError:
        return resident_mib(pid, "RssAnon")
    found = re.search(r"^Pss:\s+(\d+) kB", shown, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def _free_mib() -> float:
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
    assert found is not None
    return int(found[1]) / 1024


def _wait_dead(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll(10_000)
    os.close(pidfd)


if __name__ == "__main__":
    found = anyio.run(_rows, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps([row.as_json() for row in found]))
