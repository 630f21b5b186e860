"""Whole trees into a `TreeWriter`: from a directory, or from a tar archive."""

import os
import stat
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from mcp_sandbox.hostfs.archives import members, opened_tar
from mcp_sandbox.hostfs.tree_writer import Attributes, TreeWriter, refusal

__all__ = ["copy_directory", "copy_tar"]

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def copy_directory(source: Path, writer: TreeWriter, left_out: Counter[str]) -> None:
    """Copy what is below a directory, without following a link and without what is mounted there.

    Args:
        source: Where from.
        writer: Where to.
        left_out: Gets what is not taken, by kind.
    """
    top = os.open(source, _DIRECTORY & ~os.O_NOFOLLOW)
    _Walk(writer, left_out, os.fstat(top).st_dev).directory(top, ".")


class _Walk:
    def __init__(self, writer: TreeWriter, left_out: Counter[str], device: int) -> None:
        self._writer = writer
        self._left_out = left_out
        self._device = device
        self._seen: dict[int, str] = {}
        """First path of every file that has several."""

    def directory(self, descriptor: int, path: str) -> None:
        """Copy a directory; closes its descriptor."""
        try:
            found = os.fstat(descriptor)
            self._writer.directory(path, _attributes(found))
            if found.st_dev != self._device:
                self._left_out["mounted trees"] += 1
                return
            for name in sorted(os.listdir(descriptor)):
                self._entry(descriptor, name, f"{path}/{name}")
        finally:
            os.close(descriptor)

    def _entry(self, directory: int, name: str, path: str) -> None:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFDIR:
            self.directory(_opened(name, _DIRECTORY, directory, path), path)
        elif kind == stat.S_IFLNK:
            self._writer.link(path, os.readlink(name, dir_fd=directory), _attributes(found))
        elif kind == stat.S_IFIFO:
            self._writer.fifo(path, _attributes(found))
        elif kind != stat.S_IFREG:
            self._left_out["sockets" if kind == stat.S_IFSOCK else "devices"] += 1
        elif found.st_nlink > 1 and found.st_ino in self._seen:
            self._writer.hard_link(path, self._seen[found.st_ino])
        else:
            with open(_opened(name, _FILE, directory, path), "rb", buffering=0) as file:
                now = os.fstat(file.fileno())
                if not stat.S_ISREG(now.st_mode):
                    raise refusal(f"{path} was changed meanwhile", "Try again when nobody writes to the directory")
                self._writer.file(path, _attributes(now), file.read, now.st_size)
            if found.st_nlink > 1:
                self._seen[found.st_ino] = path


def _opened(name: str, flags: int, directory: int, path: str) -> int:
    try:
        return os.open(name, flags, dir_fd=directory)
    except PermissionError:
        fix = "Import it as its owner or as root, or from a tar archive"
        raise refusal(f"this user may not read {path.removeprefix('./')!r}", fix) from None


def _attributes(found: os.stat_result) -> Attributes:
    mode = stat.S_IMODE(found.st_mode)
    return Attributes(mode=mode, uid=found.st_uid, gid=found.st_gid, modified_ns=found.st_mtime_ns)


def copy_tar(
    file: IO[bytes],
    writer: TreeWriter,
    left_out: Counter[str],
    *,
    passes_over: Callable[[tarfile.TarInfo], bool] = lambda member: False,
) -> None:
    """Unpack an uncompressed tar archive.

    Args:
        file: Can be read from any place.
        writer: Where to.
        left_out: Gets what is not taken, by kind.
        passes_over: Says which members mean something else.
    """
    archive = opened_tar(file)
    for member in members(archive):
        if not passes_over(member):
            _write_member(archive, member, writer, left_out)


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, writer: TreeWriter, left: Counter[str]) -> None:
    modified_ns = int(float(member.mtime) * 1_000_000_000)
    attributes = Attributes(mode=member.mode & 0o7777, uid=member.uid, gid=member.gid, modified_ns=modified_ns)
    if member.isdir():
        writer.directory(member.name, attributes)
    elif member.issym():
        writer.link(member.name, member.linkname, attributes)
    elif member.islnk():
        writer.hard_link(member.name, member.linkname)
    elif member.isfifo():
        writer.fifo(member.name, attributes)
    elif member.isdev():
        left["devices"] += 1
    elif content := archive.extractfile(member):
        writer.file(member.name, attributes, content.read, member.size)
    else:
        raise refusal(f"the member {member.name[:80]!r} is of a kind that tar does not have ({member.type!r})")
