"""How long things take, at the client, beside what they cost without a sandbox in the same minute."""

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from anyio import to_thread

from mcp_sandbox import __version__
from mcp_sandbox.cli.demo.display import duration
from mcp_sandbox.cli.demo.scenes import Show

__all__ = ["Timing", "as_json", "measure", "show_timings", "start_timing"]

_SANDBOX = "timing"
_KIBIBYTE = "0123456789abcde\n" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The median of some samples."""

    what: str
    median_s: float
    samples: int
    floor: str = ""
    """What it is to be compared with; empty where there is nothing."""
    floor_s: float = 0.0


async def _median(count: int, act: Callable[[], Awaitable[float]]) -> float:
    await act()  # the first one does not count
    return statistics.median([await act() for _ in range(count)])


async def _of_process(*command: str) -> float:
    def run() -> float:
        began_s = time.perf_counter()
        subprocess.run(command, check=False, capture_output=True)
        return time.perf_counter() - began_s

    return await _median(10, lambda: to_thread.run_sync(run))


async def start_timing(taken_s: float) -> Timing:
    """Return the timing of the one start of the server that the reader has seen."""
    floor_s = await _of_process(sys.executable, "-c", "pass")
    return Timing(
        what="start a server, list its tools", median_s=taken_s, samples=1, floor="python -c pass", floor_s=floor_s
    )


async def measure(show: Show) -> list[Timing]:
    """Repeat calls in sandboxes of their own."""
    call = show.agent.call

    def of(tool: str, **arguments: Any) -> Callable[[], Awaitable[float]]:
        async def once() -> float:
            return (await call(tool, **arguments)).taken_s

        return once

    shell = "bash" if os.access("/bin/bash", os.X_OK) else "sh"
    destroyed: list[float] = []

    async def create() -> float:
        taken_s = await of("sandbox_create", name=f"{_SANDBOX}-new")()
        destroyed.append(await of("sandbox_destroy", sandbox=f"{_SANDBOX}-new")())
        return taken_s

    def timing(what: str, samples: int, median_s: float, floor: str = "", floor_s: float = 0.0) -> Timing:
        return Timing(what=what, median_s=median_s, samples=samples, floor=floor, floor_s=floor_s)

    found: list[Timing] = []
    await call("sandbox_create", name=_SANDBOX)
    show.display.doing("exec true, again and again")
    bare_s = await _of_process(shell, "-c", "true")
    in_it = {"sandbox": _SANDBOX}
    found.append(
        timing("exec true", 30, await _median(30, of("exec", command="true", **in_it)), f"{shell} -c true", bare_s)
    )
    show.display.doing("files, again and again")
    write = of("write_file", file_path="f", content=_KIBIBYTE, **in_it)
    found.append(timing("write_file, 1 KiB", 10, await _median(10, write)))
    found.append(timing("read_file, 1 KiB", 10, await _median(10, of("read_file", file_path="f", **in_it))))
    show.display.doing("sandboxes, again and again")
    found.append(timing("sandbox_create", 5, await _median(5, create)))
    found.append(timing("sandbox_destroy", 5, statistics.median(destroyed[1:])))
    show.display.doing("snapshots, again and again")
    await call("exec", command="mkdir many && cd many && seq 1000 | split -l 1 -a 3 -", **in_it)
    taken = await call("snapshot_create", **in_it)
    snapshot = str(taken.facts["id"])[:12]
    found.append(timing("snapshot_create, 1,000 files", 5, await _median(5, of("snapshot_create", **in_it))))
    back = of("snapshot_restore", snapshot=snapshot, **in_it)
    found.append(timing("snapshot_restore, 1,000 files", 5, await _median(5, back)))
    await call("sandbox_destroy", **in_it)
    return found


def show_timings(show: Show, timings: list[Timing]) -> None:
    """Print a table."""

    def cells() -> Iterator[tuple[str, ...]]:
        for one in timings:
            beside = f"{duration(one.floor_s)}  {one.floor}" if one.floor else ""
            yield one.what, str(one.samples), duration(one.median_s), beside

    show.display.table(("what", "n", "median", "without a sandbox"), list(cells()), right=frozenset({1, 2}))


def as_json(timings: list[Timing], *, total_s: float, file_system: str) -> dict[str, Any]:
    """Return timings with what is needed to compare them."""
    return {
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "file_system": file_system,
        "user_is_root": os.geteuid() == 0,
        "load": round(os.getloadavg()[0], 2),
        "total_s": round(total_s, 3),
        "timings": [asdict(timing) for timing in timings],
    }
