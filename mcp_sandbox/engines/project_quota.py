"""Project quotas: hard limits on the bytes and inodes of a tree, where ext4 or xfs was mounted with `prjquota`."""

import ctypes
import errno
import fcntl
import os
import secrets
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from mcp_sandbox.core.capability import LimitGap

__all__ = ["DiskUsage", "ProjectQuota"]

# linux/fs.h, linux/quota.h; the numbers are the same on x86_64 and aarch64
_GET_ATTRIBUTES, _SET_ATTRIBUTES = 0x801C581F, 0x401C5820
_ATTRIBUTES: Final = struct.Struct("=IIIII8x")
"""Flags, extent size, extents, project, copy-on-write extent size."""
_INHERIT: Final = 0x200
_QUOTACTL_FD: Final = 443
_GET_QUOTA, _SET_QUOTA, _GET_STATE, _OF_PROJECTS = 0x800007, 0x800008, 0x5808, 2
_STATE_BYTES, _STATE_VERSION, _ENFORCED = 256, b"\x01", 1 << 5
_QUOTA: Final = struct.Struct("=QQQQQQQQII")
"""Hard and soft KiB, bytes in use; hard and soft inodes, inodes in use; two times; which of them are meant."""
_LIMITS_MEANT: Final = 5
_KIB: Final = 1024
_REMEDY: Final = (
    "Put MCP_SANDBOX_HOME on ext4 or xfs mounted with the option prjquota (ext4: `tune2fs -O quota,project` first), "
    "and run as root"
)


class DiskUsage(NamedTuple):
    """What a sandbox has on the disk."""

    bytes: int
    inodes: int


class ProjectQuota:
    """The quotas of one store. Every directory of a sandbox that is written belongs to the sandbox's project."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._libc = ctypes.CDLL(None, use_errno=True)

    def gap(self) -> LimitGap | None:
        """Return why there are none, `None` if there are."""
        if os.geteuid() != 0:
            return LimitGap(why="only root can set quotas of a tree", fix=_REMEDY)
        try:
            state = self._call(_GET_STATE, 0, _STATE_VERSION.ljust(_STATE_BYTES, b"\0"))
        except OSError as error:
            why = f"the file system of the sandboxes has no project quotas ({os.strerror(error.errno or 0)})"
            return LimitGap(why=why, fix=_REMEDY)
        if not int.from_bytes(state[2:4], "little") & _ENFORCED:
            return LimitGap(why="the file system of the sandboxes counts projects, and limits none", fix=_REMEDY)
        return None

    def project_of(self, directory: Path) -> int:
        """Return the project of a directory; 0 is none."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _ATTRIBUTES.unpack(fcntl.ioctl(descriptor, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size)))[3]
        except OSError as error:
            if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL):  # not every file system knows projects
                return 0
            raise
        finally:
            os.close(descriptor)

    def new_project(self) -> int:
        """Return a number that nothing on this file system belongs to."""
        while True:
            project = secrets.randbelow(2**31) + 2**30
            if self.usage(project) == (0, 0):
                return project

    def claim(self, project: int, directories: Iterable[Path]) -> None:
        """Let empty directories belong to a project, with all that is made in them."""
        for directory in directories:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                flags, extent, extents, had, cow = _ATTRIBUTES.unpack(
                    fcntl.ioctl(descriptor, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size))
                )
                if had != project:
                    changed = _ATTRIBUTES.pack(flags | _INHERIT, extent, extents, project, cow)
                    fcntl.ioctl(descriptor, _SET_ATTRIBUTES, changed)
            finally:
                os.close(descriptor)

    def limit(self, project: int, size_bytes: int | None, inodes: int | None) -> None:
        """Set the limits of a project; `None` is none."""
        room = -(-size_bytes // _KIB) if size_bytes else 0
        self._call(_SET_QUOTA, project, _QUOTA.pack(room, room, 0, inodes or 0, inodes or 0, 0, 0, 0, _LIMITS_MEANT, 0))

    def usage(self, project: int) -> DiskUsage:
        """Return what belongs to a project now."""
        _, _, used, _, _, inodes, *_ = _QUOTA.unpack(self._call(_GET_QUOTA, project))
        return DiskUsage(used, inodes)

    def _call(self, command: int, project: int, content: bytes = bytes(_QUOTA.size)) -> bytes:
        buffer = ctypes.create_string_buffer(content, len(content))
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            wanted = ctypes.c_uint(command << 8 | _OF_PROJECTS)
            if self._libc.syscall(ctypes.c_long(_QUOTACTL_FD), descriptor, wanted, ctypes.c_uint(project), buffer):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            os.close(descriptor)
        return buffer.raw
