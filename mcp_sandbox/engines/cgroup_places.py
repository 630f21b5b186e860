"""Where this process may make control groups: found once, by reading, before anything is made."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from mcp_sandbox.core.capability import LimitGap

__all__ = ["CONTROLLERS", "Kernel", "Places", "find_places", "group_of"]

CONTROLLERS: Final = ("memory", "cpu", "pids")
_DELEGATE: Final = (
    "Give the server a group of its own, as `systemd-run --user --scope -p Delegate=yes mcp-sandbox serve` does"
)

_SWAP_COUNTED: Final = "memory.memsw.limit_in_bytes"
_FIRST_VERSION: Final = (
    "Boot with cgroup v2 (`systemd.unified_cgroup_hierarchy=1`), which systemd delegates to users, or run as root"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What the kernel says of this process; tests say something else."""

    mountinfo: str
    membership: str
    """`/proc/self/cgroup`."""
    uid: int
    ours: frozenset[int]
    """Processes that belong to this server."""
    runtime: Path
    """The user's runtime directory, where its systemd listens."""
    busctl: str | None
    swaps: str = ""
    """`/proc/swaps`."""

    @classmethod
    def here(cls, *children: int) -> "Kernel":
        """Read what it says."""
        uid = os.geteuid()
        return cls(
            mountinfo=Path("/proc/self/mountinfo").read_text("utf-8", "replace"),
            membership=Path("/proc/self/cgroup").read_text("utf-8", "replace"),
            uid=uid,
            ours=frozenset({os.getpid(), *children}),
            runtime=Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"),
            busctl=shutil.which("busctl"),
            swaps=Path("/proc/swaps").read_text("utf-8", "replace") if Path("/proc/swaps").exists() else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Below which groups sandboxes may get their own. A controller without one says why."""

    parents: Mapping[str, Path]
    """By controller; with version 2 all the same."""
    version: int = 0
    missing: Mapping[str, LimitGap]
    leave_first: bool = False
    """Whether this server must leave the parent before anything below can be limited (no internal processes)."""
    by_user_manager: bool = False
    """Whether the user's systemd must be asked for the parent; `parents` then holds where it would lie."""


class _Mount(NamedTuple):
    root: str
    point: Path
    kind: str
    options: frozenset[str]


def find_places(kernel: Kernel) -> Places:
    """Look where groups can be made: version 2 if it has any of the controllers, else version 1."""
    mounts = list(_mounts(kernel.mountinfo))
    unified = next((mount for mount in mounts if mount.kind == "cgroup2"), None)
    if unified is not None and _controllers(unified.point):
        return _unified(kernel, unified)
    parents: dict[str, Path] = {}
    missing: dict[str, LimitGap] = {}
    for controller in CONTROLLERS:
        mount = next((m for m in mounts if m.kind == "cgroup" and controller in m.options), None)
        path = _member(kernel.membership, controller)
        own = _below(mount, path) if mount is not None and path is not None else None
        if own is None:
            missing[controller] = LimitGap(
                why=f"there is no control group hierarchy for {controller}", fix="Mount one at /sys/fs/cgroup"
            )
        elif not _writable(own, "tasks"):
            missing[controller] = LimitGap(
                why=f"the control group of this process may not be divided ({controller}, cgroup v1)",
                fix=_FIRST_VERSION,
            )
        elif controller == "memory" and len(kernel.swaps.splitlines()) > 1 and not (own / _SWAP_COUNTED).exists():
            missing[controller] = LimitGap(
                why="the machine swaps, and its kernel does not count that: what a sandbox may not have would go there",
                fix="Boot with `swapaccount=1`, or turn swap off (`swapoff -a`)",
            )
        else:
            parents[controller] = own
    return Places(parents=parents, version=1 if parents else 0, missing=missing)


def group_of(kernel: Kernel, controller: str | None = None) -> Path | None:
    """Return the directory of the group that `kernel.membership` names; of version 2 without a controller."""
    kind = "cgroup2" if controller is None else "cgroup"
    path = _member(kernel.membership, controller or "")
    for mount in _mounts(kernel.mountinfo):
        if path is not None and mount.kind == kind and (controller is None or controller in mount.options):
            return _below(mount, path)
    return None


def _unified(kernel: Kernel, mount: _Mount) -> Places:
    path = _member(kernel.membership, "")
    own = _below(mount, path) if path is not None else None
    is_top = not (mount.point / "cgroup.events").exists()  # which every group has but the machine's first
    if is_top and (kernel.uid == 0 or own == mount.point) and _writable(mount.point, "cgroup.procs"):
        return _at(mount.point)
    if own is not None and _writable(own, "cgroup.procs") and _controllers(own) and _members(own) <= kernel.ours:
        return _at(own, leave_first=True)
    manager = mount.point / f"user.slice/user-{kernel.uid}.slice/user@{kernel.uid}.service"
    if kernel.uid and kernel.busctl and (kernel.runtime / "systemd/private").exists() and _controllers(manager):
        return _at(manager, by_user_manager=True)
    gap = LimitGap(
        why="no control group is delegated to this process: the one that it is in is "
        + ("shared with others" if own is not None and _writable(own, "cgroup.procs") else "not its own"),
        fix=_DELEGATE,
    )
    return Places(parents={}, missing=dict.fromkeys(CONTROLLERS, gap))


def _at(parent: Path, *, leave_first: bool = False, by_user_manager: bool = False) -> Places:
    there = _controllers(parent)
    missing = {
        name: LimitGap(
            why=f"the controller {name} is not delegated to this process",
            fix=f"Delegate it: `Delegate=cpu memory pids` in a drop-in of user@.service, then log in again ({name})"
            if by_user_manager
            else f"Enable it: add +{name} to cgroup.subtree_control of the groups above",
        )
        for name in CONTROLLERS
        if name not in there
    }
    return Places(
        parents=dict.fromkeys(there, parent), version=2 if there else 0, missing=missing, leave_first=leave_first,
        by_user_manager=by_user_manager,
    )  # fmt: skip


def _mounts(mountinfo: str) -> "list[_Mount]":
    found: list[_Mount] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) > 4 and len(kind) > 2 and kind[0] in ("cgroup", "cgroup2"):
            found.append(_Mount(fields[3], Path(fields[4]), kind[0], frozenset(kind[2].split(","))))
    return found


def _member(membership: str, controller: str) -> str | None:
    """Return the path of the group in the hierarchy of a controller; of version 2 for an empty name."""
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(",") and (controller or number == "0"):
            return path
    return None


def _below(mount: _Mount, path: str) -> Path | None:
    """Return where a group is seen, `None` if this mount does not show it."""
    root = mount.root.rstrip("/")
    if not f"{path}/".startswith(f"{root}/") or "/../" in f"{path}/":
        return None
    return mount.point / path[len(root) :].lstrip("/")


def _writable(group: Path, procs: str) -> bool:
    return os.access(group, os.W_OK | os.X_OK) and os.access(group / procs, os.W_OK)


def _members(group: Path) -> frozenset[int]:
    try:
        return frozenset(map(int, (group / "cgroup.procs").read_text("ascii").split()))
    except (OSError, ValueError):
        return frozenset({0})


def _controllers(group: Path) -> frozenset[str]:
    try:
        return frozenset((group / "cgroup.controllers").read_text("ascii").split()) & frozenset(CONTROLLERS)
    except OSError:
        return frozenset()
