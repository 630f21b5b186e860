"""Control groups: one per sandbox, made before its init starts, removed when its processes are dead."""

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mcp_sandbox.core.errors import ProviderError
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines.cgroup_places import CONTROLLERS, Kernel, Places, find_places, group_of

__all__ = ["Cgroup", "CgroupCounters", "Cgroups"]

OURS: Final = "mcp-sandbox"
PERIOD_US: Final = 100_000
SETTLED_S: Final = 60.0
"""A group without processes that is younger may be about to get some."""
ANSWER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class CgroupCounters:
    """What the kernel counted so far."""

    oom_kills: int = 0
    pids_refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """The group of one sandbox; in version 1, one per controller."""

    version: int
    groups: Mapping[str, Path]

    @property
    def options(self) -> Sequence[str | Path]:
        """What the launcher must be told: names and values, in turn."""
        if self.version == 2:
            return ["cgroup", next(iter(self.groups.values()))]
        return [word for group in self.groups.values() for word in ("tasks", group / "tasks")]

    @property
    def paths(self) -> Sequence[Path]:
        """Its directories, each once."""
        return [*dict.fromkeys(self.groups.values())]

    def counters(self) -> CgroupCounters:
        """Read the counters. Some system calls."""
        memory, pids = self.groups.get("memory"), self.groups.get("pids")
        events = "memory.events" if self.version == 2 else "memory.oom_control"
        return CgroupCounters(
            _counted(memory / events, "oom_kill") if memory else 0, _counted(pids / "pids.events", "max") if pids else 0
        )

    def memory_peak_bytes(self) -> int:
        """Return the most memory that was ever in use, 0 if nobody knows."""
        memory = self.groups.get("memory")
        name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        return _number(memory / name) if memory else 0

    def remove(self) -> bool:
        """Remove the group; return whether it is gone. The kernel refuses while it has processes."""
        gone = True
        for group in self.paths:
            try:
                group.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
        return gone


