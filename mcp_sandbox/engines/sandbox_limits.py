"""The limits of one running sandbox: what is counted while a command runs, and what its end has to do with it."""

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mcp_sandbox.core.exec import ExecRequest, ExecResult, Termination
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines.cgroups import Cgroup, CgroupCounters
from mcp_sandbox.engines.project_quota import DiskUsage
from mcp_sandbox.engines.sandbox_processes import count_tasks
from mcp_sandbox.engines.verdicts import judged, memory_fact, pids_fact, size_text, time_fact

__all__ = ["Judge", "SandboxLimits", "within_time"]

Judge = Callable[[ExecResult], ExecResult]
"""Says of the end of a command what the limits had to do with it."""

_DISK_SLACK: Final = 256 * 1024
"""Under a quota, what did not fit any more may leave this much free."""


@dataclass(slots=True, eq=False, kw_only=True)
class SandboxLimits:
    """Of one sandbox, as one server sees it."""

    limits: Limits
    init: Callable[[], int | None]
    """The process number of init, `None` if it does not run any more."""
    cgroup: Cgroup | None = None
    usage: Callable[[], DiskUsage] | None = None
    """What is counted against a hard quota."""
    weak: frozenset[str] = frozenset()
    """Limits that are watched and not enforced."""
    kills: dict[Termination, int] = field(default_factory=lambda: {Termination.OOM: 0, Termination.DISK: 0})
    """How many processes were ended by the watch, and why; a thread counts, so it never grows."""
    said: dict[Termination, str] = field(default_factory=dict[Termination, str])
    crowded_at: float = 0.0
    """When it last had all the processes that it may have, without a control group that counts whom it refused."""
    whole: bool = False
    """Whether the kernel inside is the sandbox's own: at the memory limit it ends with all that it runs."""
    users: int = 0
    """Objects of this server that are connected."""
    running: int = 0
    """Commands that run now."""
    began: Callable[[], None] = lambda: None

    def ended_some(self, cause: Termination, count: int, why: str) -> None:
        """Note that the watch ended processes."""
        self.said[cause] = why
        self.kills[cause] += count

    def look_for_crowd(self) -> None:
        """Note if there are as many processes and threads now as there may be."""
        most, init = self.limits.pids, self.init()
        if not most or init is None or self.whole or (self.cgroup is not None and "pids" in self.cgroup.groups):
            return
        if count_tasks(init, most) >= most - 1:  # the one that ends now, or could not be started, is missing
            self.crowded_at = time.monotonic()

    def begin(self) -> Judge:
        """Return who judges the end of a command that starts now."""
        counters, kills = self.cgroup.counters() if self.cgroup else CgroupCounters(), dict(self.kills)
        used = self.usage() if self.usage else None
        began = time.monotonic()
        self.running += 1
        self.began()

        def judge(result: ExecResult) -> ExecResult:
            self.running -= 1
            facts = self._facts(result, began, counters, kills, used)
            found = judged(result, facts, [c for c, n in self.kills.items() if n])
            if self.whole and result.termination is Termination.LOST and Termination.OOM in facts:
                return replace(found, termination=Termination.OOM, signal=int(signal.SIGKILL))
            return found

        return judge

    def _facts(
        self,
        result: ExecResult,
        began: float,
        counters: CgroupCounters,
        kills: Mapping[Termination, int],
        used: DiskUsage | None,
    ) -> dict[Termination, str]:
        """Return which limits were met while the command ran, in a sentence each; the likeliest cause comes first."""
        facts: dict[Termination, str] = {}
        for cause, count in self.kills.items():
            if count > kills.get(cause, 0):
                facts[cause] = self.said[cause]
        if result.signal == signal.SIGXFSZ or result.exit_code == 128 + signal.SIGXFSZ:
            facts[Termination.DISK] = f"a file reached the disk limit, {size_text(self.limits.disk_bytes)}"
        failed = result.exit_code != 0
        if self.cgroup is not None:
            now = self.cgroup.counters()
            if (killed := now.oom_kills - counters.oom_kills) > 0:
                facts[Termination.OOM] = memory_fact(self.limits, killed, self.cgroup.memory_peak_bytes())
            if now.pids_refused > counters.pids_refused:
                facts[Termination.PIDS] = pids_fact(self.limits)
        if failed and self.usage is not None and used is not None and (fact := self._disk_fact(used, self.usage())):
            facts[Termination.DISK] = fact
        if fact := time_fact(self.limits, result):
            facts[Termination.TIMEOUT] = fact
        if failed and not facts:  # a crowd may be somebody else's
            self.look_for_crowd()
            if self.crowded_at >= began:
                facts[Termination.PIDS] = pids_fact(self.limits)
        return facts

    def _disk_fact(self, before: DiskUsage, after: DiskUsage) -> str:
        size, inodes = self.limits.disk_bytes, self.limits.inodes
        if size is not None and after.bytes > before.bytes and after.bytes + _DISK_SLACK >= size:
            return f"the disk limit was reached: {size_text(after.bytes)} of {size_text(size)} are used"
        if inodes is not None and after.inodes > before.inodes and after.inodes >= inodes:
            return f"the limit of files was reached: {after.inodes} of {inodes} exist"
        return ""


def within_time(request: ExecRequest, limits: Limits) -> ExecRequest:
    """Return the request with the sandbox's own deadline, if that is the earlier one."""
    longest = limits.command_s
    if longest is None or (request.timeout_s is not None and request.timeout_s <= longest):
        return request
    return replace(request, timeout_s=longest)
