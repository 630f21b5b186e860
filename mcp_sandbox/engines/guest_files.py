"""The file verbs of the border, carried out by a guest agent over either carrier."""

import errno
import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import (
    FileInfo,
    FileReader,
    Listing,
    ListRequest,
    MkdirRequest,
    ReadRequest,
    RemoveRequest,
    RenameRequest,
    StatRequest,
    WriteRequest,
    WriteResult,
)
from mcp_sandbox.engines.carrier import GuestCarrier, os_error
from mcp_sandbox.guest.pack import parse_stat, record_info
from mcp_sandbox.guest.records import RecordReader
from mcp_sandbox.guest.wire import GuestProtocolError, MkdirFlag, OpenFlag, Type, fields, open_payload, strings

__all__ = ["list_tree", "make_directory", "read_file", "remove_path", "rename_path", "stat_path", "write_file"]

KEEP_MODE = 0xFFFFFFFF
PACK_META = 1


@asynccontextmanager
async def _about(path: str) -> AsyncGenerator[None]:
    """Name the path in every error, and say plainly what a path may not hold."""
    if not path.startswith("/"):
        raise InvalidRequestError("Path refused", why=f"{path!r} is not absolute", fix="Give a path from the root")
    try:
        yield
    except OSError as error:
        raise os_error(error.errno or errno.EIO, path) from None
    except ValueError:
        why = "it holds a NUL byte or a lone surrogate"
        raise InvalidRequestError("Path refused", why=why, fix="Correct the path") from None


class _Reader(FileReader):
    def __init__(self, info: FileInfo, stream: ByteReceiveStream) -> None:
        self._info = info
        self._stream = stream

    @property
    def info(self) -> FileInfo:
        return self._info

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._stream.receive(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def read_file(carrier: GuestCarrier, request: ReadRequest) -> FileReader:
    """Open a regular file for reading."""
    async with _about(request.path):
        source = await carrier.open_file(request.path, request.offset, request.length)
    return _Reader(parse_stat(request.path, source.reply.payload), source.stream)


async def write_file(carrier: GuestCarrier, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
    """Write a file, whole or not at all; or append to it."""
    try:
        if request.append:
            return await _append(carrier, request, data)
        return await _replace(carrier, request, data)
    finally:
        if not isinstance(data, bytes):
            with anyio.CancelScope(shield=True):
                await data.aclose()


async def _append(carrier: GuestCarrier, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
    flags = OpenFlag.WRITE | OpenFlag.APPEND | (OpenFlag.PARENTS if request.make_parents else OpenFlag(0))
    mode = 0o644 if request.mode is None else request.mode
    async with _about(request.path):
        sink = await carrier.sink(Type.OPEN, open_payload(flags, mode, request.path))
    size, digest = await _pour(data, sink.stream, request.path)
    before = parse_stat(request.path, sink.reply.payload)
    return WriteResult(size_bytes=size, sha256=digest, created=before.size_bytes == 0)


async def _replace(carrier: GuestCarrier, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
    once = OpenFlag.CREATE_ONLY if request.create_only else OpenFlag(0)
    parents = OpenFlag.PARENTS if request.make_parents else OpenFlag(0)
    async with _about(request.path):
        sink = await carrier.sink(Type.CREATE, fields(once | parents, request.path))
    existed, final, temporary = _created(sink.reply.payload)
    try:
        size, digest = await _pour(data, sink.stream, request.path)
        mode = KEEP_MODE if request.mode is None else request.mode
        async with _about(request.path):
            await carrier.request(Type.COMMIT, fields(once, mode, final, temporary))
    except BaseException:
        beside = f"{final.rsplit('/', 1)[0]}/{temporary}"
        with anyio.move_on_after(2, shield=True):
            await _try_remove(carrier, beside)
        raise
    return WriteResult(size_bytes=size, sha256=digest, created=not existed)


async def _try_remove(carrier: GuestCarrier, path: str) -> None:
    try:
        await carrier.request(Type.REMOVE, fields(0, path))
    except OSError:
        return  # the agent removed it when it refused to commit


def _created(payload: bytes) -> tuple[bool, str, str]:
    parts = payload[4:].decode("utf-8", "surrogateescape").split("\0")
    if len(parts) < 3 or not parts[0].startswith("/") or "/" in parts[1]:
        raise GuestProtocolError(f"a created file in {len(payload)} bytes")
    return any(payload[:4]), parts[0], parts[1]


async def _pour(data: bytes | ByteReceiveStream, target: ByteSendStream, path: str) -> tuple[int, str]:
    """Write everything; errors of the target name the path, those of the source pass as they are."""
    digest = hashlib.sha256()
    size = 0
    try:
        async for chunk in _chunks(data):
            digest.update(chunk)
            size += len(chunk)
            async with _about(path):
                await target.send(chunk)
    finally:
        async with _about(path):
            await target.aclose()
    return size, digest.hexdigest()


async def _chunks(data: bytes | ByteReceiveStream) -> AsyncGenerator[bytes]:
    if isinstance(data, bytes):
        yield data
        return
    async for chunk in data:
        yield chunk


async def stat_path(carrier: GuestCarrier, request: StatRequest) -> FileInfo:
    """Look at one path."""
    async with _about(request.path):
        reply = await carrier.request(Type.STAT, fields(int(request.follow), request.path))
    return parse_stat(request.path, reply.payload)


async def list_tree(carrier: GuestCarrier, request: ListRequest) -> Listing:
    """List a directory or a tree of them in one round trip."""
    question = fields(PACK_META, request.depth, request.limit, request.path) + strings(sorted(request.prune))
    async with _about(request.path):
        source = await carrier.source(Type.PACK, question)
    async with source.stream:
        reader = RecordReader(source.stream)
        entries: list[FileInfo] = []
        while (record := await reader.next_record()).kind != "z":
            entries.append(record_info(record, request.path))
    return Listing(entries=tuple(entries), truncated=bool(record.flags))


async def remove_path(carrier: GuestCarrier, request: RemoveRequest) -> None:
    """Remove a path."""
    try:
        async with _about(request.path):
            await carrier.request(Type.REMOVE, fields(int(request.recursive), request.path))
    except FileNotFoundError:
        if not request.missing_ok:
            raise


async def rename_path(carrier: GuestCarrier, request: RenameRequest) -> None:
    """Rename a path."""
    flags = 0 if request.replace else OpenFlag.CREATE_ONLY
    async with _about(request.source):
        await carrier.request(Type.RENAME, fields(flags, request.source, request.target))


async def make_directory(carrier: GuestCarrier, request: MkdirRequest) -> None:
    """Make a directory."""
    flags = (MkdirFlag.PARENTS if request.parents else 0) | (MkdirFlag.EXIST_OK if request.exist_ok else 0)
    async with _about(request.path):
        await carrier.request(Type.MKDIR, fields(int(flags), request.mode, request.path))
