"""Putting back some paths of a snapshot: through a passing sandbox and a spool, swapped in beside the old."""

import errno
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio

from mcp_sandbox.core.errors import InvalidRequestError, StateError
from mcp_sandbox.core.files import (
    DownloadRequest,
    FileInfo,
    FileKind,
    ListRequest,
    MkdirRequest,
    ReadRequest,
    RemoveRequest,
    RenameRequest,
    StatRequest,
    UploadRequest,
)
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import WORKSPACE, SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent
from mcp_sandbox.core.streams import BytesStream
from mcp_sandbox.service.archives import ArchiveSpool, HeldArchive, header, trailer
from mcp_sandbox.service.passing import PassingSandbox
from mcp_sandbox.service.paths import display, resolve

__all__ = ["PartialRestore", "chosen_paths"]

_CLEANUP_S = 30.0
_MOST_PATHS = 1000
_KERNEL_TREES = ("/proc", "/sys", "/dev")
_NEW = "new"
_ALL = 10_000_000


def chosen_paths(paths: Sequence[str]) -> tuple[str, ...]:
    """Return absolute paths, without those that lie below another one.

    Raises:
        InvalidRequestError: One cannot be put back alone.
    """
    chosen: list[str] = []
    for path in sorted({_plain(path) for path in paths}):
        if not chosen or not path.startswith(f"{chosen[-1]}/"):
            chosen.append(path)
    if len(chosen) > _MOST_PATHS:
        raise InvalidRequestError(
            "Nothing restored",
            why=f"{len(chosen):,} paths were given, and {_MOST_PATHS:,} is the most",
            fix="Name trees",
        )
    return tuple(chosen)


def _plain(path: str) -> str:
    absolute = resolve(path)
    plain = "/" + "/".join(part for part in absolute.split("/") if part not in ("", "."))
    if plain == "/" or plain.rpartition("/")[2] == ".." or plain in _KERNEL_TREES:
        raise InvalidRequestError(
            f"Path {display(path)!r} not restored",
            why="it cannot be replaced on its own",
            fix="Leave `paths` out to restore everything, or name what is below it",
        )
    return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetched:
    path: str
    info: FileInfo
    tar: HeldArchive


