"""The file verbs of the border, carried out by a guest agent over either carrier."""

import contextlib
import errno
import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
from anyio.abc import ByteReceiveStream, ByteSendStream

from mcp_sandbox.core.errors import InvalidRequestError, SandboxGoneError
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
from mcp_sandbox.engines.carrier import GuestCarrier, GuestRestarting, gone, os_error
from mcp_sandbox.engines.descriptors import CHUNK_BYTES
from mcp_sandbox.guest.pack import parse_stat, record_info
from mcp_sandbox.guest.records import RecordReader
from mcp_sandbox.guest.wire import GuestProtocolError, MkdirFlag, OpenFlag, Type, fields, open_payload, strings

__all__ = [
    "Repeatable",
    "list_tree",
    "make_directory",
    "path_errors",
    "read_file",
    "remove_path",
    "rename_path",
    "stat_path",
    "write_file",
]

KEEP_MODE = 0xFFFFFFFF
LISTING_MAX_CHARACTERS = 16 << 20
"""In the paths of one listing: whoever made the tree chose how long they are."""
PAUSE_ENTRIES = 500
"""After which others may run."""
PACK_META = 1


@asynccontextmanager
async def path_errors(path: str) -> AsyncGenerator[None]:
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


class Repeatable:
    """Whether a request may be carried out again after the agent restarted: not once its source was read from.

    Use as a context manager. It closes the source, but for a restart before anything was read.
    """

    def __init__(self, source: bytes | ByteReceiveStream) -> None:
        self._source = source
        self.begun = False

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the source, and say plainly what cannot be repeated."""
        restarting = isinstance(error, GuestRestarting)
        if restarting and not self.begun:
            return
        if not isinstance(self._source, bytes):
            with anyio.CancelScope(shield=True):
                await self._source.aclose()
        if restarting:
            raise gone() from None


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
    async with path_errors(request.path):
        source = await carrier.open_file(request.path, request.offset, request.length)
    return _Reader(parse_stat(request.path, source.reply.payload), source.stream)


async def write_file(carrier: GuestCarrier, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
    """Write a file, whole or not at all; or append to it."""
    async with Repeatable(data) as attempt:
        if request.append:
            return await _append(carrier, request, data, attempt)
        return await _replace(carrier, request, data, attempt)


async def _append(
    carrier: GuestCarrier, request: WriteRequest, data: bytes | ByteReceiveStream, attempt: Repeatable
) -> WriteResult:
    flags = OpenFlag.WRITE | OpenFlag.APPEND | (OpenFlag.PARENTS if request.make_parents else OpenFlag(0))
    mode = 0o644 if request.mode is None else request.mode
    async with path_errors(request.path):
        sink = await carrier.sink(Type.OPEN, open_payload(flags, mode, request.path))
    attempt.begun = True
    size, digest = await _pour(data, sink.stream, request.path)
    before = parse_stat(request.path, sink.reply.payload)
    return WriteResult(size_bytes=size, sha256=digest, created=before.size_bytes == 0)


async def _replace(
    carrier: GuestCarrier, request: WriteRequest, data: bytes | ByteReceiveStream, attempt: Repeatable
) -> WriteResult:
    once = OpenFlag.CREATE_ONLY if request.create_only else OpenFlag(0)
    parents = OpenFlag.PARENTS if request.make_parents else OpenFlag(0)
    async with path_errors(request.path):
        sink = await carrier.sink(Type.CREATE, fields(once | parents, request.path))
    attempt.begun = not isinstance(data, bytes)
    try:
        existed, final, temporary = _created(sink.reply.payload)
    except GuestProtocolError:
        await sink.stream.aclose()
        raise
    try:
        size, digest = await _pour(data, sink.stream, request.path)
        mode = KEEP_MODE if request.mode is None else request.mode
        async with path_errors(request.path):
            await carrier.request(Type.COMMIT, fields(once, mode, final, temporary))
    except BaseException:
        beside = f"{final.rsplit('/', 1)[0]}/{temporary}"
        with anyio.move_on_after(2, shield=True):
            await _try_remove(carrier, beside)
        raise
    return WriteResult(size_bytes=size, sha256=digest, created=not existed)


async def _try_remove(carrier: GuestCarrier, path: str) -> None:
    """Remove what is in nobody's way; the agent did so itself where it refused to commit."""
    with contextlib.suppress(OSError, GuestRestarting, SandboxGoneError):
        await carrier.request(Type.REMOVE, fields(0, path))


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
            async with path_errors(path):
                await target.send(chunk)
    finally:
        async with path_errors(path):
            await target.aclose()
    return size, digest.hexdigest()


async def _chunks(data: bytes | ByteReceiveStream) -> AsyncGenerator[bytes]:
    if isinstance(data, bytes):
        for at in range(0, len(data), CHUNK_BYTES):  # nobody else runs while one is looked at
            yield data[at : at + CHUNK_BYTES]
        return
    async for chunk in data:
        yield chunk


async def stat_path(carrier: GuestCarrier, request: StatRequest) -> FileInfo:
    """Look at one path."""
    async with path_errors(request.path):
        reply = await carrier.request(Type.STAT, fields(int(request.follow), request.path))
    return parse_stat(request.path, reply.payload)


async def list_tree(carrier: GuestCarrier, request: ListRequest) -> Listing:
    """List a directory or a tree of them in one round trip."""
    question = fields(PACK_META, request.depth, request.limit, request.path) + strings(sorted(request.prune))
    async with path_errors(request.path):
        source = await carrier.source(Type.PACK, question)
    async with source.stream:
        reader = RecordReader(source.stream)
        entries: list[FileInfo] = []
        left = LISTING_MAX_CHARACTERS
        while (record := await reader.next_record()).kind != "z":
            entry = record_info(record, request.path)
            left -= len(entry.path) + len(entry.link_target or "")
            if left < 0:
                return Listing(entries=tuple(entries), truncated=True)
            entries.append(entry)
            if len(entries) % PAUSE_ENTRIES == 0:
                await anyio.lowlevel.checkpoint()
    return Listing(entries=tuple(entries), truncated=bool(record.flags))


async def remove_path(carrier: GuestCarrier, request: RemoveRequest) -> None:
    """Remove a path."""
    try:
        async with path_errors(request.path):
            await carrier.request(Type.REMOVE, fields(int(request.recursive), request.path))
    except FileNotFoundError:
        if not request.missing_ok:
            raise


async def rename_path(carrier: GuestCarrier, request: RenameRequest) -> None:
    """Rename a path."""
    flags = 0 if request.replace else OpenFlag.CREATE_ONLY
    async with path_errors(request.source):
        await carrier.request(Type.RENAME, fields(flags, request.source, request.target))


async def make_directory(carrier: GuestCarrier, request: MkdirRequest) -> None:
    """Make a directory."""
    flags = (MkdirFlag.PARENTS if request.parents else 0) | (MkdirFlag.EXIST_OK if request.exist_ok else 0)
    async with path_errors(request.path):
        await carrier.request(Type.MKDIR, fields(int(flags), request.mode, request.path))
