"""Trees as records (`PROTOCOL.md`, "Records"), and their translation from and to tar."""

import struct
from dataclasses import dataclass
from typing import Final

from mcp_sandbox.core.files import FileInfo, FileKind
from mcp_sandbox.guest.wire import GuestProtocolError

__all__ = ["END", "RECORD", "SEGMENT", "STAT", "Record", "parse_stat", "record_info"]

RECORD: Final = struct.Struct("<BBHHHIIIIQqII")
SEGMENT: Final = struct.Struct("<QQ")
STAT: Final = struct.Struct("<IIIIQqI")
END: Final = "z"

_KINDS: Final = {
    0o100000: FileKind.FILE,
    0o040000: FileKind.DIRECTORY,
    0o120000: FileKind.SYMLINK,
    0o010000: FileKind.FIFO,
    0o140000: FileKind.SOCKET,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One entry of a tree. `kind` is one of `d D f l h p s c x e z`."""

    kind: str
    path: str = ""
    link: str = ""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    links: int = 1
    size: int = 0
    modified_ns: int = 0
    flags: int = 0

    def encode(self) -> bytes:
        """Return the record's bytes; content segments of a file, and values, follow by themselves."""
        path = self.path.encode("utf-8", "surrogateescape")
        link = self.link.encode("utf-8", "surrogateescape")
        seconds, nanoseconds = divmod(self.modified_ns, 1_000_000_000)
        head = RECORD.pack(
            ord(self.kind), self.flags, len(path), len(link), 0, self.mode, self.uid, self.gid, self.links, self.size,
            seconds, nanoseconds, 0,
        )  # fmt: skip
        return head + path + link

    @classmethod
    def head(cls, raw: bytes) -> tuple["Record", int, int]:
        """Read the fixed part; return it with the lengths of the path and the link that follow."""
        kind, flags, path, link, _, mode, uid, gid, links, size, seconds, nanoseconds, _ = RECORD.unpack(raw)
        if chr(kind) not in "dDflhpscxez" or nanoseconds >= 1_000_000_000:
            raise GuestProtocolError(f"a record of kind {kind}")
        record = cls(
            kind=chr(kind), mode=mode, uid=uid, gid=gid, links=links, size=size,
            modified_ns=seconds * 1_000_000_000 + nanoseconds, flags=flags,
        )  # fmt: skip
        return record, path, link


def _kind(mode: int) -> FileKind:
    return _KINDS.get(mode & 0o170000, FileKind.DEVICE)


def record_info(record: Record, root: str) -> FileInfo:
    """Return a record of a listing below `root` as file information."""
    return FileInfo(
        path=f"{root.rstrip('/')}/{record.path}", kind=_kind(record.mode), size_bytes=record.size,
        mode=record.mode & 0o7777, uid=record.uid, gid=record.gid, modified_ns=record.modified_ns,
        links=record.links, link_target=record.link if record.kind == "l" else None,
    )  # fmt: skip


def parse_stat(path: str, payload: bytes) -> FileInfo:
    """Read the answer to a stat or open request.

    Raises:
        GuestProtocolError: It is too short.
    """
    try:
        mode, uid, gid, links, size, seconds, nanoseconds = STAT.unpack_from(payload)
    except struct.error as error:
        raise GuestProtocolError(f"a stat of {len(payload)} bytes") from error
    link = payload[STAT.size :].split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
    kind = _kind(mode)
    return FileInfo(
        path=path, kind=kind, size_bytes=size, mode=mode & 0o7777, uid=uid, gid=gid,
        modified_ns=seconds * 1_000_000_000 + nanoseconds, links=links,
        link_target=link if kind is FileKind.SYMLINK else None,
    )  # fmt: skip
