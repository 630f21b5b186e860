"""Tar streams held on the host while they change sandboxes: in memory while small, else in a file without a name."""

import errno
import tarfile
import tempfile
from dataclasses import dataclass
from typing import IO

import anyio
from anyio import to_thread
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.errors import CapacityError
from mcp_sandbox.core.files import FileInfo, FileKind

__all__ = ["END", "ArchiveSpool", "HeldArchive", "header", "trailer"]

END = bytes(2 * tarfile.BLOCKSIZE)
"""What an archive ends with."""

_CHUNK_BYTES = 1 << 20
_IN_MEMORY_BYTES = 16 << 20
_MOST_BYTES = 16 << 30
_TYPES = {
    FileKind.FILE: tarfile.REGTYPE,
    FileKind.DIRECTORY: tarfile.DIRTYPE,
    FileKind.SYMLINK: tarfile.SYMTYPE,
    FileKind.FIFO: tarfile.FIFOTYPE,
}


def header(name: str, info: FileInfo) -> bytes:
    """Return the tar header of one member with the mode, owner and time that were observed."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.uid, entry.gid = _TYPES[info.kind], info.mode, info.uid, info.gid
    entry.size = info.size_bytes if info.kind is FileKind.FILE else 0
    entry.linkname = info.link_target or ""
    seconds, fraction = divmod(info.modified_ns, 1_000_000_000)
    entry.mtime = seconds
    if fraction:
        entry.pax_headers = {"mtime": f"{seconds}.{fraction:09}"}
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def trailer(info: FileInfo) -> bytes:
    """Return what follows the content in an archive of one member: padding and the end mark."""
    padding = -info.size_bytes % tarfile.BLOCKSIZE if info.kind is FileKind.FILE else 0
    return b"\0" * (padding + 2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldArchive:
    """One whole tar stream."""

    file: IO[bytes]

    def stream(self) -> ByteReceiveStream:
        """Return the stream from its beginning; only one at a time."""
        self.file.seek(0)
        return _FileStream(self.file)


class ArchiveSpool:
    """Holds tar streams until it is closed."""

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []
        self._size = 0

    async def hold(self, stream: ByteReceiveStream, before: bytes = b"", after: bytes = b"") -> HeldArchive:
        """Receive a stream to its end and close it; what comes before and after it is added.

        Raises:
            CapacityError: It does not fit.
        """
        file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 (closed in `close`)
        self._files.append(file)
        async with stream:
            await self._write(file, before)
            async for chunk in stream:
                await self._write(file, chunk)
        await self._write(file, after)
        return HeldArchive(file=file)

    async def _write(self, file: IO[bytes], data: bytes) -> None:
        self._size += len(data)
        if self._size > _MOST_BYTES:
            raise _full(f"it has more than {_MOST_BYTES >> 30} GiB")
        try:
            await to_thread.run_sync(file.write, data)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise _full("the host's temporary directory is full") from error
            raise

    def close(self) -> None:
        """Free everything. Idempotent."""
        for file in self._files:
            file.close()
        self._files.clear()


class _FileStream(ByteReceiveStream):
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    async def receive(self, max_bytes: int = _CHUNK_BYTES) -> bytes:
        data = await to_thread.run_sync(self._file.read, max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

    async def aclose(self) -> None:
        """Leave the file to the spool."""


def _full(why: str) -> CapacityError:
    return CapacityError("Paths not restored", why=why, fix="Restore fewer paths at once, or everything")
