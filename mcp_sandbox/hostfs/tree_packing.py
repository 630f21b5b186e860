"""A directory of the host as a tar stream, for an engine that takes one: links as they are, nothing of elsewhere."""

import errno
import logging
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from mcp_sandbox.hostfs.denied import Denied

__all__ = ["Ownership", "packed_directory", "packed_file", "packed_tree"]

_log = logging.getLogger(__name__)
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PIECE_BYTES: Final = 1 << 20
_BLOCK: Final = 512


class Ownership(NamedTuple):
    """Whom every packed file belongs to."""

    uid: int
    gid: int


def packed_file(path: str, data: bytes, mode: int) -> bytes:
    """Return a file of root's as one member of a tar stream."""
    member = tarfile.TarInfo(path)
    member.mode, member.size = mode, len(data)
    return _header(member) + data + bytes(-len(data) % _BLOCK)


def packed_directory(path: str, mode: int) -> bytes:
    """Return a directory of root's as one member of a tar stream."""
    member = tarfile.TarInfo(path)
    member.type, member.mode = tarfile.DIRTYPE, mode
    return _header(member)


def packed_tree(source: Path, prefix: str, owner: Ownership, denied: Denied | None = None) -> Iterator[bytes]:
    """Yield the members of a tar stream for a directory, `prefix` itself first; the stream's end is left to the caller.

    What cannot be read is left out and logged; so are sockets, devices and what is mounted there. Blocks.

    Args:
        source: The directory, whose files somebody may change meanwhile.
        prefix: Its path in the archive.
        owner: Whom all of it is given to.
        denied: What of it is left out, too.
    """
    top = os.open(source, _DIRECTORY & ~os.O_NOFOLLOW)
    walk = _Walk(os.fstat(top).st_dev, owner, denied or Denied(()), len(prefix) + 1)
    yield from walk.directory(top, prefix)
    if walk.left_out:
        _log.warning("%d entries of the project are not in the sandbox, %r first", len(walk.left_out), walk.left_out[0])


class _Walk:
    def __init__(self, device: int, owner: Ownership, denied: Denied, prefix: int) -> None:
        self._device = device
        self._denied = denied
        self._prefix = prefix
        """Length of what every path begins with."""
        self._owner = owner
        self._seen: dict[int, str] = {}
        """First path of every file that has several."""
        self.left_out: list[str] = []

    def directory(self, descriptor: int, path: str) -> Iterator[bytes]:
        """Yield a directory and what is in it; closes its descriptor."""
        try:
            found = os.fstat(descriptor)
            yield _header(self._member(path, found, tarfile.DIRTYPE))
            if found.st_dev != self._device:
                self.left_out.append(path)
                return
            for name in sorted(os.listdir(descriptor)):
                if self._denied.hides(f"{path}/{name}"[self._prefix :]):
                    continue
                try:
                    yield from self._entry(descriptor, name, f"{path}/{name}")
                except (FileNotFoundError, PermissionError):  # it went meanwhile, or is somebody else's
                    self.left_out.append(f"{path}/{name}")
                except OSError as error:
                    if error.errno != errno.ELOOP:  # it became a link meanwhile
                        raise
                    self.left_out.append(f"{path}/{name}")
        finally:
            os.close(descriptor)

    def _entry(self, directory: int, name: str, path: str) -> Iterator[bytes]:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFDIR:
            yield from self.directory(os.open(name, _DIRECTORY, dir_fd=directory), path)
        elif kind == stat.S_IFLNK:
            member = self._member(path, found, tarfile.SYMTYPE)
            member.linkname = os.readlink(name, dir_fd=directory)
            yield _header(member)
        elif kind == stat.S_IFIFO:
            yield _header(self._member(path, found, tarfile.FIFOTYPE))
        elif kind != stat.S_IFREG:
            self.left_out.append(path)
        elif found.st_nlink > 1 and found.st_ino in self._seen:
            member = self._member(path, found, tarfile.LNKTYPE)
            member.linkname = self._seen[found.st_ino]
            yield _header(member)
        else:
            yield from self._file(os.open(name, _FILE, dir_fd=directory), path)

    def _file(self, descriptor: int, path: str) -> Iterator[bytes]:
        with open(descriptor, "rb", buffering=0) as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                self.left_out.append(path)
                return
            member = self._member(path, found, tarfile.REGTYPE)
            member.size = left = found.st_size
            yield _header(member)
            while left and (data := file.read(min(left, _PIECE_BYTES))):
                left -= len(data)
                yield data
            while left:  # it became shorter meanwhile
                yield bytes(min(left, _PIECE_BYTES))
                left -= min(left, _PIECE_BYTES)
            yield bytes(-found.st_size % _BLOCK)
            if found.st_nlink > 1:
                self._seen[found.st_ino] = path

    def _member(self, path: str, found: os.stat_result, kind: bytes) -> tarfile.TarInfo:
        member = tarfile.TarInfo(path)
        member.type = kind
        member.mode = stat.S_IMODE(found.st_mode)
        member.uid, member.gid = self._owner
        seconds, nanoseconds = divmod(found.st_mtime_ns, 1_000_000_000)
        member.mtime = seconds
        if nanoseconds and seconds >= 0:
            member.pax_headers = {"mtime": f"{seconds}.{nanoseconds:09d}"}
        return member


def _header(member: tarfile.TarInfo) -> bytes:
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
