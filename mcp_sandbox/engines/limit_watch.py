"""What no limit of the kernel holds here is watched: the host's last disk space, and limits on best effort.

Like the kernel's own killer it ends processes, not sandboxes: those that took the memory, those that wrote.
Reading what `/proc` says of many processes takes long, so one thread does it, for a quarter of its time at most.
"""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from mcp_sandbox.core.errors import ConfigError, SandboxError
from mcp_sandbox.core.exec import Termination
from mcp_sandbox.engines.project_quota import DiskUsage
from mcp_sandbox.engines.sandbox_limits import SandboxLimits
from mcp_sandbox.engines.sandbox_processes import Written, descendants, kill_processes, memory_of, written_by
from mcp_sandbox.engines.verdicts import size_text

__all__ = ["RESERVE_VARIABLE", "LimitWatch", "pause_s", "reserve_bytes", "writers"]

_LOG = logging.getLogger(__name__)
RESERVE_VARIABLE: Final = "MCP_SANDBOX_DISK_RESERVE"
_RESERVE_BYTES: Final = 512 << 20
_RESERVE_INODES: Final = 100_000
_FASTEST_BYTES_S: Final = 4 << 30
"""No disk is filled faster; so long nobody has to look again."""
_QUICK_S: Final = 0.05
_IDLE_S: Final = 0.5
_SLOW_S: Final = 2.0
_LOOKING_SHARE: Final = 4
"""Looking at processes may take a quarter of the time."""
_MEASURING_SHARE: Final = 10
"""Measuring a tree may take a tenth of the time."""
_UNNOTICED_BYTES: Final = 1 << 20
"""Who wrote less since the disk was found full may go on: it may be making room."""
_UNNOTICED_INODES: Final = 1000


@dataclass(slots=True, eq=False)
class _Watched:
    limits: SandboxLimits
    measure: Callable[[], Awaitable[DiskUsage | None]]
    """`None` if the tree is such that it cannot be measured."""
    when_full: dict[int, Written] = field(default_factory=dict[int, Written])
    """What its processes had written when the host's disk was found full; empty while it is not."""
    inodes_when_full: int | None = None
    lately: dict[int, Written] = field(default_factory=dict[int, Written])
    """What they had written when its tree was last measured."""
    used: DiskUsage | None = None
    over_bytes: int | None = None
    """What it used when it was found to use too much; `None` while it does not."""
    measure_at: float = 0.0


