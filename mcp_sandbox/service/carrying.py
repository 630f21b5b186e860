"""Carries what changed in a sandbox into its project, as one transaction."""

import hashlib
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import FileKind, ReadRequest, StatRequest
from mcp_sandbox.hostfs.host_tree import HostEntry, HostTree
from mcp_sandbox.hostfs.staging import Stage, new_stage_name
from mcp_sandbox.hostfs.transaction import Act, HalfDoneError, Operation, before_of, carry_out, half_done, revert_all
from mcp_sandbox.service.bases import note_put_back
from mcp_sandbox.service.coming_home import Homebound, Plan
from mcp_sandbox.service.quantities import size
from mcp_sandbox.service.sandboxes import LiveSandbox
from mcp_sandbox.store.applied import AppliedRecord, AppliedStore
from mcp_sandbox.store.record import now
from mcp_sandbox.store.seen import Home

__all__ = ["Approve", "Carrier", "digest_of"]

Approve = Callable[[Plan, str], Awaitable[None]]
"""Returns if what is staged may come home, known by a digest of all of it; raises otherwise."""

_MOST_BYTES: Final = 4 << 30
_PIECE_BYTES: Final = 1 << 20


async def digest_of(live: LiveSandbox, path: str) -> str:
    """Return the digest of what a sandbox has at a path of its workspace, as `Home.digest` says it."""
    whole = f"/workspace/{path}"
    try:
        info = await live.sandbox.stat(StatRequest(path=whole, follow=False))
        digest = _begun(info.kind, info.mode, info.link_target or "")
        if info.kind is FileKind.FILE:
            async with await live.sandbox.read(ReadRequest(path=whole)) as reader:
                async for chunk in reader:
                    digest.update(chunk)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return digest.hexdigest()


def _begun(kind: FileKind, mode: int, target: str) -> "hashlib._Hash":  # pyright: ignore[reportPrivateUsage]
    said = mode if kind is not FileKind.SYMLINK else 0
    return hashlib.sha256(f"{kind} {said:o} ".encode() + os.fsencode(target) + b"\0")


