"""Files and trees on their way from a snapshot into a live sandbox: held on the host, complete before they are seen."""

import errno
import posixpath
import secrets
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio

from mcp_sandbox.core.files import (
    DownloadRequest,
    FileInfo,
    FileKind,
    MkdirRequest,
    RemoveRequest,
    RenameRequest,
    StatRequest,
    UploadRequest,
)
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.streams import BytesStream
from mcp_sandbox.service.archives import ArchiveSpool, HeldArchive, header, trailer

__all__ = ["Fetched", "Fetcher", "Stage", "kind_of"]

_CLEANUP_S = 30.0
_NEW = "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A path of a snapshot, with all that is below it."""

    path: str
    info: FileInfo
    tar: HeldArchive


class Fetcher:
    """Reads from a snapshot.

    Args:
        source: A passing sandbox that started as the snapshot.
        spool: Holds what was read.
    """

    def __init__(self, source: Sandbox, spool: ArchiveSpool) -> None:
        self._source = source
        self._spool = spool

    async def look(self, path: str) -> FileInfo:
        """Look at a path; raises as `Sandbox.stat`."""
        return await self._source.stat(StatRequest(path=path, follow=False))

    async def fetch(self, path: str) -> Fetched:
        """Hold a path.

        Raises:
            CapacityError: It does not fit.
        """
        info = await self.look(path)
        if info.kind in (FileKind.DIRECTORY, FileKind.FILE):  # with all that belongs to them
            tar = await self._spool.hold(await self._source.download(DownloadRequest(path=path)))
        else:
            tar = await self._spool.hold(BytesStream(b""), header(_NEW, info), trailer(info))
        return Fetched(path=path, info=info, tar=tar)


async def kind_of(live: Sandbox, path: str) -> FileKind | None:
    """Return what is at a path, not following a link; `None` if nothing is."""
    try:
        return (await live.stat(StatRequest(path=path, follow=False))).kind
    except (FileNotFoundError, NotADirectoryError):
        return None


class Stage:
    """A directory beside the target: what is new is complete there first, what is old is kept there till the end."""

    def __init__(self, live: Sandbox, directory: str) -> None:
        self.path = f"{directory.rstrip('/')}/.mcp-sandbox-restore-{secrets.token_hex(6)}"
        self._live = live
        self._aside: list[RenameRequest] = []
        self._unpacked = 0
        self._done = False

    async def __aenter__(self) -> Self:
        """Make it."""
        await self._live.mkdir(MkdirRequest(path=self.path, mode=0o700, exist_ok=False))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put back what was taken out of the way, unless all is done, and remove it."""
        with anyio.move_on_after(_CLEANUP_S, shield=True):
            if not self._done:
                for request in reversed(self._aside):
                    with suppress(OSError):
                        await self._live.rename(
                            RenameRequest(source=request.target, target=request.source, replace=False)
                        )
            await self._live.remove(RemoveRequest(path=self.path, recursive=True, missing_ok=True))

    async def unpack(self, fetched: Fetched) -> str:
        """Make the new file or tree, and return its path."""
        self._unpacked += 1
        beside = f"{self.path}/{self._unpacked}"
        new = f"{beside}/{_NEW}"
        await self._live.mkdir(MkdirRequest(path=beside))
        if fetched.info.kind is not FileKind.DIRECTORY:
            await self._live.upload(UploadRequest(path=beside), fetched.tar.stream())
            return f"{beside}/{posixpath.basename(fetched.path)}" if fetched.info.kind is FileKind.FILE else new
        await self._live.mkdir(MkdirRequest(path=new))
        await self._live.upload(UploadRequest(path=new), fetched.tar.stream())
        # The archive of a directory says nothing of the directory itself, and its time is to be set last.
        own = header(_NEW, fetched.info) + trailer(fetched.info)
        await self._live.upload(UploadRequest(path=beside), BytesStream(own))
        return new

    async def clear(self, path: str) -> bool:
        """Take what is at a path out of the way; `False` if that cannot be done because it is a mount point."""
        request = RenameRequest(source=path, target=f"{self.path}/old-{len(self._aside)}")
        try:
            await self._live.rename(request)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            # A directory of a lower layer cannot be renamed without `redirect_dir`, which needs privileges
            # (kernel documentation, overlayfs). The snapshot that was taken before still has it.
            if error.errno != errno.EXDEV:
                raise
            await self._live.remove(RemoveRequest(path=path, recursive=True))
        else:
            self._aside.append(request)
        return True

    def commit(self) -> None:
        """Give up what is old."""
        self._done = True
