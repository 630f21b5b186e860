"""Archives that somebody else made, as files that can be read from any place: unpacked if they are compressed."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Final

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.hostfs.tree_writer import SPARE_BYTES, Bounds, refusal

__all__ = ["members", "opened_tar", "readable", "unpacked"]

CHUNK_BYTES: Final = 1 << 20
HEADER_BYTES_MAX: Final = 1 << 20
_MAGIC: Final = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class _Headers(io.RawIOBase):
    """Lets nobody read more at once than a header or a chunk takes: `tarfile` believes the sizes that headers name."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= HEADER_BYTES_MAX:
            raise refusal(f"a header of {size:,} bytes")
        return self._file.read(size)

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


@contextlib.contextmanager
def readable(what: str) -> Generator[None]:
    """Turn what the readers of archives raise into a refusal."""
    try:
        yield
    except InvalidRequestError:
        raise
    except OSError as error:
        raise refusal(f"{what}: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError, RecursionError) as error:
        raise refusal(f"{what} is damaged, or no tar archive ({error})") from error


@contextlib.contextmanager
def unpacked(file: IO[bytes], scratch: Path, bounds: Bounds) -> Generator[IO[bytes]]:
    """Yield an archive without its compression (gzip, bzip2, xz or zstd); what that takes is gone afterwards.

    Args:
        file: At its beginning; it can be read from any place.
        scratch: A directory of ours on a large file system.
        bounds: How large it may become.
    """
    head = file.read(6)
    file.seek(0)
    kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")
    if not kind:
        yield file
        return
    with tempfile.TemporaryFile(dir=scratch) as plain:
        with _decompressed(file, kind, scratch) as pieces:
            size = 0
            while piece := pieces.read(CHUNK_BYTES):
                size += len(piece)
                if size > bounds.max_bytes:
                    raise refusal(f"it unpacks to more than {bounds.max_bytes:,} bytes")
                if size % (64 << 20) < CHUNK_BYTES and shutil.disk_usage(scratch).free < SPARE_BYTES:
                    raise refusal("it does not fit on the disk", "Free some space in the state directory's file system")
                plain.write(piece)
        plain.seek(0)
        yield plain


@contextlib.contextmanager
def _decompressed(file: IO[bytes], kind: str, scratch: Path) -> Generator[IO[bytes]]:
    if kind != "zstd":
        opened = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}[kind](file, "rb")
        with opened as pieces:
            yield pieces  # pyright: ignore[reportReturnType]
        return
    if shutil.which("zstd") is None:
        raise refusal("it is compressed with zstd, and there is no program `zstd` here", "Install zstd, or unpack it")
    with tempfile.TemporaryFile(dir=scratch) as raw:
        shutil.copyfileobj(file, raw, CHUNK_BYTES)
        raw.seek(0)
        command = ["zstd", "-dcq"]
        with subprocess.Popen(command, stdin=raw, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            try:
                yield process.stdout
            finally:
                process.stdout.close()
            if process.wait() != 0:
                raise refusal("its compression is damaged")


def opened_tar(file: IO[bytes]) -> tarfile.TarFile:
    """Open an uncompressed archive at its beginning."""
    file.seek(0)
    return tarfile.open(fileobj=_Headers(file), mode="r:", encoding="utf-8", errors="surrogateescape")


def members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive without keeping them in memory, and refuse one that breaks off."""
    while (member := archive.next()) is not None:
        yield member
        del archive.members[:]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    at = archive.offset
    assert archive.fileobj is not None
    archive.fileobj.seek(at)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # for `tarfile` that is an end, too
        raise refusal(f"it is damaged at byte {at:,}, or not all of it is there")
