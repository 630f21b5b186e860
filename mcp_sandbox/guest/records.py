"""Reading records off a byte stream that a guest agent writes, and translating whole trees from and to tar."""

import os
import stat
import struct
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.attributes import Attributes, attributes_of_pax, checked_attributes, pax_of_attributes
from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.guest.errnos import host_errno
from mcp_sandbox.guest.pack import RECORD, SEGMENT, Record
from mcp_sandbox.guest.wire import GuestProtocolError

__all__ = ["RecordReader", "records_of_tar", "tar_of_records"]

PATH_BYTES_MAX: Final = 65535
SEGMENT_MAX: Final = 1 << 20
VALUE_MAX: Final = 64 << 10
EXTENDED_MAX: Final = 1 << 20
LATER_BYTES_MAX: Final = 64 << 20
"""What the attributes of an archive's directories may take until its end."""
BLOCK: Final = tarfile.BLOCKSIZE


class RecordReader:
    """Reads records and, after a record of kind `f`, its content segments. Everything read is hostile."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            try:
                self._buffer += await self._stream.receive(1 << 17)
            except anyio.EndOfStream:
                raise GuestProtocolError("a tree ended before its end record") from None
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def next_record(self) -> Record:
        """Return the next record; the last one has kind `z`.

        Raises:
            GuestProtocolError: The stream does not keep to the format.
        """
        record, path, link = Record.head(await self._take(RECORD.size))
        raw = await self._take(path + link)
        return Record(
            kind=record.kind, path=raw[:path].decode("utf-8", "surrogateescape"),
            link=raw[path:].decode("utf-8", "surrogateescape"), mode=record.mode, uid=record.uid, gid=record.gid,
            links=record.links, size=record.size, modified_ns=record.modified_ns, flags=record.flags,
        )  # fmt: skip

    async def value(self, record: Record) -> bytes:
        """Return the value behind a record of kind `x`.

        Raises:
            GuestProtocolError: The stream does not keep to the format.
        """
        if record.size > VALUE_MAX:
            raise GuestProtocolError(f"an attribute of {record.size} bytes")
        return await self._take(record.size)

    async def segments(self, size: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the pieces of a file of `size` bytes with their offsets, in order; holes are left out.

        Raises:
            GuestProtocolError: The stream does not keep to the format.
        """
        at = 0
        while True:
            offset, length = SEGMENT.unpack(await self._take(SEGMENT.size))
            if length == 0:
                return
            if offset < at or length > SEGMENT_MAX or offset + length > size:
                raise GuestProtocolError(f"a segment of {length} bytes at {offset}, after {at}")
            yield offset, await self._take(length)
            at = offset + length


def _member(record: Record) -> tarfile.TarInfo:
    if not _stays(record.path) or (record.kind == "h" and not _stays(record.link)) or "\0" in record.link:
        raise GuestProtocolError(f"a member called {record.path!r}, which would leave the directory")
    member = tarfile.TarInfo(record.path)
    member.mode = record.mode & 0o7777
    member.uid, member.gid = record.uid, record.gid
    seconds, nanoseconds = divmod(abs(record.modified_ns), 1_000_000_000)
    sign = "-" if record.modified_ns < 0 else ""
    member.mtime = record.modified_ns // 1_000_000_000
    if nanoseconds:
        member.pax_headers = {"mtime": f"{sign}{seconds}.{nanoseconds:09d}"}
    kinds = {
        "d": tarfile.DIRTYPE,
        "D": tarfile.DIRTYPE,
        "l": tarfile.SYMTYPE,
        "h": tarfile.LNKTYPE,
        "p": tarfile.FIFOTYPE,
    }
    member.type = kinds.get(record.kind, tarfile.REGTYPE)
    if record.kind in "lh":
        member.linkname = record.link
    if record.kind == "f":
        member.size = record.size
    return member


