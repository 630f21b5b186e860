"""What changed between two sandboxes, from what the guest agent of each says of its tree.

For engines whose layers cannot be looked into. The agents send names, attributes and digests; contents travel only for
files that differ, where they were asked for. Everything that comes is hostile.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, NamedTuple

import anyio.lowlevel

from mcp_sandbox.core.differences import Change, Differences, DiffRequest, Side
from mcp_sandbox.core.errors import UnsupportedError
from mcp_sandbox.core.files import FileKind, ReadRequest, StatRequest
from mcp_sandbox.engines.carrier import GuestCarrier
from mcp_sandbox.engines.guest_files import PACK_META, PAUSE_ENTRIES, path_errors, stat_path
from mcp_sandbox.engines.guest_sandbox import GuestSandbox
from mcp_sandbox.guest.pack import Record, record_info
from mcp_sandbox.guest.records import RecordReader
from mcp_sandbox.guest.wire import Type, fields, strings

__all__ = ["compare_sandboxes"]

_PACK_DIGEST: Final = 2
_EVERY_DEPTH: Final = 0xFFFFFFFF
_MANY: Final = 1_000_000
"""Entries of one tree."""
_TEXTS_BYTES: Final = 8 << 20


class _Entry(NamedTuple):
    kind: FileKind
    mode: int
    owner: tuple[int, int]
    size_bytes: int
    content: str
    """The text of a link, the digest of a file; of a file that nobody inside can change, when it was changed."""


@dataclass(frozen=True, slots=True)
class _Tree:
    entries: dict[str, _Entry] = field(default_factory=dict[str, _Entry])
    unseen: set[str] = field(default_factory=set[str])


async def compare_sandboxes(
    before: GuestSandbox[Any], after: GuestSandbox[Any], request: DiffRequest, *, left_out: Sequence[str]
) -> Differences:
    """Compare what two sandboxes hold now.

    Args:
        before: Is started if need be, as is the other one.
        after: The same one is good enough.
        request: Its paths, limit and text_bytes count.
        left_out: Paths that are the engine's or ours, with all below them.

    Raises:
        UnsupportedError: There are too many files.
    """
    paths = _outermost(request.paths)
    old, new = await asyncio.gather(*(_tree_of(sandbox, paths, left_out) for sandbox in (before, after)))
    unseen = old.unseen | new.unseen
    every = sorted(old.entries.keys() | new.entries.keys())
    known = (path for path in every if not _is_hidden(path, (old, new), unseen))
    changes = (_change(path, old.entries.get(path), new.entries.get(path)) for path in known)
    found = list(islice((each for each in changes if each is not None), request.limit + 1))
    shown = found[: request.limit]
    if request.text_bytes:
        shown = await _with_texts(shown, before, after, request.text_bytes)
    return Differences(changes=tuple(shown), truncated=len(found) > request.limit, unseen=tuple(sorted(unseen)))


def _outermost(paths: Sequence[str]) -> "list[str]":
    """Return the paths without those that lie below others."""
    kept: list[str] = []
    for path in sorted({path.rstrip("/") or "/" for path in paths} or {"/"}):
        if not kept or not _is_below(path, kept[-1]):
            kept.append(path)
    return kept


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root.rstrip('/')}/")


# ------------------------------------------------------------------------------------------------ looking


async def _tree_of(sandbox: GuestSandbox[Any], paths: Sequence[str], left_out: Sequence[str]) -> _Tree:
    tree = _Tree()
    for path in paths:
        await sandbox.served(lambda carrier, path=path: _look(carrier, path, left_out, tree))
    return tree


async def _look(carrier: GuestCarrier, path: str, left_out: Sequence[str], tree: _Tree) -> None:
    """Take in a path and everything below it. Its parent is listed first: only that says what a path itself is."""
    above, _, name = path.rpartition("/")
    try:
        if name:
            await _list(carrier, above or "/", 1, name, left_out, tree)
        else:
            info = await stat_path(carrier, StatRequest(path=path))
            tree.entries[path] = _Entry(info.kind, info.mode, (info.uid, info.gid), 0, "")
        if path in tree.entries and tree.entries[path].kind is FileKind.DIRECTORY:
            await _list(carrier, path, _EVERY_DEPTH, "", left_out, tree)
    except (FileNotFoundError, NotADirectoryError):
        pass  # also if it went meanwhile
    except PermissionError:
        tree.unseen.add(path)


async def _list(carrier: GuestCarrier, root: str, depth: int, only: str, left_out: Sequence[str], tree: _Tree) -> None:
    question = fields(PACK_META | _PACK_DIGEST, depth, _MANY, root) + strings([])
    async with path_errors(root):
        source = await carrier.source(Type.PACK, question)
    count = 0
    async with source.stream:
        reader = RecordReader(source.stream)
        while (record := await reader.next_record()).kind != "z":
            count += 1
            if count % PAUSE_ENTRIES == 0:
                await anyio.lowlevel.checkpoint()
            path = f"{root.rstrip('/')}/{record.path}"
            if (only and record.path != only) or any(_is_below(path, each) for each in left_out):
                continue
            if record.kind == "e":
                tree.unseen.add(path)
            elif record.kind != "s":  # nobody can be behind a socket any more
                tree.entries[path] = _entry(record, root)
    if record.flags:
        raise UnsupportedError(
            "Nothing compared", why=f"there are more than {_MANY:,} files below {root!r}", fix="Name paths to compare"
        )


def _entry(record: Record, root: str) -> _Entry:
    info = record_info(record, root)
    content = record.link
    if info.kind is FileKind.FILE and not content:
        content = str(info.modified_ns // 1_000_000_000)  # all that images of container engines know
    size = 0 if info.kind is FileKind.DIRECTORY else info.size_bytes
    return _Entry(info.kind, info.mode, (info.uid, info.gid), size, content)


# ------------------------------------------------------------------------------------------------ comparing


def _is_hidden(path: str, trees: Sequence[_Tree], unseen: "set[str]") -> bool:
    """Whether one side could not say what is at a path; a directory that cannot be entered is known itself."""
    if path in unseen and any(path not in tree.entries for tree in trees):
        return True
    above = path
    while unseen and (above := above.rpartition("/")[0]):
        if above in unseen:
            return True
    return False


def _change(path: str, old: _Entry | None, new: _Entry | None) -> Change | None:
    if old is None or new is None:
        return Change(path=path, before=_side(old), after=_side(new))
    content = (old.kind, old.size_bytes, old.content) != (new.kind, new.size_bytes, new.content)
    mode = old.mode != new.mode and new.kind is not FileKind.SYMLINK
    if not content and not mode and old.owner == new.owner:
        return None
    return Change(
        path=path, before=_side(old), after=_side(new), content_differs=content, owner_differs=old.owner != new.owner
    )


def _side(entry: _Entry | None) -> Side | None:
    return None if entry is None else Side(kind=entry.kind, mode=entry.mode, size_bytes=entry.size_bytes)


async def _with_texts(
    changes: Sequence[Change], before: GuestSandbox[Any], after: GuestSandbox[Any], most: int
) -> "list[Change]":
    """Return the changes with the contents of both sides, where both are small enough."""
    left = _TEXTS_BYTES
    whole: list[Change] = []
    for change in changes:
        sides = (change.before, change.after)
        size = sum(side.size_bytes for side in sides if side)
        fits = all(side is None or side.size_bytes <= most for side in sides) and size <= left
        if not (change.content_differs and fits and any(_has_text(side) for side in sides)):
            whole.append(change)
            continue
        left -= size
        texts = [
            await _text(sandbox, change.path, side, most) for sandbox, side in zip((before, after), sides, strict=True)
        ]
        if None in texts:
            whole.append(change)
            continue
        old, new = (
            replace(side, text=text) if side and _has_text(side) else side
            for side, text in zip(sides, texts, strict=True)
        )
        whole.append(replace(change, before=old, after=new))
    return whole


def _has_text(side: Side | None) -> bool:
    return side is not None and side.kind in (FileKind.FILE, FileKind.SYMLINK)


async def _text(sandbox: GuestSandbox[Any], path: str, side: Side | None, most: int) -> bytes | None:
    """Return the content of one side; `None` if it cannot be read, or is a larger one now."""
    if side is None or not _has_text(side):
        return b""
    with suppress(OSError):
        if side.kind is FileKind.SYMLINK:
            found = await sandbox.stat(StatRequest(path=path, follow=False))
            return os.fsencode(found.link_target or "")
        async with await sandbox.read(ReadRequest(path=path, length=most + 1)) as reader:
            text = b"".join([chunk async for chunk in reader])
        return text if len(text) <= most else None
    return None
