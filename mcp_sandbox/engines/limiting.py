"""Which limits hold on this machine, and how each sandbox of the embedded engine gets its own."""

import asyncio
import contextlib
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from mcp_sandbox.core.capability import LimitGap
from mcp_sandbox.core.errors import NotFoundError, ProviderError, StateError, UnsupportedError
from mcp_sandbox.core.examination import Shortcoming
from mcp_sandbox.core.sandbox import Limits, SandboxId
from mcp_sandbox.core.wording import limit_word
from mcp_sandbox.engines.cgroup_places import Kernel
from mcp_sandbox.engines.cgroups import Cgroups
from mcp_sandbox.engines.init_process import init_pid
from mcp_sandbox.engines.launcher import Launcher, tokens
from mcp_sandbox.engines.layer_store import VOLUMES, EngineState, LayerStore
from mcp_sandbox.engines.limit_watch import LimitWatch
from mcp_sandbox.engines.project_quota import DiskUsage, ProjectQuota
from mcp_sandbox.engines.sandbox_limits import SandboxLimits

__all__ = ["Limiting", "Prepared"]

_CONTROLLED: Final = {"memory_bytes": "memory", "cpu_count": "cpu"}
_ON_DISK: Final = ("disk_bytes", "inodes")
_BEHIND: Final = 64
"""How far the limit that says nothing (`RLIMIT_NPROC`) lies behind the one that counts whom it refused."""
_INSTEAD: Final = {
    "memory_bytes": "no process may have more private memory than that, and the server, which adds up what all have "
    "every 50 ms, less often with thousands of processes, kills the largest when it is more",
    "disk_bytes": "no file may be larger than that, and the server, which adds up the sandbox's files while commands "
    "run, kills those that write when they are more; what is deleted and still open is not counted",
    "inodes": "the server counts the sandbox's files while commands run, and kills everything when they are more",
}


class Prepared(NamedTuple):
    """What the plan of a sandbox needs."""

    limits: Limits
    options: bytes