class Cgroups:
    """The groups of all sandboxes of one server.

    Args:
        kernel: What it says of this process.
        launcher: The process that starts sandboxes; the user's systemd moves it to where that is allowed.
    """

    def __init__(self, kernel: Kernel, launcher: int) -> None:
        self.places: Places = find_places(kernel)
        """Where they can be made."""
        self._kernel = kernel
        self._launcher = launcher
        self._ready = False
        self._lock = asyncio.Lock()
        self._made: dict[str, Cgroup] = {}
        self._of_others: dict[str, Cgroup] = {}
        """Of sandboxes that another server started and this one uses: theirs to remove, unless we destroy them."""
        self._busy: list[Cgroup] = []
        """Of sandboxes that are gone, where the kernel still had processes when they were to be removed."""

    async def make(self, sandbox: str, limits: Limits) -> Cgroup:
        """Make the group of a sandbox that has no process, with its limits.

        Raises:
            ProviderError: The kernel or systemd refused; says what.
        """
        async with self._lock:
            if not self._ready:
                await self._prepare()
                self._ready = True
        group = self._group(sandbox, limits)
        group.remove()  # counters start anew; one that is still busy is taken as it is
        try:
            for directory in group.paths:
                directory.mkdir(parents=True, exist_ok=True)
                if group.version == 2:  # a server that ended may have removed what was divided, which all share
                    self._divide(directory.parent)
            for path, value in self._settings(group, limits):
                path.write_text(value)
        except OSError as error:
            group.remove()
            raise ProviderError(
                "Limits not applied", why=f"the control group could not be set up: {error.strerror}: {error.filename}",
                fix="Run `mcp-sandbox doctor`, or ask for best effort",
            ) from error  # fmt: skip
        self._made[sandbox] = group
        return group

    def find(self, sandbox: str, init: int) -> Cgroup | None:
        """Return the group that a running sandbox was started in, by whichever server."""
        kernel = _kernel_of(init, self._kernel)
        if (unified := group_of(kernel)) is not None and unified.parent.name == OURS:
            found = Cgroup(version=2, groups=dict.fromkeys(CONTROLLERS, unified))
        else:
            each = {name: group_of(kernel, name) for name in CONTROLLERS}
            ours = {name: group for name, group in each.items() if group is not None and group.parent.name == OURS}
            found = Cgroup(version=1, groups=ours) if ours else None
        if found is None:
            return None
        mine = next((name for name, group in self._made.items() if set(found.paths) & set(group.paths)), None)
        if mine is None:
            self._of_others[sandbox] = found
        else:  # under the name that it has now: a sandbox may have been started before it was asked for
            self._made[sandbox] = self._made.pop(mine)
        return found

    def forget(self, sandbox: str) -> None:
        """Forget a sandbox that this server does not use any more; who made its group removes it."""
        self._of_others.pop(sandbox, None)

    def remove(self, sandbox: str) -> None:
        """Remove the group of a sandbox whose processes are dead, whoever made it. Idempotent.

        Where the kernel is not through with them yet, it is tried again with the next one, and at the end.
        """
        gone = [group for known in (self._made, self._of_others) if (group := known.pop(sandbox, None)) is not None]
        self._busy = [group for group in (*self._busy, *gone) if not group.remove()]

    def sweep(self) -> None:
        """Remove what servers that were killed left behind: groups without processes."""
        for parent in {*self.places.parents.values()}:
            with contextlib.suppress(OSError):
                for path in (parent / OURS).iterdir():
                    with contextlib.suppress(OSError):
                        if path.is_dir() and time.time() - path.stat().st_mtime > SETTLED_S:
                            path.rmdir()

    async def aclose(self) -> None:
        """Remove what this server made, where the processes are gone within a moment."""
        left = [*self._made.values(), *self._busy]
        for attempt in range(20):
            left = [group for group in left if not group.remove()]
            if not left:
                break
            await asyncio.sleep(0.005 * (attempt + 1))
        if self._ready:
            for parent in {*self.places.parents.values()}:
                with contextlib.suppress(OSError):  # other servers have sandboxes there
                    (parent / OURS).rmdir()

    # ------------------------------------------------------------------------------------------ mechanics

    def _group(self, sandbox: str, limits: Limits) -> Cgroup:
        asked = {"memory": limits.memory_bytes, "cpu": limits.cpu_count, "pids": limits.pids}
        groups = {
            name: parent / OURS / sandbox
            for name, parent in self.places.parents.items()
            if asked[name] is not None  # in version 1 it takes a millisecond to come under the cpu controller
        }
        return Cgroup(version=self.places.version, groups=groups)

    def _settings(self, group: Cgroup, limits: Limits) -> Sequence[tuple[Path, str]]:
        """Return what is written where, in this order."""
        settings: list[tuple[Path, str]] = []
        memory, cpu, pids = (group.groups.get(name) for name in ("memory", "cpu", "pids"))
        if memory is not None and limits.memory_bytes is not None:
            names = ("memory.max",) if group.version == 2 else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
            settings += [(memory / name, str(limits.memory_bytes)) for name in names]
            if group.version == 2:
                settings.append((memory / "memory.swap.max", "0"))
            # A kernel that does not count swap has no files for it.
            settings = [(path, value) for path, value in settings if "sw" not in path.name or path.exists()]
        if cpu is not None and limits.cpu_count is not None:
            quota = max(1000, round(limits.cpu_count * PERIOD_US))
            if group.version == 2:
                settings.append((cpu / "cpu.max", f"{quota} {PERIOD_US}"))
            else:
                settings += [(cpu / "cpu.cfs_period_us", str(PERIOD_US)), (cpu / "cpu.cfs_quota_us", str(quota))]
        if pids is not None and limits.pids is not None:
            settings.append((pids / "pids.max", str(limits.pids + 1)))  # and init
        return settings

    async def _prepare(self) -> None:
        places = self.places
        if places.version != 2:
            return
        parent = next(iter(places.parents.values()))
        try:
            if places.by_user_manager:
                parent = await _user_scope(self._launcher, self._kernel)
                self.places = replace(places, parents=dict.fromkeys(places.parents, parent))
                _move(parent / "launcher", [self._launcher])
            elif places.leave_first:
                _move(parent / "server", [os.getpid(), self._launcher])
            (parent / OURS).mkdir(exist_ok=True)
            for group in (parent, parent / OURS):
                self._divide(group)
        except OSError as error:
            raise ProviderError(
                "Limits not applied",
                why=f"the control group could not be divided: {error.strerror}: {error.filename}",
                fix="Start the server with `systemd-run --user --scope -p Delegate=yes`, or ask for best effort",
            ) from error

    def _divide(self, group: Path) -> None:
        """Let the groups below have limits; nothing changes if they may."""
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in self.places.parents))


def _move(group: Path, pids: Sequence[int]) -> None:
    group.mkdir(exist_ok=True)
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))


async def _user_scope(pid: int, here: Kernel) -> Path:
    """Have the user's systemd put a process into a scope of its own that is delegated to the user; return its group.

    It is what `systemd-run --user --scope -p Delegate=yes` asks for itself, but for a process that runs already.
    """
    unit = f"mcp-sandbox-{pid}.scope"
    command = [
        "busctl", "--user", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", "2",
        "PIDs", "au", "1", str(pid), "Delegate", "b", "true", "0",
    ]  # fmt: skip
    said = ""
    try:
        asked = await asyncio.to_thread(
            subprocess.run, command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=ANSWER_S
        )
        taken, said = asked.returncode == 0, asked.stderr.decode("utf-8", "replace").strip()
    except subprocess.TimeoutExpired:
        taken = False
    end = time.monotonic() + ANSWER_S
    while taken and time.monotonic() < end:  # the job goes on after the answer
        if (group := group_of(_kernel_of(pid, here))) is not None and group.name == unit:
            return group
        await asyncio.sleep(0.01)
    raise ProviderError(
        "Limits not applied",
        why=f"the user's systemd gave no control group: {said or 'no answer'}",
        fix="Start the server with `systemd-run --user --scope -p Delegate=yes`, or ask for best effort",
    )


def _kernel_of(pid: int, here: Kernel) -> Kernel:
    """Return what the kernel says, with the groups of another process; none if it has ended."""
    membership = ""
    with contextlib.suppress(OSError):
        membership = Path(f"/proc/{pid}/cgroup").read_text("utf-8", "replace")
    return replace(here, membership=membership)


def _counted(path: Path, name: str) -> int:
    try:
        for line in path.read_text("ascii").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def _number(path: Path) -> int:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return 0
