"""Writes a tree of files that somebody else chose, into a directory that nobody else writes.

No link is followed: each directory on the way to a name is opened by itself, so nothing can land outside. Devices have
no method, extended attributes are not taken over, and no file is left with a setuid or setgid bit. Blocks.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from mcp_sandbox.core.errors import InvalidRequestError

__all__ = ["Attributes", "Bounds", "TreeWriter", "Written", "refusal"]

CHUNK_BYTES: Final = 1 << 20
DEPTH_MAX: Final = 256
SPARE_BYTES: Final = 256 << 20
"""What must stay free on the disk."""
_LOOK_EVERY_BYTES: Final = 64 << 20
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def refusal(why: str, fix: str = "Use another archive or directory") -> InvalidRequestError:
    """Return the error for a tree that is not taken."""
    return InvalidRequestError("Image refused", why=why, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What a file or directory has beside its content."""

    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    modified_ns: int = 1_577_836_800_000_000_000
    """2020: programs that make archives do not take 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much is taken at most: an archive of a few bytes can hold a full disk."""

    max_bytes: int = 64 << 30
    max_entries: int = 2_000_000


class Written(NamedTuple):
    """A finished tree."""

    digest: str
    """SHA-256 over every path, with its attributes and content; equal trees have equal ones."""
    size_bytes: int


