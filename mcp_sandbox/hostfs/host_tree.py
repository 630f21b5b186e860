"""A directory of the host that others may change meanwhile, looked at and changed by paths that cannot lead out of it.

Each directory on the way to a name is opened by itself, in the one above it, and only if it is one: a link is never
followed, whoever put it there and whenever. What lies on another file system is not part of it, since no overlay shows
that either. Blocks.
"""

import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from mcp_sandbox.core.errors import InvalidRequestError

__all__ = ["HostEntry", "HostTree", "parts_of"]

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DEPTH_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """What is at a path, as it was looked at."""

    type: int
    """`stat.S_IFREG`, `S_IFDIR`, `S_IFLNK`, ..."""
    mode: int
    """Permission bits."""
    size_bytes: int
    inode: int
    modified_ns: int
    changed_ns: int
    """When content, attributes or name last changed: the kernel's word, which no program can set."""
    uid: int
    gid: int

    @property
    def is_directory(self) -> bool:
        """Whether it holds others."""
        return self.type == stat.S_IFDIR

    def is_same_content(self, other: "HostEntry | None") -> bool:
        """Whether another look saw the same file with the same content; renaming it does not matter."""
        return other is not None and self._lasting == other._lasting

    @property
    def _lasting(self) -> tuple[int, ...]:
        if self.is_directory:
            return (self.type, self.inode)
        return (self.type, self.inode, self.mode, self.size_bytes, self.modified_ns)

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Return what a `stat` saw."""
        return cls(
            type=stat.S_IFMT(status.st_mode), mode=stat.S_IMODE(status.st_mode), size_bytes=status.st_size,
            inode=status.st_ino, modified_ns=status.st_mtime_ns, changed_ns=status.st_ctime_ns,
            uid=status.st_uid, gid=status.st_gid,
        )  # fmt: skip


class HostTree:
    """Use as a context manager. Paths are relative to the top, without `.` and `..`.

    Args:
        top: A real path of a directory.
    """

    def __init__(self, top: Path) -> None:
        self._path = top

    def __enter__(self) -> Self:
        """Open the top."""
        self.top = os.open(self._path, _DIRECTORY)
        self.device = os.fstat(self.top).st_dev
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        os.close(self.top)

    def look(self, path: str) -> HostEntry | None:
        """Return what is at a path; `None` if nothing is, or could be: what is above it is no directory here."""
        try:
            with self.parent(path) as (directory, name):
                return HostEntry.of(os.stat(name, dir_fd=directory, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, path: str) -> list[str]:
        """Return what a directory holds; nothing, if it is none."""
        try:
            descriptor = self._walk(parts_of(path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            return os.listdir(descriptor)  # noqa: PTH208 (of a descriptor)
        finally:
            os.close(descriptor)

    def top_names(self) -> list[str]:
        """Return what the top holds."""
        return os.listdir(self.top)  # noqa: PTH208 (of a descriptor)

    def is_within(self, path: str) -> bool:
        """Whether a directory can be entered: it is one, and on the file system of the top."""
        try:
            os.close(self._walk(parts_of(path)))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def link_target(self, path: str) -> str:
        """Return what a symbolic link says."""
        with self.parent(path) as (directory, name):
            return os.readlink(name, dir_fd=directory)

    def chunks(self, path: str, size: int = 1 << 20) -> Iterator[bytes]:
        """Yield the content of a regular file.

        Raises:
            InvalidRequestError: It is none.
        """
        with self.parent(path) as (directory, name):
            descriptor = os.open(name, _FILE, dir_fd=directory)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidRequestError(f"{path!r} not read", why="it is no regular file", fix="Leave it out")
            while chunk := file.read(size):
                yield chunk

    @contextmanager
    def parent(self, path: str) -> Generator[tuple[int, str]]:
        """Open the directory that holds a path, and return it with the last name.

        Raises:
            FileNotFoundError, NotADirectoryError: There is none; the latter also for a link, and another file system.
        """
        *above, name = parts_of(path)
        descriptor = self._walk(above)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _walk(self, names: list[str]) -> int:
        descriptor = os.dup(self.top)
        for name in names:
            above = descriptor
            try:
                descriptor = os.open(name, _DIRECTORY, dir_fd=above)
            finally:
                os.close(above)
            if os.fstat(descriptor).st_dev != self.device:
                os.close(descriptor)
                raise NotADirectoryError(20, "lies on another file system", name)
        return descriptor


def parts_of(path: str) -> list[str]:
    """Return the names in a relative path.

    Raises:
        InvalidRequestError: It is none that a tree could have, or the top itself.
    """
    names = path.split("/")
    if any(name in ("", ".", "..") or "\0" in name or len(os.fsencode(name)) > 255 for name in names):
        raise InvalidRequestError(f"Path {path[:100]!r} refused", why="no file can have it", fix="Leave it out")
    if len(names) > _DEPTH_MAX:
        raise InvalidRequestError(f"Path {path[:100]!r}... refused", why="it lies too deep", fix="Leave it out")
    return names
