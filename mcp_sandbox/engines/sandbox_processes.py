"""The processes of a sandbox as the host sees them: everything below its init.

For an engine that shares the kernel. Nothing here waits; every process may end at any moment.
"""

import contextlib
import itertools
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Written", "count_tasks", "descendants", "kill_processes", "memory_of", "written_by"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_AT_ONCE = 64


class Written(NamedTuple):
    """What a process has written since it began."""

    bytes: int
    """With system calls, whatever to."""
    to_disk: int


def descendants(init: int) -> list[int]:
    """Return every process of a sandbox but its init."""
    found: list[int] = []
    seen = {init}
    stack = [init]
    while stack:
        for child in _children(stack.pop()):
            if child not in seen:
                seen.add(child)
                found.append(child)
                stack.append(child)
    return found


def count_tasks(init: int, most: int) -> int:
    """Return how many processes and threads a sandbox has beside its init; counts no further than `most`."""
    count = 0
    for pid in descendants(init):
        if count >= most:
            break
        with contextlib.suppress(OSError):
            count += sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    return count


def memory_of(pids: Iterable[int], limit_bytes: int) -> dict[int, int]:
    """Return the memory of each process.

    What several share is counted in each, which is quick; divided among them only if the sum is above the limit.
    """
    quick = {pid: _resident(pid) for pid in pids}
    if sum(quick.values()) <= limit_bytes:
        return quick
    return {pid: _proportional(pid) for pid in quick}


def written_by(pids: Iterable[int]) -> dict[int, Written]:
    """Return what each process has written."""
    found: dict[int, Written] = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, KeyError):
            lines = Path(f"/proc/{pid}/io").read_text("ascii").splitlines()
            counts = {name: int(value) for name, _, value in (line.partition(":") for line in lines)}
            found[pid] = Written(counts["wchar"], counts["write_bytes"])
    return found


def kill_processes(init: int, pids: Iterable[int]) -> int:
    """Kill processes of a sandbox, and nothing that got the number of one meanwhile; return how many there were."""
    row = iter(pids)
    killed = 0
    while some := list(itertools.islice(row, _AT_ONCE)):  # each one costs a descriptor, and a sandbox may have many
        killed += _kill(init, some)
    return killed


def _kill(init: int, pids: Iterable[int]) -> int:
    handles: dict[int, int] = {}
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                handles[pid] = os.pidfd_open(pid)
        still = handles.keys() & set(descendants(init))
        killed = 0
        for pid in still:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handles[pid], signal.SIGKILL)
                killed += 1
        return killed
    finally:
        for handle in handles.values():
            os.close(handle)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text("ascii").split())
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(("Pss:", "SwapPss:")))