class Limiting:
    """Use as a context manager, around everything that runs.

    Args:
        store: Where sandboxes are written.
        launcher: Who starts them.
        reserve: How many bytes of that disk no sandbox may use.
    """

    def __init__(self, store: LayerStore, launcher: Launcher, reserve: int) -> None:
        self._store = store
        self._launcher = launcher
        self._quota = ProjectQuota(store.root)
        self._watch = LimitWatch(store.root, reserve)
        self._current: dict[SandboxId, SandboxLimits] = {}

    async def __aenter__(self) -> Self:
        """Find out what can be enforced."""
        self._cgroups = Cgroups(Kernel.here(self._launcher.pid), self._launcher.pid)
        self._disk_gap = self._quota.gap()
        self._sweeping = asyncio.ensure_future(asyncio.to_thread(self._cgroups.sweep))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching, and remove the control groups of what has ended."""
        await self._watch.aclose()
        await self._sweeping
        await self._cgroups.aclose()

    @property
    def enforced(self) -> frozenset[str]:
        """Names of the limits that hold whatever runs inside."""
        by_groups = {name for name, controller in _CONTROLLED.items() if controller in self._cgroups.places.parents}
        return frozenset({"pids", "open_files", "command_s", *by_groups, *(() if self._disk_gap else _ON_DISK)})

    @property
    def unenforced(self) -> Mapping[str, LimitGap]:
        """The others: why, and what is done instead."""
        missing = self._cgroups.places.missing
        gaps = {name: missing[controller] for name, controller in _CONTROLLED.items() if controller in missing}
        if self._disk_gap is not None:
            gaps |= dict.fromkeys(_ON_DISK, self._disk_gap)
        return {name: gap._replace(instead=_INSTEAD.get(name, "")) for name, gap in gaps.items()}

    @property
    def shortcomings(self) -> Sequence[Shortcoming]:
        """The same for whoever examines the machine."""
        return [
            Shortcoming(what=f"the limit {limit_word(name)} cannot be enforced", why=gap.why, fix=gap.fix)
            for name, gap in self.unenforced.items()
        ]

    async def prepare(self, state: EngineState, written: Sequence[Path]) -> Prepared:
        """Make what limits a sandbox that has no process.

        Args:
            state: What it is made of.
            written: The directories that it writes to, all empty or its own already.

        Raises:
            ProviderError: Something could not be made.
        """
        limits, enforced = state.limits, self.enforced
        for name, gap in self.unenforced.items():
            if getattr(limits, name) is not None and not state.best_effort:
                raise UnsupportedError(
                    "Sandbox not started",
                    why=f"its limit {limit_word(name)} cannot be enforced now: {gap.why}",
                    fix=gap.fix,
                )
        if not self._disk_gap and (limits.disk_bytes is not None or limits.inodes is not None):
            self._claim_disk(state, written)
        options = b""
        if limits.memory_bytes is not None and "memory_bytes" not in enforced:
            options += tokens("rlimit", f"{resource.RLIMIT_DATA}:{limits.memory_bytes}")
        if limits.disk_bytes is not None and "disk_bytes" not in enforced:
            options += tokens("rlimit", f"{resource.RLIMIT_FSIZE}:{limits.disk_bytes}")
        if not self._needs_group(limits):
            return Prepared(limits, options)
        group = await self._cgroups.make(state.id, limits)
        if limits.pids is not None and "pids" in group.groups:
            limits = replace(limits, pids=limits.pids + _BEHIND)
        return Prepared(limits, options + tokens(*group.options))

    def watch(self, state: EngineState) -> SandboxLimits:
        """Return the limits of a sandbox that runs, one object for all; watched until each user called `forget`."""
        sandbox, limits = SandboxId(state.id), state.limits
        directory = self._store.directory(sandbox)
        if (known := self._current.get(sandbox)) is not None:
            known.users += 1
            self.refresh(sandbox, known)
            return known
        asked = {name for name in (*_CONTROLLED, *_ON_DISK) if getattr(limits, name) is not None}
        usage: Callable[[], DiskUsage] | None = None
        if asked & self.enforced & {*_ON_DISK} and (project := self._quota.project_of(directory / "spool")):
            usage = partial(self._quota.usage, project)

        found = SandboxLimits(
            limits=limits, init=lambda: init_pid(directory), usage=usage,
            weak=frozenset(asked - self.enforced - {"cpu_count"}), users=1,
        )  # fmt: skip
        self.refresh(sandbox, found)
        self._current[sandbox] = found
        self._watch.add(sandbox, found, lambda: self._measure(sandbox))
        return found

    def _needs_group(self, limits: Limits) -> bool:
        """Whether anything was asked for that only a control group holds. Processes are limited without one."""
        places = self._cgroups.places.parents
        return any(
            getattr(limits, name) is not None and controller in places for name, controller in _CONTROLLED.items()
        )

    def refresh(self, sandbox: SandboxId, limits: SandboxLimits) -> None:
        """Look which control group a sandbox is in now: init may have been started anew."""
        if self._needs_group(limits.limits) and (init := limits.init()) is not None:
            limits.cgroup = self._cgroups.find(sandbox, init)

    def forget(self, sandbox: SandboxId, limits: SandboxLimits) -> None:
        """Watch a sandbox no longer, if nobody else uses it."""
        limits.users -= 1
        if limits.users == 0 and self._current.get(sandbox) is limits:
            del self._current[sandbox]
            self._watch.remove(sandbox)
            self._cgroups.forget(sandbox)

    def release(self, sandbox: SandboxId) -> None:
        """Give back what limited a sandbox that is being destroyed; its processes are dead."""
        self._cgroups.remove(sandbox)
        if not self._disk_gap:
            with contextlib.suppress(OSError):
                if project := self._quota.project_of(self._store.directory(sandbox) / "spool"):
                    self._quota.limit(project, None, None)

    # ------------------------------------------------------------------------------------------ the disk

    def _claim_disk(self, state: EngineState, written: Sequence[Path]) -> None:
        spool = self._store.directory(SandboxId(state.id)) / "spool"
        try:
            project = self._quota.project_of(spool) or self._quota.new_project()
            self._quota.claim(project, [spool, *written])
            self._quota.limit(project, state.limits.disk_bytes, state.limits.inodes)
        except OSError as error:
            raise ProviderError(
                "Limits not applied", why=f"the file system did not take the quota: {error.strerror}",
                fix="Check the quota of the file system, or ask for best effort",
            ) from error  # fmt: skip

    async def _measure(self, sandbox: SandboxId) -> DiskUsage | None:
        """Add up what a sandbox writes to, in a process of its own: nothing that lies there can be waited for."""
        try:
            state = self._store.load(sandbox)
        except NotFoundError:
            return DiskUsage(0, 0)
        except StateError:
            return None
        trees = [f"layers/{state.top}/{volume}" for volume in VOLUMES] + [f"sandboxes/{sandbox}/spool"]
        try:
            said = await self._launcher.run("usage", *trees)
        except (ProviderError, OSError):
            return None if self._store.directory(sandbox).exists() else DiskUsage(0, 0)
        size, inodes = said.split()
        return DiskUsage(int(size), int(inodes))