async def tar_of_records(reader: RecordReader) -> AsyncIterator[bytes]:
    """Yield a pax tar archive of the tree that `reader` reads; holes become zeros.

    Raises:
        OSError: The agent could not read a member; its path is named.
        GuestProtocolError: The stream does not keep to the format.
    """
    attributes: Attributes = {}
    while (record := await reader.next_record()).kind != "z":
        if record.kind == "x":
            attributes = _checked({**attributes, record.path: await reader.value(record)})
            continue
        if record.kind == "e":
            number = host_errno(record.mode)
            raise OSError(number, os.strerror(number), record.path)
        if record.kind in "Dsc" and not (record.path == "." and attributes):
            attributes = {}
            continue
        member = _member(record)
        if attributes:
            member.pax_headers = {**member.pax_headers, **pax_of_attributes(attributes)}
            attributes = {}
        yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if record.kind != "f":
            continue
        at = 0
        async for offset, data in reader.segments(record.size):
            for gap in _zeros(offset - at):
                yield gap
            yield data
            at = offset + len(data)
        for gap in _zeros(record.size - at):
            yield gap
        yield bytes(-record.size % BLOCK)
    yield bytes(2 * BLOCK)


def _checked(attributes: Attributes) -> Attributes:
    try:
        return checked_attributes(attributes)
    except ValueError as error:
        raise GuestProtocolError(str(error)) from None


def _zeros(count: int) -> Iterator[bytes]:
    piece = bytes(min(count, 1 << 20))
    while count > 0:
        yield piece[:count]
        count -= len(piece)


class _TarStream:
    """Exact reads off a byte stream."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            try:
                self._buffer += await self._stream.receive(1 << 17)
            except anyio.EndOfStream:
                break
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def content(self, size: int) -> AsyncIterator[bytes]:
        left = size
        while left:
            piece = await self.take(min(left, 1 << 17))
            if not piece:
                raise _not_tar("it ends inside a member")
            left -= len(piece)
            yield piece
        await self.take(-size % BLOCK)


def _not_tar(why: str) -> InvalidRequestError:
    return InvalidRequestError("Archive refused", why=why, fix="Send an uncompressed tar archive")


def _stays(path: str) -> bool:
    return not (path.startswith("/") or "\0" in path or ".." in path.split("/"))


def _inside(name: str) -> str:
    """Return a member's path relative to the target, refusing what would leave it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not _stays(name):
        raise _not_tar(f"member {name!r} would leave the directory")
    return "/".join(parts)


async def records_of_tar(tar: ByteReceiveStream) -> AsyncGenerator[bytes]:
    """Yield the records of an uncompressed tar archive (ustar, pax or GNU), directories' attributes last.

    Raises:
        InvalidRequestError: It is not a tar archive, or a member would leave the directory or is a device.
    """
    stream = _TarStream(tar)
    later: list[bytes] = []
    later_bytes = 0
    extended: dict[str, str] = {}
    long_names: dict[bytes, str] = {}
    while True:
        block = await stream.take(BLOCK)
        if 0 < len(block) < BLOCK:
            raise _not_tar(f"it ends {len(block)} bytes into a header")
        if not block.strip(b"\0"):
            break
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise _not_tar(f"a header cannot be read ({error})") from None
        if member.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            if not 0 <= member.size <= EXTENDED_MAX:
                raise _not_tar(f"a header of {member.size} bytes")
            raw = b"".join([piece async for piece in stream.content(member.size)])
            if member.type == tarfile.XHDTYPE:
                extended = _pax(raw)
            elif member.type != tarfile.XGLTYPE:
                long_names[member.type] = raw.rstrip(b"\0").decode("utf-8", "surrogateescape")
            continue
        record = _record(member, extended, long_names)
        has_attributes = member.isdir() or (record is not None and record.kind == "f")
        attributes: Attributes = _attributes(member, extended) if has_attributes else {}
        extended, long_names = {}, {}
        for name, value in attributes.items():
            yield Record(kind="x", path=name, size=len(value)).encode() + value
        if record is None and attributes:
            yield Record(kind="D", path=".").encode()
        if record is None:
            async for _ in stream.content(member.size):
                pass
            continue
        yield _encoded(record)
        if record.kind == "f":
            at = 0
            async for piece in stream.content(record.size):
                if piece.count(0) < len(piece):  # zeros alone become a hole
                    yield SEGMENT.pack(at, len(piece)) + piece
                at += len(piece)
            yield SEGMENT.pack(record.size, 0)
        elif record.kind == "d":
            later.append(Record(kind="D", path=record.path, mode=record.mode, uid=record.uid, gid=record.gid,
                                modified_ns=record.modified_ns).encode())  # fmt: skip
            later_bytes += len(later[-1])
            if later_bytes > LATER_BYTES_MAX:
                raise _not_tar("it has too many directories")
    for looks in reversed(later):
        yield looks
    yield Record(kind="z").encode()