class PartialRestore:
    """Use as a context manager: the passing sandbox ends with it, on every path.

    Args:
        provider: Has the content.
        content: The snapshot's.
        spec: What the passing sandbox is made from.
    """

    def __init__(self, provider: Provider, content: NativeContent, spec: SandboxSpec) -> None:
        self._passing = PassingSandbox(provider, spec, content)
        self._spool = ArchiveSpool()
        self._source: Sandbox | None = None
        self._fetched: list[_Fetched] = []

    async def __aenter__(self) -> Self:
        """Make the passing sandbox."""
        self._source = await self._passing.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Destroy the passing sandbox and free the spool."""
        self._spool.close()
        await self._passing.__aexit__(kind, error, trace)

    async def fetch(self, paths: Sequence[str]) -> None:
        """Spool every path from the snapshot, before anything is touched.

        Raises:
            InvalidRequestError: Names every path that the snapshot does not have or that cannot be carried.
            CapacityError: They do not fit.
        """
        if self._source is None:
            raise StateError("Nothing fetched", why="the passing sandbox was not made", fix="Enter the context first")
        infos = await _looked_at(self._source, paths)
        for path, info in infos.items():
            self._fetched.append(_Fetched(path=path, info=info, tar=await self._spooled(self._source, path, info)))

    async def put(self, live: Sandbox) -> None:
        """Put everything that was fetched in place of what is there."""
        for fetched in self._fetched:
            await _put(live, fetched)

    async def _spooled(self, source: Sandbox, path: str, info: FileInfo) -> HeldArchive:
        if info.kind is FileKind.DIRECTORY:
            return await self._spool.hold(await source.download(DownloadRequest(path=path)))
        content = (
            await source.read(ReadRequest(path=path, length=info.size_bytes))
            if info.kind is FileKind.FILE
            else BytesStream(b"")
        )
        return await self._spool.hold(content, header(_NEW, info), trailer(info))


async def _looked_at(source: Sandbox, paths: Sequence[str]) -> dict[str, FileInfo]:
    infos: dict[str, FileInfo] = {}
    missing: list[str] = []
    for path in paths:
        try:
            info = await source.stat(StatRequest(path=path, follow=False))
        except (FileNotFoundError, NotADirectoryError):
            missing.append(display(path))
            continue
        if info.kind in (FileKind.DEVICE, FileKind.SOCKET):
            raise InvalidRequestError(
                "Nothing restored",
                why=f"{display(path)} is a {info.kind}, which only its maker can make",
                fix="Leave it out",
            )
        infos[path] = info
    if missing:
        raise InvalidRequestError(
            "Nothing restored",
            why=f"the snapshot does not have {', '.join(missing[:5])}"
            + (f" and {len(missing) - 5} more" if len(missing) > 5 else ""),
            fix="Leave them out; to get rid of a file that is there now, remove it",
        )
    return infos


async def _put(live: Sandbox, fetched: _Fetched) -> None:
    path, is_directory = fetched.path, fetched.info.kind is FileKind.DIRECTORY
    if path == WORKSPACE and is_directory:
        await _put_inside(live, fetched)
        return
    parent = path.rpartition("/")[0] or "/"
    await live.mkdir(MkdirRequest(path=parent))
    async with _Stage(live, parent) as stage:
        new = await stage.unpack(fetched)
        old = await _kind(live, path)
        in_the_way = old is not None and FileKind.DIRECTORY in (old, fetched.info.kind)
        if not in_the_way or await stage.clear(path):
            await live.rename(RenameRequest(source=new, target=path))
            stage.commit()
            return
    await _put_inside(live, fetched)


async def _put_inside(live: Sandbox, fetched: _Fetched) -> None:
    """Swap everything in a directory, which stays: something is mounted there, or commands work in it."""
    path = fetched.path
    async with _Stage(live, path) as stage:
        new = await stage.unpack(fetched)
        for entry in (await live.list(ListRequest(path=path, limit=_ALL))).entries:
            if entry.path != stage.path:
                await stage.clear(entry.path)
        for entry in (await live.list(ListRequest(path=new, limit=_ALL))).entries:
            await live.rename(RenameRequest(source=entry.path, target=f"{path}/{entry.path.rpartition('/')[2]}"))
        stage.commit()


async def _kind(live: Sandbox, path: str) -> FileKind | None:
    try:
        return (await live.stat(StatRequest(path=path, follow=False))).kind
    except FileNotFoundError:
        return None


class _Stage:
    """A directory beside the target: what is new is complete there first, what is old is kept there till the end."""

    def __init__(self, live: Sandbox, directory: str) -> None:
        self.path = f"{directory.rstrip('/')}/.mcp-sandbox-restore-{secrets.token_hex(6)}"
        self._live = live
        self._aside: list[RenameRequest] = []
        self._done = False

    async def __aenter__(self) -> Self:
        await self._live.mkdir(MkdirRequest(path=self.path, mode=0o700, exist_ok=False))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.move_on_after(_CLEANUP_S, shield=True):
            if not self._done:
                for request in reversed(self._aside):
                    with suppress(OSError):
                        await self._live.rename(
                            RenameRequest(source=request.target, target=request.source, replace=False)
                        )
            await self._live.remove(RemoveRequest(path=self.path, recursive=True, missing_ok=True))

    async def unpack(self, fetched: _Fetched) -> str:
        """Make the new file or tree, and return its path."""
        new = f"{self.path}/{_NEW}"
        if fetched.info.kind is not FileKind.DIRECTORY:
            await self._live.upload(UploadRequest(path=self.path), fetched.tar.stream())
            return new
        await self._live.mkdir(MkdirRequest(path=new))
        await self._live.upload(UploadRequest(path=new), fetched.tar.stream())
        # The archive of a directory says nothing of the directory itself, and its time is to be set last.
        own = header(_NEW, fetched.info) + trailer(fetched.info)
        await self._live.upload(UploadRequest(path=self.path), BytesStream(own))
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
