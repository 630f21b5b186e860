"""Files inside a sandbox. Every path is absolute and resolved inside; non-UTF-8 names use surrogate escapes."""

import abc
from dataclasses import dataclass
from enum import StrEnum

from anyio.abc import ByteReceiveStream

__all__ = [
    "DownloadRequest",
    "FileInfo",
    "FileKind",
    "FileReader",
    "ListRequest",
    "Listing",
    "MkdirRequest",
    "ReadRequest",
    "RemoveRequest",
    "RenameRequest",
    "StatRequest",
    "UploadRequest",
    "WriteRequest",
    "WriteResult",
]


class FileKind(StrEnum):
    """What a path names."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One entry as last observed."""

    path: str
    kind: FileKind
    size_bytes: int
    mode: int
    """Permission bits, `0o7777` at most."""
    uid: int
    gid: int
    modified_ns: int
    """Nanoseconds since the epoch."""
    links: int = 1
    link_target: str | None = None
    """What a symbolic link says, for a symbolic link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatRequest:
    """Look at one path."""

    path: str
    follow: bool = True
    """Whether a final symbolic link is followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """Read a regular file. Anything else is refused with an `OSError` at once; nothing here blocks on a FIFO."""

    path: str
    offset: int = 0
    length: int | None = None
    """Bytes at most; `None` is to the end."""


class FileReader(ByteReceiveStream):
    """The content of a file as a stream. Whoever opened it closes it."""

    @property
    @abc.abstractmethod
    def info(self) -> FileInfo:
        """The file as it was when it was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """Write a file. The new content appears whole or not at all, except with `append`."""

    path: str
    mode: int | None = None
    """Permission bits; `None` keeps those of the file that is there, `0o644` for a new one."""
    append: bool = False
    """Add to the end in place, chunk by chunk."""
    make_parents: bool = True
    create_only: bool = False
    """Raise `FileExistsError` if something is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """What was written in one call."""

    size_bytes: int
    sha256: str
    """Hex digest of the bytes of this call."""
    created: bool
    """Whether no file was there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """List a directory, or a tree of them. Symbolic links are listed, never followed."""

    path: str
    depth: int = 1
    """Levels below `path`; 1 is the directory's own entries."""
    limit: int = 10_000
    """Entries at most."""
    prune: frozenset[str] = frozenset()
    """Names of directories that are listed, but not entered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Entries in no particular order."""

    entries: tuple[FileInfo, ...]
    truncated: bool = False
    """Whether `limit` was reached, or the paths are longer than anybody wants to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRequest:
    """Remove a file, a link itself, or a directory."""

    path: str
    recursive: bool = False
    missing_ok: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameRequest:
    """Rename within one sandbox."""

    source: str
    target: str
    replace: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MkdirRequest:
    """Make a directory."""

    path: str
    mode: int = 0o755
    parents: bool = True
    exist_ok: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRequest:
    """Unpack a tar stream below a directory. Members never leave it, whatever they are called."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadRequest:
    """Pack a file or a directory as a tar stream, with members relative to `path`."""

    path: str