def _encoded(record: Record) -> bytes:
    try:
        return record.encode()
    except struct.error:
        raise _not_tar(f"the header of member {record.path!r} holds a number that is out of range") from None


def _pax(raw: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(raw):
        length, _, _ = raw[at:].partition(b" ")
        if not length.isdigit() or len(length) > 8 or not 5 <= int(length) <= len(raw) - at:
            raise _not_tar("an extended header is malformed")
        entry = raw[at + len(length) + 1 : at + int(length) - 1]
        key, _, value = entry.partition(b"=")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        at += int(length)
    return found


def _record(member: tarfile.TarInfo, pax: dict[str, str], long_names: dict[bytes, str]) -> Record | None:
    name = pax.get("path", long_names.get(tarfile.GNUTYPE_LONGNAME, member.name))
    link = pax.get("linkpath", long_names.get(tarfile.GNUTYPE_LONGLINK, member.linkname))
    kinds = {tarfile.DIRTYPE: "d", tarfile.SYMTYPE: "l", tarfile.LNKTYPE: "h", tarfile.FIFOTYPE: "p",
             tarfile.REGTYPE: "f", tarfile.AREGTYPE: "f", tarfile.CONTTYPE: "f"}  # fmt: skip
    kind = kinds.get(member.type)
    if any(key.startswith("GNU.sparse.") for key in pax):
        raise _not_tar(f"member {name!r} is stored with holes")
    if kind is None:
        raise _not_tar(f"member {name!r} is of type {member.type!r}; only files, directories, links and FIFOs come in")
    path = _inside(name)
    if not path:
        return None
    if max(len(path.encode("utf-8", "surrogateescape")), len(link.encode("utf-8", "surrogateescape"))) > PATH_BYTES_MAX:
        raise _not_tar("a path is longer than 65535 bytes")
    try:
        member.size = int(pax.get("size", member.size))
        if member.size < 0:
            raise ValueError
        modified_ns = _nanoseconds(pax["mtime"]) if "mtime" in pax else int(member.mtime) * 1_000_000_000
        uid, gid = int(pax.get("uid", member.uid)), int(pax.get("gid", member.gid))
        return Record(
            kind=kind, path=path, link=_inside(link) if kind == "h" else link if kind == "l" else "",
            mode=stat.S_IMODE(member.mode), uid=uid, gid=gid, size=member.size if kind == "f" else 0,
            modified_ns=modified_ns,
        )  # fmt: skip
    except ValueError:
        raise _not_tar(f"the header of member {name!r} holds a bad number") from None


def _attributes(member: tarfile.TarInfo, pax: dict[str, str]) -> Attributes:
    try:
        return attributes_of_pax(pax)
    except ValueError as error:
        raise _not_tar(f"member {member.name!r}: {error}") from None


def _nanoseconds(text: str) -> int:
    whole, _, fraction = text.partition(".")
    value = int(whole.lstrip("-")) * 1_000_000_000 + int((fraction + "000000000")[:9])
    return -value if whole.startswith("-") else value