class LimitWatch:
    """One for all sandboxes of a server. It runs while there is any, as often as it could be needed.

    Args:
        root: Where sandboxes are written.
        reserve: How many bytes of that disk no sandbox may use.
    """

    def __init__(self, root: Path, reserve: int) -> None:
        self._root = root
        self._reserve = reserve
        self._in_memory = _lies_in_memory(root)
        self._watched: dict[str, _Watched] = {}
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._one_thread = anyio.CapacityLimiter(1)
        self._few_inodes: int | None = None
        """How many files the disk has room for, if that is too few."""

    def add(self, sandbox: str, limits: SandboxLimits, measure: Callable[[], Awaitable[DiskUsage | None]]) -> None:
        """Watch a sandbox."""
        self._watched[sandbox] = _Watched(limits, measure)
        if limits.weak:
            limits.began = self._wake.set
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, sandbox: str) -> None:
        """Watch a sandbox no longer. Idempotent."""
        self._watched.pop(sandbox, None)

    async def aclose(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._watched:
            self._wake.clear()
            pause, took_s = _IDLE_S, 0.0
            with _going_on():
                pause, took_s = await to_thread.run_sync(
                    self._look, list(self._watched.values()), limiter=self._one_thread
                )
            for watched in list(self._watched.values()):
                with _going_on():
                    await self._measure(watched)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s(pause, took_s)):
                    await self._wake.wait()

    def _look(self, all_watched: Sequence[_Watched]) -> tuple[float, float]:
        """Look at the disk and at all processes; return how long nobody has to look again, and how long it took."""
        began = time.monotonic()
        pause = _IDLE_S
        with _going_on():
            pause = self._look_at_disk(all_watched)
        for watched in all_watched:
            with _going_on():
                limits = watched.limits
                if limits.running:
                    pause = min(pause, _QUICK_S if limits.weak else _IDLE_S)
                    limits.look_for_crowd()
                if limits.weak:
                    pause = min(pause, _IDLE_S)
                if "memory_bytes" in limits.weak and limits.limits.memory_bytes is not None:
                    self._look_at_memory(limits, limits.limits.memory_bytes)
        return pause, time.monotonic() - began

    # ------------------------------------------------------------------------------------------ the host's disk

    def _look_at_disk(self, all_watched: Sequence[_Watched]) -> float:
        """End who fills the disk; return how long nobody can have filled it."""
        try:
            state = os.statvfs(self._root)
        except OSError:
            return _SLOW_S
        free = state.f_bavail * state.f_frsize
        reserved_inodes = min(_RESERVE_INODES, state.f_files // 100)
        self._few_inodes = None
        if free >= self._reserve and state.f_favail >= reserved_inodes:  # some file systems count no inodes: 0
            for watched in all_watched:
                watched.when_full.clear()
                watched.inodes_when_full = None
            return min(_SLOW_S, max(_QUICK_S, (free - self._reserve) / _FASTEST_BYTES_S))
        if free < self._reserve:
            why = f"the disk of all sandboxes has {size_text(free)} left, and {size_text(self._reserve)} are kept"
            for watched in all_watched:
                self._end_writers(watched, why)
        else:
            self._few_inodes = state.f_favail
        return _QUICK_S

    def _end_writers(self, watched: _Watched, why: str) -> None:
        """End processes that wrote since the disk was found full. Who wrote little may be making room."""
        init = watched.limits.init()
        if init is None:
            return
        pids = descendants(init)
        now = written_by([init, *pids])
        before, watched.when_full = watched.when_full, {**now, **watched.when_full}
        if not before:
            return
        grown = writers(now, before, _UNNOTICED_BYTES, in_memory=self._in_memory)
        if init in grown:  # the kernel adds what those wrote that ended to whoever waited for them
            grown = {*pids}
        _end(watched.limits, init, grown, why)

    def _end_maker(self, watched: _Watched, used: DiskUsage | None, left: int) -> None:
        """End everything in a sandbox that has made many files since the disk was found full."""
        made = used.inodes if used is not None else sys.maxsize
        if watched.inodes_when_full is None:
            watched.inodes_when_full = made
        elif made - watched.inodes_when_full > _UNNOTICED_INODES or used is None:
            _end_all(watched.limits, f"the disk of all sandboxes has room for {left} files only")

    # ------------------------------------------------------------------------------------------ best effort

    async def _measure(self, watched: _Watched) -> None:
        """Count the files of a sandbox, where that is needed now, and end what made too many or too large ones."""
        few = self._few_inodes
        if few is not None:
            used = await watched.measure()
            await to_thread.run_sync(self._end_maker, watched, used, few, limiter=self._one_thread)
        if {"disk_bytes", "inodes"} & watched.limits.weak and time.monotonic() >= watched.measure_at:
            began = time.monotonic()
            used = await watched.measure()
            watched.measure_at = time.monotonic() + min(_SLOW_S, _MEASURING_SHARE * (time.monotonic() - began))
            await to_thread.run_sync(self._look_at_usage, watched, used, limiter=self._one_thread)

    @staticmethod
    def _look_at_memory(limits: SandboxLimits, most: int) -> None:
        init = limits.init()
        if init is None:
            return
        used = memory_of(descendants(init), most)
        total = sum(used.values())
        if total <= most:
            return
        victims: list[int] = []
        left = total
        for pid, size in sorted(used.items(), key=lambda item: -item[1]):
            if left <= most:
                break
            victims.append(pid)
            left -= size
        what = "a process was" if len(victims) == 1 else f"{len(victims)} processes were"
        why = f"{what} killed at the memory limit, {size_text(most)} ({size_text(total)} were used)"
        _kill(limits, init, victims, Termination.OOM, why)

    def _look_at_usage(self, watched: _Watched, used: DiskUsage | None) -> None:
        limits, before, watched.used = watched.limits.limits, watched.used, used
        if used is None:
            _end_all(watched.limits, "the files of the sandbox cannot be counted, so they may be more than its limits")
            return
        init = watched.limits.init()
        if init is None:
            return
        is_over = limits.disk_bytes is not None and used.bytes > limits.disk_bytes
        if not is_over:
            watched.over_bytes = None
        elif before is None:
            watched.over_bytes = used.bytes
        pids = descendants(init)
        now = written_by(pids)
        lately, watched.lately = watched.lately, now
        if before is None or not (used.bytes > before.bytes or used.inodes > before.inodes):
            return  # it may be making room
        if limits.disk_bytes is not None and is_over:
            found_at, watched.over_bytes = watched.over_bytes, watched.over_bytes or used.bytes
            grown = writers(now, lately, _UNNOTICED_BYTES, in_memory=self._in_memory)
            if found_at is not None and used.bytes <= found_at + _UNNOTICED_BYTES:
                return  # who filled it may be gone, and this one be making room
            if found_at is not None and not grown:
                grown = {*pids}  # it grows on all the same: somebody here
            if not grown:
                return
            why = f"the disk limit was reached: {size_text(used.bytes)} of {size_text(limits.disk_bytes)} are used"
            _end(watched.limits, init, grown, why)
            watched.used = None  # what they still write is not charged to whoever comes next
        elif limits.inodes is not None and used.inodes > before.inodes > limits.inodes:
            _end_all(watched.limits, f"the limit of files was reached: {used.inodes} of {limits.inodes} exist")


@contextlib.contextmanager
def _going_on() -> Generator[None]:
    """Let no failure of a moment, such as too many open files, end the watch for good."""
    try:
        yield
    except (OSError, SandboxError) as error:
        _LOG.warning("the limits of a sandbox were not looked at: %s", error)


def writers(now: Mapping[int, Written], before: Mapping[int, Written], most: int, *, in_memory: bool) -> set[int]:
    """Return the processes that wrote more than that; what a new one wrote counts from its start.

    What the kernel says went to a disk decides; where the files lie in memory, all that was written.
    """

    def amount(wrote: Written) -> int:
        return wrote.bytes if in_memory else wrote.to_disk

    nothing = Written(0, 0)
    return {pid for pid, wrote in now.items() if amount(wrote) - amount(before.get(pid, nothing)) > most}


def _lies_in_memory(root: Path) -> bool:
    device = root.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines())
    return any(words[2] == number and words[words.index("-") + 1] in ("tmpfs", "ramfs") for words in lines)


