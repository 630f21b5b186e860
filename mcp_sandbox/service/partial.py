"""Putting back some paths of a snapshot: through a passing sandbox and a spool, swapped in beside the old.

Of directories only what differs, where the provider can say so.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import FileInfo, FileKind, ListRequest, MkdirRequest, RenameRequest, StatRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import WORKSPACE, SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent
from mcp_sandbox.service.archives import ArchiveSpool
from mcp_sandbox.service.partial_changes import ChangedBelow, changes_below, put_changes
from mcp_sandbox.service.passing import PassingSandbox
from mcp_sandbox.service.paths import display, resolve
from mcp_sandbox.service.staging import Fetched, Fetcher, Stage, kind_of

__all__ = ["PartialRestore", "chosen_paths"]

_MOST_PATHS = 1000
_KERNEL_TREES = ("/proc", "/sys", "/dev")
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


class PartialRestore:
    """Use as a context manager: the passing sandbox ends with it, on every path.

    Args:
        provider: Has the content.
        content: The snapshot's.
        spec: What the passing sandbox is made from.
        paths: What to put back.
    """

    def __init__(self, provider: Provider, content: NativeContent, spec: SandboxSpec, paths: Sequence[str]) -> None:
        self._provider = provider
        self._content = content
        self._paths = paths
        self._passing = PassingSandbox(provider, spec, content)
        self._spool = ArchiveSpool()
        self._whole: list[Fetched] = []
        self._changed: list[ChangedBelow] = []

    async def __aenter__(self) -> Self:
        """Make the passing sandbox, and look at every path.

        Raises:
            InvalidRequestError: Names every path that the snapshot does not have or that cannot be carried.
        """
        source = await self._passing.__aenter__()
        try:
            self._infos = await _looked_at(source, self._paths)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self._fetcher = Fetcher(source, self._spool)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Destroy the passing sandbox and free the spool."""
        self._spool.close()
        await self._passing.__aexit__(kind, error, trace)

    async def fetch(self, live: Sandbox, before: NativeContent) -> None:
        """Hold what must be put back, before anything is touched.

        Args:
            live: Where it is to be put.
            before: What that holds now.

        Raises:
            CapacityError: It does not fit.
        """
        for path, info in self._infos.items():
            changed = None
            if info.kind is FileKind.DIRECTORY:
                changed = await changes_below(self._fetcher, self._provider, before, self._content, path, live)
            if changed is not None:
                self._changed.append(changed)
            else:
                self._whole.append(await self._fetcher.fetch(path))

    async def put(self, live: Sandbox) -> None:
        """Put everything that was fetched in place of what is there."""
        for fetched in self._whole:
            await _put(live, fetched)
        for changed in self._changed:
            await put_changes(live, changed)


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


async def _put(live: Sandbox, fetched: Fetched) -> None:
    path, is_directory = fetched.path, fetched.info.kind is FileKind.DIRECTORY
    if path == WORKSPACE and is_directory:
        await _put_inside(live, fetched)
        return
    parent = path.rpartition("/")[0] or "/"
    await live.mkdir(MkdirRequest(path=parent))
    async with Stage(live, parent) as stage:
        new = await stage.unpack(fetched)
        old = await kind_of(live, path)
        in_the_way = old is not None and FileKind.DIRECTORY in (old, fetched.info.kind)
        if not in_the_way or await stage.clear(path):
            await live.rename(RenameRequest(source=new, target=path))
            stage.commit()
            return
    await _put_inside(live, fetched)


async def _put_inside(live: Sandbox, fetched: Fetched) -> None:
    """Swap everything in a directory, which stays: something is mounted there, or commands work in it."""
    path = fetched.path
    async with Stage(live, path) as stage:
        new = await stage.unpack(fetched)
        for entry in (await live.list(ListRequest(path=path, limit=_ALL))).entries:
            if entry.path != stage.path:
                await stage.clear(entry.path)
        for entry in (await live.list(ListRequest(path=new, limit=_ALL))).entries:
            await live.rename(RenameRequest(source=entry.path, target=f"{path}/{entry.path.rpartition('/')[2]}"))
        stage.commit()
