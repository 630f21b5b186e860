"""Facts about this machine that decide whether the embedded engine works, as plain data, so that any can be played."""

import contextlib
import os
import platform
import re
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

__all__ = ["Machine", "look_at_machine"]

_SYSCTLS: Final = (
    "kernel.apparmor_restrict_unprivileged_userns",
    "kernel.unprivileged_userns_clone",
    "user.max_user_namespaces",
    "vm.memfd_noexec",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was found; the defaults are a machine on which everything works."""

    release: str = "6.12.0"
    """As `uname -r` says it."""
    machine: str = "x86_64"
    pointer_bits: int = 64
    """Of this Python."""
    uid: int = 1000
    sysctls: Mapping[str, str] = field(default_factory=dict[str, str])
    proc_is_masked: bool = False
    """Whether something is mounted over parts of /proc."""
    state: str = "/state"
    """The directory that holds the engine's state."""
    state_filesystem: str = "ext4"
    state_is_read_only: bool = False
    state_free_bytes: int = 1 << 40
    state_free_files: int = 1 << 30
    python: str = "/usr/bin/python3"

    @property
    def kernel(self) -> tuple[int, int]:
        """The release's first two numbers."""
        found = re.match(r"(\d+)\.(\d+)", self.release)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def is_wsl(self) -> bool:
        """Whether this is the Windows Subsystem for Linux."""
        return "microsoft" in self.release.lower()


def look_at_machine(state: Path) -> Machine:
    """Return the facts; what cannot be found out counts as good, because the real attempt is what decides."""
    mounts = _mounts()
    point, filesystem, options = _mount_of(state, mounts)
    facts = Machine(
        release=platform.release(),
        machine=platform.machine(),
        pointer_bits=struct.calcsize("P") * 8,
        uid=os.geteuid(),
        sysctls={name: value for name in _SYSCTLS if (value := _sysctl(name))},
        proc_is_masked=any(path.startswith("/proc/") for path, _, _ in mounts),
        state=str(state),
        state_filesystem=filesystem,
        state_is_read_only="ro" in options.split(",") and bool(point),
        python=str(Path(sys.executable).resolve()) if sys.executable else "",
    )
    return _with_room(facts, state)


def _with_room(facts: Machine, state: Path) -> Machine:
    with contextlib.suppress(OSError):
        room = os.statvfs(_existing(state))
        # Some file systems (btrfs) count no files.
        files = room.f_favail if room.f_files else facts.state_free_files
        return replace(facts, state_free_bytes=room.f_bavail * room.f_frsize, state_free_files=files)
    return facts


def _sysctl(name: str) -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys", name.replace(".", "/")).read_text("utf-8").strip()
    return ""


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _mounts() -> list[tuple[str, str, str]]:
    """Return mount points, the types of their file systems, and their options, both kinds of them."""
    found: list[tuple[str, str, str]] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
            before, _, after = line.partition(" - ")
            point = re.sub(r"\\(\d{3})", lambda escape: chr(int(escape[1], 8)), before.split()[4])
            kind, _, *rest = after.split()
            found.append((point, kind, ",".join([before.split()[5], *rest])))
    return found


def _mount_of(path: Path, mounts: list[tuple[str, str, str]]) -> tuple[str, str, str]:
    best = ("", "", "")
    with contextlib.suppress(OSError):
        path = _existing(path).resolve()
    for mount in mounts:
        if path.is_relative_to(mount[0]) and len(mount[0]) >= len(best[0]):
            best = mount
    return best