class Carrier:
    """Carries once.

    Args:
        store: Of the project; its lock is held.
        live: The sandbox.
        approve: Asked when everything is staged, and nothing has changed.
    """

    def __init__(self, store: AppliedStore, live: LiveSandbox, approve: Approve | None = None) -> None:
        self._approve = approve
        self._store = store
        self._live = live
        self._project = Path(live.record.project)
        self._operations: list[Operation] = []
        self._digests: dict[str, str] = {}
        self._overwritten: tuple[str, ...] = ()
        self._made: set[str] = set()
        self._slots = 0
        self._is_half_done = False

    async def carry(self, plan: Plan) -> "dict[str, Home]":
        """Bring everything that is ready home, or nothing; return what is home then, by path.

        Raises:
            InvalidRequestError: It is too much.
            CapacityError: It does not fit on the disk.
            StateError: Somebody changed the project at the same moment.
            OSError: The file system refused.
        """
        ready, self._overwritten = plan.ready, plan.overwritten
        total = sum(one.change.after.size_bytes for one in ready if one.change.after is not None)
        if total > _MOST_BYTES:
            raise InvalidRequestError(
                "Nothing applied", why=f"it is {size(total)}, and {size(_MOST_BYTES)} is the most at a time",
                fix="Name paths, so that it is less",
            )  # fmt: skip
        record = AppliedRecord(
            number=self._store.next_number(), sandbox=str(self._live.directory), at=now(), stage=new_stage_name(),
            operations=(), after={}, overwritten=self._overwritten,
        )  # fmt: skip
        self._store.save(record)  # before its stage: whoever is killed leaves none that nobody knows
        try:
            with HostTree(self._project) as tree, Stage(tree, record.stage) as stage:
                return await self._carry(tree, stage, record, plan, total)
        except BaseException:
            if not self._is_half_done:
                self._store.remove(record)
            raise

    async def _carry(
        self, tree: HostTree, stage: Stage, record: AppliedRecord, plan: Plan, total: int
    ) -> "dict[str, Home]":
        ready = plan.ready
        brought: dict[str, Home] = {}
        try:
            await to_thread.run_sync(stage.require_room, total)
            for one in sorted(ready, key=lambda one: one.path, reverse=True):
                self._removal(one)
            for one in ready:
                await self._arrival(one, tree, stage)
            for one in reversed(ready):
                self._final_mode(one)
            if self._approve is not None:
                await self._approve(plan, self._fingerprint(ready))
            with anyio.CancelScope(shield=True):
                brought = await to_thread.run_sync(self._commit, tree, stage, record, [one.path for one in ready])
        finally:
            if not self._is_half_done:
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(_discard, stage)
        return brought

    def _fingerprint(self, ready: Sequence[Homebound]) -> str:
        """Return a digest of every path, and of what it will hold."""
        whole = hashlib.sha256()
        for one in ready:
            whole.update(os.fsencode(f"{one.path}\0{self._digests.get(one.path, '')}\0"))
        return whole.hexdigest()

    def _removal(self, one: Homebound) -> None:
        """Take away what is no more, or becomes another kind of thing; from the bottom up."""
        entry, after = one.entry, one.change.after
        if entry is None or (after is not None and entry.is_directory == (after.kind is FileKind.DIRECTORY)):
            return
        act = Act.CLEAR if entry.is_directory else Act.TAKE
        slot = "" if entry.is_directory else self._slot()
        self._operations.append(Operation(act=act, path=one.path, slot=slot, before=entry))

    async def _arrival(self, one: Homebound, tree: HostTree, stage: Stage) -> None:
        entry, after = one.entry, one.change.after
        if after is None:
            return
        uid, gid = _owner(one, tree)
        if after.kind is FileKind.DIRECTORY:
            self._digests[one.path] = _begun(after.kind, after.mode, "").hexdigest()
            if entry is None or not entry.is_directory:
                self._parents(one.path, tree)
                self._make(one.path, after.mode & 0o777 | 0o700, uid, gid)
            return
        if not one.change.content_differs and entry is not None:  # its mode alone, or its owner, which stays
            if after.kind is FileKind.FILE and entry.mode != after.mode:
                self._operations.append(Operation(act=Act.MODE, path=one.path, mode=after.mode, before=entry))
            self._digests[one.path] = await digest_of(self._live, one.path)
            return
        slot = self._slot()
        replaced = entry if entry is not None and not entry.is_directory else None
        await self._stage(one, slot, stage)
        like = one.path if replaced is not None and replaced.type == stat.S_IFREG else ""

        def settle() -> HostEntry:
            return stage.settle(slot, mode=after.mode & 0o777, uid=uid, gid=gid, like=like)

        staged = await to_thread.run_sync(settle)
        if replaced is None:
            self._parents(one.path, tree)
        self._operations.append(
            Operation(
                act=Act.PLACE if replaced is None else Act.SWAP, path=one.path, slot=slot,
                staged_inode=staged.inode, staged_bytes=staged.size_bytes, staged_modified_ns=staged.modified_ns,
                before=replaced,
            )
        )  # fmt: skip

    async def _stage(self, one: Homebound, slot: str, stage: Stage) -> None:
        after = one.change.after
        assert after is not None
        if after.kind is FileKind.SYMLINK:
            target = os.fsdecode(after.text or b"")
            await to_thread.run_sync(stage.link, slot, target)
            self._digests[one.path] = _begun(after.kind, after.mode, target).hexdigest()
            return
        digest = _begun(after.kind, after.mode, "")
        piece = bytearray()
        total = 0
        await to_thread.run_sync(stage.append, slot, b"")
        async with await self._live.sandbox.read(ReadRequest(path=one.change.path)) as reader:
            async for chunk in reader:
                digest.update(chunk)
                piece += chunk
                total += len(chunk)
                if total > _MOST_BYTES:
                    raise InvalidRequestError("Nothing applied", why="a file grows without end", fix="Leave it out")
                if len(piece) >= _PIECE_BYTES:
                    await to_thread.run_sync(stage.append, slot, bytes(piece))
                    piece.clear()
        await to_thread.run_sync(stage.append, slot, bytes(piece))
        self._digests[one.path] = digest.hexdigest()

    def _parents(self, path: str, tree: HostTree) -> None:
        """Make the directories above a path that are neither there nor among what comes home."""
        names = path.split("/")[:-1]
        for depth in range(1, len(names) + 1):
            above = "/".join(names[:depth])
            if above not in self._made and tree.look(above) is None:
                uid, gid = _owner_above(above, tree)
                self._make(above, 0o755, uid, gid)

    def _make(self, path: str, mode: int, uid: int, gid: int) -> None:
        self._made.add(path)
        self._operations.append(Operation(act=Act.MAKE, path=path, mode=mode, uid=uid, gid=gid))

    def _final_mode(self, one: Homebound) -> None:
        """Set the modes of directories last: nothing could be put into one that must not be written."""
        after, entry = one.change.after, one.entry
        if after is None or after.kind is not FileKind.DIRECTORY:
            return
        was_there = entry is not None and entry.is_directory
        mode = after.mode & 0o777 | 0o700  # else its owner could not look into it, nor put back what was there
        if was_there and entry is not None and entry.mode & 0o777 != mode:
            whole = entry.mode & 0o7000 | mode
            self._operations.append(Operation(act=Act.MODE, path=one.path, mode=whole, before=entry))

    def _commit(self, tree: HostTree, stage: Stage, record: AppliedRecord, paths: Sequence[str]) -> "dict[str, Home]":
        """Change the project, and keep what was there. A crash before the record is finished is reverted later."""
        record = replace(record, operations=tuple(self._operations))
        stage.sync()
        self._store.save(record)
        try:
            carry_out(tree, stage.descriptor, record.operations)
            after = self._finish(tree, stage, record, paths)
        except HalfDoneError:
            self._is_half_done = True
            raise
        except BaseException:
            self._store.remove(record)
            before = before_of(record.operations)
            note_put_back(self._live.directory, str(self._project), before, self._overwritten, before=before)
            raise
        return {path: Home(entry=after[path], digest=self._digests.get(path, "")) for path in paths}

    def _finish(
        self, tree: HostTree, stage: Stage, record: AppliedRecord, paths: Sequence[str]
    ) -> "dict[str, HostEntry | None]":
        """Keep what stood there, and note what is there now; put everything back if that cannot be."""
        try:
            for operation in record.operations:
                if operation.act in (Act.SWAP, Act.TAKE):
                    stage.keep(operation.slot, self._store.old(record))
            after = {path: tree.look(path) for path in {*paths, *(each.path for each in record.operations)}}
            self._store.finish(record, after)
        except BaseException as error:
            if left := revert_all(tree, stage.descriptor, record.operations):
                raise half_done(left) from error
            raise
        return after

    def _slot(self) -> str:
        self._slots += 1
        return str(self._slots)


def _discard(stage: Stage) -> None:
    with suppress(OSError):
        stage.remove()


def _owner(one: Homebound, tree: HostTree) -> tuple[int, int]:
    """Return whose a new file is: as before, or as the directory's; -1 where we cannot choose."""
    if os.geteuid() != 0:
        return (-1, -1)
    return (one.entry.uid, one.entry.gid) if one.entry is not None else _owner_above(one.path, tree)


def _owner_above(path: str, tree: HostTree) -> tuple[int, int]:
    if os.geteuid() != 0:
        return (-1, -1)
    names = path.split("/")[:-1]
    for depth in range(len(names), 0, -1):
        entry = tree.look("/".join(names[:depth]))
        if entry is not None and entry.is_directory:
            return (entry.uid, entry.gid)
    top = os.fstat(tree.top)
    return (top.st_uid, top.st_gid)
