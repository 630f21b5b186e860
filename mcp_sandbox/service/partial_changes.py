"""Putting back a directory of a snapshot by what differs alone: what is the same in the sandbox is not touched."""

import posixpath
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.differences import Change, DiffRequest
from mcp_sandbox.core.errors import InvalidRequestError, UnsupportedError
from mcp_sandbox.core.files import FileInfo, FileKind, RenameRequest, StatRequest, UploadRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.snapshot import NativeContent
from mcp_sandbox.core.streams import BytesStream
from mcp_sandbox.service.archives import END, header
from mcp_sandbox.service.staging import Fetched, Fetcher, Stage, kind_of

__all__ = ["ChangedBelow", "changes_below", "put_changes"]

_MOST_CHANGES: Final = 500
"""With more of them a copy of everything takes no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedBelow:
    """What is to be done in one directory."""

    path: str
    gone: Sequence[str]
    """What the snapshot does not have, the topmost only."""
    fetched: Sequence[Fetched]
    """What is new or other in the snapshot, directories with all that is in them."""
    directories: Sequence[FileInfo]
    """Those whose mode, owner or time may be other afterwards, as the snapshot has them."""


async def changes_below(
    fetcher: Fetcher, provider: Provider, before: NativeContent, after: NativeContent, path: str, live: Sandbox
) -> ChangedBelow | None:
    """Fetch what differs below a directory; `None` where it must be copied whole.

    Args:
        fetcher: Reads from the snapshot.
        provider: Compares.
        before: What the sandbox holds now.
        after: The snapshot.
        path: The directory.
        live: The sandbox.
    """
    if not provider.capabilities.supports(Verb.DIFF) or not await _is_plain(live, path):
        return None
    request = DiffRequest(before=before, after=after, paths=(path,), limit=_MOST_CHANGES, exact=True)
    try:
        found = await provider.diff(request)
    except (UnsupportedError, InvalidRequestError):
        return None
    if found.truncated or found.unseen or not found.exact:
        return None
    return await _fetched(fetcher, path, found.changes, live)


async def _is_plain(live: Sandbox, path: str) -> bool:
    """Whether a path leads to a directory without a link on the way: a comparison knows nothing of links."""
    while path != "/":
        if await kind_of(live, path) is not FileKind.DIRECTORY:
            return False
        path = posixpath.dirname(path)
    return True


async def _fetched(fetcher: Fetcher, path: str, changes: Sequence[Change], live: Sandbox) -> ChangedBelow | None:
    gone: list[str] = []
    new: list[str] = []
    directories = {path} if changes else set[str]()
    for change in changes:
        if any(change.path.startswith(f"{top}/") for top in (*gone[-1:], *new[-1:])):
            continue  # it goes or comes with that
        before, after = (side.kind if side else None for side in (change.before, change.after))
        if before is FileKind.DIRECTORY and after is FileKind.DIRECTORY:
            directories.add(change.path)
            continue
        directories.add(posixpath.dirname(change.path))
        if after is None:
            gone.append(change.path)
            continue
        if after in (FileKind.DEVICE, FileKind.SOCKET) or await _has_other_names(live, change.path):
            return None
        new.append(change.path)
    fetched: list[Fetched] = []
    for each in new:
        fetched.append(await fetcher.fetch(each))
        if fetched[-1].info.kind is FileKind.FILE and fetched[-1].info.links > 1:
            return None  # the other names lead to the same file, and would not any more
    looks = [await fetcher.look(each) for each in sorted(directories) if each == path or each.startswith(f"{path}/")]
    return ChangedBelow(path=path, gone=gone, fetched=fetched, directories=looks)


async def _has_other_names(live: Sandbox, path: str) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        found = await live.stat(StatRequest(path=path, follow=False))
        return found.kind is FileKind.FILE and found.links > 1
    return False


async def put_changes(live: Sandbox, changed: ChangedBelow) -> None:
    """Put what was fetched in place; everything new is complete beside it before anything is touched."""
    if changed.gone or changed.fetched:
        async with Stage(live, changed.path) as stage:
            new = [(await stage.unpack(fetched), fetched) for fetched in changed.fetched]
            for path in changed.gone:
                await stage.clear(path)
            for made, fetched in new:
                if FileKind.DIRECTORY in (await kind_of(live, fetched.path), fetched.info.kind):
                    with suppress(FileNotFoundError):
                        await stage.clear(fetched.path)
                await live.rename(RenameRequest(source=made, target=fetched.path))
            stage.commit()
    if changed.directories:  # at last: what is put into a directory changes its time
        members = [header(look.path.lstrip("/"), look) for look in changed.directories]
        await live.upload(UploadRequest(path="/"), BytesStream(b"".join([*members, END])))