class TreeWriter:
    """Use as a context manager. Paths are relative to the top, with or without a leading `./`.

    Args:
        top: An empty directory.
        owner: From ids in the tree to ids on this machine.
        bounds: How much to take.
    """

    def __init__(self, top: Path, *, owner: Callable[[int, int], tuple[int, int]], bounds: Bounds) -> None:
        self._path = top
        self._owner = owner
        self._bounds = bounds
        self._bytes = self._entries = self._looked_at = 0
        self._directories: dict[str, Attributes] = {}
        self._contents: dict[int, str] = {}
        """Digests by inode: a file that takes another one's place takes its entry, too."""
        self._parent: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        """Open the top."""
        self._top = os.open(self._path, _DIRECTORY)
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self._forget_parent()
        os.close(self._top)

    # ------------------------------------------------------------------------------------------ members

    def directory(self, path: str, attributes: Attributes) -> None:
        """Make a directory, or give one that is there other attributes; `.` is the top."""
        parts = self._enter(path)
        if parts:
            parent = self._open_parent(parts)
            try:
                os.mkdir(parts[-1], 0o700, dir_fd=parent)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode):
                    os.unlink(parts[-1], dir_fd=parent)
                    os.mkdir(parts[-1], 0o700, dir_fd=parent)
        self._directories["/".join(parts)] = attributes

    def file(self, path: str, attributes: Attributes, read: Callable[[int], bytes], size: int) -> None:
        """Write a file of `size` bytes; stretches of zeros become holes."""
        parts = self._enter(path)
        self._take_bytes(size)
        parent = self._cleared(parts)
        descriptor = os.open(parts[-1], _NEW_FILE, 0o600, dir_fd=parent)
        try:
            digest = hashlib.sha256()
            left = size
            while left:
                piece = read(min(CHUNK_BYTES, left))
                if not piece:
                    raise refusal(f"{path!r} ends {left:,} bytes too early")
                digest.update(piece)
                left -= len(piece)
                if piece.strip(b"\0"):
                    _write_all(descriptor, piece)
                else:
                    os.lseek(descriptor, len(piece), os.SEEK_CUR)
            os.ftruncate(descriptor, size)
            os.fchown(descriptor, *self._owner(attributes.uid, attributes.gid))
            os.fchmod(descriptor, attributes.mode & 0o1777)
            os.utime(descriptor, ns=(attributes.modified_ns, attributes.modified_ns))
            self._contents[os.fstat(descriptor).st_ino] = digest.hexdigest()
        finally:
            os.close(descriptor)

    def link(self, path: str, target: str, attributes: Attributes) -> None:
        """Make a symbolic link. Wherever it leads, only the sandbox will follow it."""
        parts = self._enter(path)
        if not target or "\0" in target or len(os.fsencode(target)) >= 4096:
            raise refusal(f"the link {path!r} leads nowhere")
        self._finish_node(parts, attributes, lambda parent: os.symlink(target, parts[-1], dir_fd=parent))

    def fifo(self, path: str, attributes: Attributes) -> None:
        """Make a FIFO."""
        parts = self._enter(path)

        def make(parent: int) -> None:
            os.mkfifo(parts[-1], attributes.mode & 0o777, dir_fd=parent)
            os.chmod(parts[-1], attributes.mode & 0o777, dir_fd=parent)  # a fresh FIFO of ours, no link

        self._finish_node(parts, attributes, make)

    def hard_link(self, path: str, existing: str) -> None:
        """Give a file that was written before a second name."""
        parts, other = self._enter(path), _parts(existing)
        if not other or parts == other:
            raise refusal(f"{path!r} is a hard link to {existing!r}")
        source = self._open_parent(other, make=False, copy=True)
        try:
            if stat.S_ISDIR(os.stat(other[-1], dir_fd=source, follow_symlinks=False).st_mode):
                raise refusal(f"{path!r} is a hard link to a directory")
            parent = self._cleared(parts)
            os.link(other[-1], parts[-1], src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise refusal(f"{path!r} is a hard link to {existing!r}, which is not there before it") from None
        finally:
            os.close(source)

    # ------------------------------------------------------------------------------------------ changes

    def remove(self, path: str) -> None:
        """Remove whatever is at a path; nothing, if nothing is."""
        parts = _parts(path)
        try:
            parent = self._open_parent(parts, make=False, copy=True)
        except FileNotFoundError:
            return
        self._forget_parent()  # it may be below
        try:
            _remove(parent, parts[-1])
        except FileNotFoundError:
            pass
        finally:
            os.close(parent)

    def clear(self, path: str) -> None:
        """Remove all that is in a directory."""
        for name in self.names(path):
            self.remove(f"{path}/{name}")

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none, if there is no such directory."""
        parts = _parts(path)
        try:
            descriptor = self._open_parent([*parts, "."], make=False)
        except FileNotFoundError:
            return []
        return _names(descriptor)

    def read(self, path: str, max_bytes: int) -> bytes | None:
        """Return the beginning of a regular file; `None` for anything else."""
        parts = _parts(path)
        try:
            parent = self._open_parent(parts, make=False)
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(parts[-1], flags, dir_fd=parent), "rb", buffering=0) as file:
                return file.read(max_bytes) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
        except OSError:
            return None

    def kind(self, path: str) -> int | None:
        """Return the type bits of what is at a path (`stat.S_IFDIR`, ...), `None` if nothing is."""
        parts = _parts(path)
        try:
            parent = self._open_parent(parts, make=False)
            return stat.S_IFMT(os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return None

    # ------------------------------------------------------------------------------------------ the end

    def finish(self) -> Written:
        """Give directories their attributes, and return what the whole tree is."""
        self._forget_parent()
        lines: list[bytes] = []
        first: dict[int, str] = {}
        self._settle(os.dup(self._top), "", lines, first)
        return Written(hashlib.sha256(b"\n".join(sorted(lines))).hexdigest(), self._bytes)

    def _settle(self, descriptor: int, path: str, lines: list[bytes], first: dict[int, str]) -> None:
        attributes = self._directories.get(path, Attributes())
        owner = self._owner(attributes.uid, attributes.gid)
        try:
            for name in sorted(_names(descriptor)):
                inner = f"{path}/{name}" if path else name
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    self._settle(os.open(name, _DIRECTORY, dir_fd=descriptor), inner, lines, first)
                    continue
                detail = os.readlink(name, dir_fd=descriptor) if stat.S_ISLNK(found.st_mode) else ""
                if stat.S_ISREG(found.st_mode):
                    detail = f"{self._contents[found.st_ino]} {first.setdefault(found.st_ino, inner)}"
                facts = (inner, oct(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns, detail)
                lines.append(os.fsencode(repr(facts)))
            os.fchown(descriptor, *owner)
            os.fchmod(descriptor, attributes.mode & 0o7777)
            os.utime(descriptor, ns=(attributes.modified_ns, attributes.modified_ns))
            facts = (path, "directory", oct(attributes.mode), *owner, attributes.modified_ns)
            lines.append(os.fsencode(repr(facts)))
        finally:
            os.close(descriptor)

    # ------------------------------------------------------------------------------------------ inside

    def _enter(self, path: str) -> list[str]:
        self._entries += 1
        if self._entries > self._bounds.max_entries:
            raise refusal(f"it has more than {self._bounds.max_entries:,} members")
        return _parts(path)

    def _take_bytes(self, size: int) -> None:
        self._bytes += size
        if size < 0 or self._bytes > self._bounds.max_bytes:
            raise refusal(f"its files are larger than {self._bounds.max_bytes:,} bytes")
        if self._bytes - self._looked_at >= _LOOK_EVERY_BYTES:
            self._looked_at = self._bytes
            disk = os.fstatvfs(self._top)
            if disk.f_bavail * disk.f_frsize < SPARE_BYTES:
                raise refusal("it does not fit on the disk", "Free some space in the state directory's file system")

    def _open_parent(self, parts: list[str], *, make: bool = True, copy: bool = False) -> int:
        """Return a descriptor of the directory that holds a path: ours to close if it is a `copy`."""
        if not parts:
            raise refusal("a member is the top itself, and no directory")
        key = "/".join(parts[:-1])
        if self._parent is None or self._parent[0] != key:
            self._forget_parent()
            self._parent = (key, self._walk(parts[:-1], make=make))
        return os.dup(self._parent[1]) if copy else self._parent[1]

    def _walk(self, parts: list[str], *, make: bool) -> int:
        descriptor = os.dup(self._top)
        for depth, name in enumerate(parts, 1):
            above = descriptor
            try:
                try:
                    descriptor = os.open(name, _DIRECTORY, dir_fd=above)
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(name, 0o700, dir_fd=above)
                    descriptor = os.open(name, _DIRECTORY, dir_fd=above)
            except NotADirectoryError:  # also for a link
                raise refusal(f"a member lies behind {'/'.join(parts[:depth])!r}, which is no directory") from None
            finally:
                os.close(above)
        return descriptor

    def _cleared(self, parts: list[str]) -> int:
        """Return the directory for a new entry, whose name nothing has any more."""
        parent = self._open_parent(parts)
        with contextlib.suppress(FileNotFoundError):
            _remove(parent, parts[-1])
        return parent

    def _finish_node(self, parts: list[str], attributes: Attributes, make: Callable[[int], None]) -> None:
        parent = self._cleared(parts)
        make(parent)
        uid, gid = self._owner(attributes.uid, attributes.gid)
        os.chown(parts[-1], uid, gid, dir_fd=parent, follow_symlinks=False)
        times = (attributes.modified_ns, attributes.modified_ns)
        os.utime(parts[-1], ns=times, dir_fd=parent, follow_symlinks=False)

    def _forget_parent(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None


def _parts(path: str) -> list[str]:
    if path.startswith("/") or "\0" in path:
        raise refusal(f"the member {path[:80]!r} is an absolute path" if path[:1] == "/" else "a name holds a NUL")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise refusal(f"the member {path[:80]!r} leads upwards")
    if len(parts) > DEPTH_MAX or len(os.fsencode(path)) >= 4096:
        raise refusal(f"the member {path[:80]!r}... lies too deep")
    return parts


def _names(descriptor: int) -> list[str]:
    return os.listdir(descriptor)


def _remove(parent: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        for inner in _names(descriptor):
            _remove(descriptor, inner)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=parent)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
