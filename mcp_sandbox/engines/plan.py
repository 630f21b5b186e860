"""The plan of one embedded sandbox, as the data that the guest agent carries out."""

import resource
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines.identity import Identity
from mcp_sandbox.engines.launcher import tokens

__all__ = [
    "CAPABILITIES",
    "ENVIRONMENT",
    "NAMESPACES",
    "SPOOL",
    "Volume",
    "id_tokens",
    "kernel_tokens",
    "limit_tokens",
    "overlay_tokens",
    "sandbox_plan",
]

SPOOL: Final = "/var/spool/mcp-sandbox"
"""Outside of snapshots: what commands said stays readable after a restore."""

ENVIRONMENT: Final = {
    "PATH": "/root/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "SHELL": "/bin/sh",
    # Not LANG: of C.UTF-8 only this differs from C, and every program would look for twelve files instead of one.
    "LC_CTYPE": "C.UTF-8",
    # The system's Python refuses installs where they could break the system (PEP 668). This one is thrown away.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "UV_BREAK_SYSTEM_PACKAGES": "1",
}

_MOUNT, _UTS, _IPC, _USER, _PID, _NETWORK, _CGROUP = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x02000000,
)  # fmt: skip
NAMESPACES: Final = _MOUNT | _UTS | _IPC | _USER | _PID | _NETWORK | _CGROUP
_NOSUID, _NODEV, _NOEXEC = 2, 4, 8

# chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service, sys_chroot
CAPABILITIES: Final = sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7, 10, 18))

_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_DEV_LINKS: Final = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_MASKED: Final = (
    "kcore keys key-users timer_list sysrq-trigger partitions diskstats cmdline kallsyms sched_debug config.gz"
).split()
_READ_ONLY: Final = ("sys", "irq", "bus", "fs", "tty", "acpi", "scsi", "driver")
_NO_CORE_FILES: Final = 1
"""With 0 a program that the machine's `core_pattern` names still gets it, as the host's root; with 1 none does."""
_SHARED_BYTES: Final = 64 << 20
_SHARED_COUNTERS: Final = ("max_inotify_instances", "max_inotify_watches")
_SHARED_LIMITS: Final = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK)
_TERMINALS: Final = 256
"""Of the 3,072 that the kernel has for all that are not in the host's own /dev/pts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """One overlay. Paths are relative to the store."""

    target: str
    upper: str
    work: str
    lowers: Sequence[str]
    """From the top down."""


def id_tokens(identity: Identity) -> bytes:
    """Return the options that map ids: root inside is the first one."""
    if identity.is_range:
        return tokens("map", f"0 {identity.start} {identity.count}")
    return tokens("uid", identity.start, "gid", identity.gid)


def overlay_tokens(volume: Volume, identity: Identity) -> bytes:
    """Return the step that mounts an overlay."""
    # Without privilege on the whole machine overlayfs keeps its marks where anybody may write them, and fewer of them.
    whole = identity.is_range and not identity.is_nested
    # An index ties a layer to those below it and to one mount, and some kernels are built to make one unasked.
    options = "volatile,index=off," + ("redirect_dir=on,metacopy=off" if whole else "userxattr")
    return tokens("overlay", volume.target, volume.upper, volume.work, len(volume.lowers), *volume.lowers, options)


def limit_tokens(identity: Identity, limits: Limits) -> bytes:
    """Return the options that limit what a sandbox takes of the kernel."""
    wanted = [(resource.RLIMIT_CORE, _NO_CORE_FILES)]
    if limits.open_files is not None:
        wanted.append((resource.RLIMIT_NOFILE, limits.open_files))  # at most half of what init has
    if limits.pids is not None:
        # Counted per user namespace (Linux 5.14), so other processes of the same user do not count; init does.
        wanted.append((resource.RLIMIT_NPROC, limits.pids + 1))
    parts = [tokens("rlimit", f"{number}:{value}") for number, value in wanted]
    if owner := identity.new_owner():
        parts.append(tokens("owner", owner))
        parts += [tokens("processes", limits.pids + 1)] if limits.pids is not None else []
    else:  # programs of the same user outside count to the same limits: leave them half
        parts += [tokens("counter", f"{name}:{most // 2}") for name in _SHARED_COUNTERS if (most := _most(name))]
        limits_of_user = {number: resource.getrlimit(number)[1] for number in _SHARED_LIMITS}
        parts += [tokens("rlimit", f"{number}:{most // 2}") for number, most in limits_of_user.items() if most > 0]
    return b"".join(parts)


def _shared_bytes(limits: Limits) -> int:
    """Return the size of `/dev/shm`: with all of it in use, half of the memory is left for programs."""
    return min(_SHARED_BYTES, (limits.memory_bytes or 2 * _SHARED_BYTES) // 2)


def _most(counter: str) -> int:
    """Return how much of something one user may have, 0 if this kernel does not say."""
    try:
        return int(Path("/proc/sys/fs/inotify", counter.replace("inotify", "user")).read_text("ascii"))
    except (OSError, ValueError):
        return 0


def kernel_tokens(devices: Sequence[str]) -> bytes:
    """Return the steps that make `/proc`, and `/dev` with a few devices of the host."""
    parts = [
        tokens("fs", "/proc", "proc", "", _NOSUID | _NODEV | _NOEXEC),
        tokens("fs", "/dev", "tmpfs", "mode=755,size=65536,nr_inodes=64", _NOSUID | _NOEXEC),
    ]
    for name in devices:
        parts += [tokens("touch", f"/dev/{name}"), tokens("bind", f"/dev/{name}", f"/dev/{name}", _NOSUID | _NOEXEC)]
    return b"".join(parts)


def sandbox_plan(identity: Identity, volumes: Sequence[Volume], limits: Limits, options: bytes = b"") -> bytes:
    """Return the plan. The first volume is the root; the order of the rest is the order of mounting.

    Args:
        identity: The ids.
        volumes: The overlays.
        limits: Those that every sandbox has.
        options: Further ones, as tokens: control groups, for example.
    """
    parts = [
        tokens("namespaces", NAMESPACES, "hostname", "sandbox", "capabilities", f"{CAPABILITIES:x}"),
        id_tokens(identity),
        limit_tokens(identity, limits),
        options,
        tokens("--"),
        *(overlay_tokens(volume, identity) for volume in volumes),
        _everybodys_tokens(_shared_bytes(limits)),
    ]
    return b"".join(parts)


@cache
def _everybodys_tokens(shared_bytes: int) -> bytes:
    """Return the steps behind the overlays, which are the same for every sandbox but for the size of `/dev/shm`."""
    parts = [
        kernel_tokens(_DEVICES),
        tokens("mkdir", "/dev/pts"),
        tokens("fs", "/dev/pts", "devpts", f"newinstance,ptmxmode=0666,mode=620,max={_TERMINALS}", _NOSUID | _NOEXEC),
        tokens("mkdir", "/dev/shm"),
        tokens("fs", "/dev/shm", "tmpfs", f"mode=1777,size={shared_bytes},nr_inodes=65536", _NOSUID | _NODEV),
        *(tokens("symlink", f"/dev/{name}", target) for name, target in _DEV_LINKS.items()),
        *(tokens("mask", f"/proc/{name}") for name in _MASKED),
        *(tokens("readonly", f"/proc/{name}") for name in _READ_ONLY),
    ]
    return b"".join(parts)