def _end(limits: SandboxLimits, init: int, pids: Iterable[int], why: str) -> None:
    _kill(limits, init, {*pids} - {init}, Termination.DISK, why)


def _kill(limits: SandboxLimits, init: int, pids: Collection[int], cause: Termination, why: str) -> None:
    """Note first, then kill: the loop may hear of the end of a command before the last of them is dead."""
    if pids:
        limits.ended_some(cause, len(pids), why)
        limits.ended_some(cause, kill_processes(init, pids) - len(pids), why)


def _end_all(limits: SandboxLimits, why: str) -> None:
    if (init := limits.init()) is not None:
        _end(limits, init, descendants(init), why)


def pause_s(wanted_s: float, took_s: float) -> float:
    """Return how long to wait until the next look, if the last one took so long."""
    return max(wanted_s, (_LOOKING_SHARE - 1) * took_s)


def reserve_bytes(root: Path, asked: str) -> int:
    """Return how much of a disk is kept free: what was asked for, else 1 %, and 512 MiB at most.

    Raises:
        ConfigError: What was asked for is no number of bytes.
    """
    if asked:
        if not asked.isascii() or not asked.isdecimal():
            raise ConfigError(
                f"{RESERVE_VARIABLE}={asked!r} cannot be used", why="it is not a number of bytes",
                fix=f"Set it to a number, such as {_RESERVE_BYTES}, or leave it out",
            )  # fmt: skip
        return int(asked)
    state = os.statvfs(root)
    return min(_RESERVE_BYTES, state.f_blocks * state.f_frsize // 100)
