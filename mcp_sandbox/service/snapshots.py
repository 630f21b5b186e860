"""Snapshots: take, list, restore whole or in part (either can be undone), delete."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import anyio
from anyio import to_thread

from mcp_sandbox.core.capability import Facet, Verb
from mcp_sandbox.core.errors import InvalidRequestError, SandboxError, UnsupportedError
from mcp_sandbox.core.provider import Sandbox, unsupported
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.core.snapshot import NativeContent, Snapshot, SnapshotId, SnapshotRequest
from mcp_sandbox.service.denials import require_denied_in
from mcp_sandbox.service.lineage import Branch, lineage
from mcp_sandbox.service.partial import PartialRestore, chosen_paths
from mcp_sandbox.service.sandboxes import LiveSandbox, SandboxService
from mcp_sandbox.service.telling import using
from mcp_sandbox.store.record import now
from mcp_sandbox.store.seen import forget_seen
from mcp_sandbox.store.snapshots import StoredSnapshot

__all__ = ["KEPT_BEFORE_RESTORES", "Branch", "Restored", "SnapshotService", "Taken"]

_LOG = logging.getLogger(__name__)
_NOTE_CHARACTERS = 500
KEPT_BEFORE_RESTORES = 5
"""States before restores that are kept of each sandbox."""
_DISCARD_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A new snapshot."""

    sandbox: LiveSandbox
    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore did."""

    sandbox: LiveSandbox
    snapshot: Snapshot
    before: Snapshot
    """The state that it replaced: restoring this one undoes it."""
    paths: tuple[str, ...]
    """What was put back; empty for everything."""


class SnapshotService:
    """Every method may be called while other servers use the same sandbox.

    Args:
        sandboxes: Opened by whoever made this; says whose snapshots these are, and where their records are.
    """

    def __init__(self, sandboxes: SandboxService) -> None:
        self._sandboxes = sandboxes
        self._store = sandboxes.snapshots
        self._principal = sandboxes.owner.principal
        self._project = None if sandboxes.everywhere else sandboxes.owner.project

    async def create(self, handle: str | None = None, note: str = "") -> Taken:
        """Take a snapshot of a sandbox as it is now.

        Raises:
            UnsupportedError: Its provider takes none.
            NotFoundError: There is no such sandbox.
            InvalidRequestError: The note is too long.
        """
        if len(note) > _NOTE_CHARACTERS:
            raise InvalidRequestError(
                "No snapshot taken",
                why=f"the note has {len(note)} characters, and {_NOTE_CHARACTERS} is the most",
                fix="Shorten it",
            )
        async with using(self._sandboxes, handle) as live:
            _require(live, Verb.SNAPSHOT)
            async with self._sandboxes.exclusively(live.record):
                taken = await self._take(live, note)
                with anyio.CancelScope(shield=True):
                    await self._note_parent(live, taken.id)
                return Taken(sandbox=live, snapshot=taken)

    async def list(self, handle: str | None = None) -> Sequence[Branch]:
        """Return the snapshots of a sandbox, or without a handle of the whole project, as a forest, oldest first.

        Some have no size: `measured` counts it.
        """
        record = await self._sandboxes.find(handle)
        stored = await to_thread.run_sync(lambda: self._store.list(principal=self._principal, project=self._project))
        snapshots = [one.snapshot for one in stored if not handle or (record and one.snapshot.sandbox == record.id)]
        branches = lineage(snapshots, here=record.parent if record else None)
        imported = {one.id for one in stored if one.imported}
        there = await self._sandboxes.parents()
        return [
            replace(
                branch,
                imported=branch.snapshot.id in imported,
                sandboxes=tuple(there.get(branch.snapshot.id, ())),
            )
            for branch in branches
        ]

    async def measured(self, branches: Sequence[Branch]) -> Sequence[Branch]:
        """Return the same with the sizes that taking them did not wait for."""
        return [await self._measured(branch) for branch in branches]

    async def _measured(self, branch: Branch) -> Branch:
        native = branch.snapshot.native
        if native.size_bytes is not None or branch.imported:
            return branch
        try:
            provider = await self._sandboxes.provider(native.provider)
            return replace(branch, size_bytes=await provider.measure(native))
        except SandboxError as error:
            _LOG.warning("the size of snapshot %s is not known: %s", branch.snapshot.id[:12], error)
            return branch

    async def restore(self, snapshot: str, handle: str | None = None, paths: Sequence[str] = ()) -> Restored:
        """Put a snapshot's state in place of a sandbox's, or only what is below `paths`.

        The present state is kept as a snapshot first. A whole restore ends running commands.

        Args:
            snapshot: A unique prefix of its id.
            handle: The sandbox; the project's default without one.
            paths: Files, directories and links to put back; everything without any.

        Raises:
            NotFoundError: There is no such snapshot or sandbox.
            InvalidRequestError: A path is not in the snapshot, or cannot be put back alone.
            UnsupportedError: The provider cannot do it.
            SnapshotCorruptError: The record was damaged.
        """
        targets = chosen_paths(paths)
        stored = await self._sandboxes.snapshot(snapshot)
        async with using(self._sandboxes, handle) as live:
            _require(live, Verb.SNAPSHOT)
            require_denied_in(stored, live.record.denied)
            if not targets:
                _require(live, Verb.RESTORE)
            image = live.record.image or ""
            content = await self._sandboxes.contents.of(stored, live.record.provider, image=image)
            async with self._sandboxes.exclusively(live.record):
                before = await self._replace(live, stored, content, targets)
        sandbox = live.record.id
        self._sandboxes.behind.do(f"old states of {sandbox}", lambda: self._drop_old_states(sandbox))
        return Restored(sandbox=live, snapshot=stored.snapshot, before=before, paths=targets)

    async def _replace(
        self, live: LiveSandbox, stored: StoredSnapshot, content: NativeContent, targets: Sequence[str]
    ) -> Snapshot:
        snapshot = stored.id
        note = f"before restore to {snapshot[:8]}"
        if not targets:
            before = await self._take(live, note, before_restore=True)
            parent = before.id
            try:
                await self._note_older(live, stored)
                await live.sandbox.restore(content)
                parent = snapshot
            finally:
                with anyio.CancelScope(shield=True):
                    await self._note_parent(live, parent)
            return before
        provider = await self._sandboxes.provider(live.record.provider)
        spec = self._sandboxes.new_spec(live.record)
        async with PartialRestore(provider, content, spec, targets) as partial:
            before = await self._take(live, note, before_restore=True)
            try:
                await partial.fetch(live.sandbox, before.native)
            except BaseException:
                with anyio.move_on_after(_DISCARD_S, shield=True):
                    await self._delete(await self._sandboxes.snapshot(before.id))  # nothing was touched
                raise
            await self._note_parent(live, before.id)
            await self._note_older(live, stored)
            await partial.put(live.sandbox)
            return before

    async def delete(self, snapshot: str) -> Snapshot:
        """Delete a snapshot. Those that were taken after it keep all they need.

        Raises:
            NotFoundError: There is no such snapshot.
        """
        stored = await self._sandboxes.snapshot(snapshot)
        await self._delete(stored)
        return stored.snapshot

    async def _delete(self, stored: StoredSnapshot) -> None:
        natives = await to_thread.run_sync(self._store.natives, stored)
        with anyio.CancelScope(shield=True):
            # If we are killed in between, nobody is offered a snapshot without content, and the reaper goes on.
            self._store.retire(stored.id)
            try:
                for native in natives:
                    await self._discard(native)
            except BaseException:
                self._store.reinstate(stored.id)
                raise
            await to_thread.run_sync(self._store.delete, stored.id)

    async def _drop_old_states(self, sandbox: SandboxId) -> None:
        """Delete what was kept before restores, but for the newest few and those that a sandbox goes on from.

        What a killed server leaves undone the next restore of that sandbox does.
        """
        stored = await to_thread.run_sync(lambda: self._store.list(principal=self._principal, project=self._project))
        kept = [each for each in stored if each.snapshot.sandbox == sandbox and each.before_restore]
        if len(kept) <= KEPT_BEFORE_RESTORES:
            return
        in_use = await self._sandboxes.parents()
        for old in kept[:-KEPT_BEFORE_RESTORES]:
            if old.id not in in_use:
                try:
                    await self._delete(old)
                except SandboxError as error:
                    _LOG.warning("snapshot %s was not deleted: %s", old.id[:12], error)

    async def _take(self, live: LiveSandbox, note: str, *, before_restore: bool = False) -> Snapshot:
        """Take a snapshot and enter it; the sandbox is held exclusively."""
        record = await self._sandboxes.find(live.record.id) or live.record
        native = await _everything(live.sandbox)
        snapshot = Snapshot(
            sandbox=record.id, parent=record.parent, created_at=now(), note=note, native=native,
            image=record.image or "", env=tuple(sorted(record.env.items())), denied=record.denied,
        )  # fmt: skip
        stored = StoredSnapshot(
            snapshot=snapshot, owner=record.owner, before_restore=before_restore,
            project_since_ns=record.project_since_ns,
        )  # fmt: skip
        try:
            self._store.save(stored)
        except BaseException:
            with anyio.move_on_after(_DISCARD_S, shield=True):
                await self._discard(native)
            raise
        return snapshot

    async def _note_parent(self, live: LiveSandbox, parent: SnapshotId | None) -> None:
        try:
            await self._sandboxes.note(live.record, parent=parent)
        except (OSError, SandboxError):
            _LOG.exception("the parent of sandbox %s was not noted", live.record.id)

    async def _note_older(self, live: LiveSandbox, stored: StoredSnapshot) -> None:
        """Note that files may come back which rest on what the project held earlier than those that are there."""
        if not live.record.project:
            return
        since_ns = min(live.record.project_since_ns, stored.project_since_ns)
        if since_ns != live.record.project_since_ns:
            await self._sandboxes.note(live.record, project_since_ns=since_ns)
        await to_thread.run_sync(forget_seen, live.directory)

    async def _discard(self, native: NativeContent) -> None:
        provider = await self._sandboxes.provider(native.provider)
        await provider.discard(native)


def _require(live: LiveSandbox, verb: Verb) -> None:
    if not live.sandbox.capabilities.supports(verb):
        raise unsupported(live.record.provider, verb)


async def _everything(sandbox: Sandbox) -> NativeContent:
    """Take a snapshot of all that the provider can hold now; of the files at least."""
    without = ""
    if Facet.MEMORY in sandbox.capabilities.snapshot_holds:
        try:
            return await sandbox.snapshot(SnapshotRequest(holds=frozenset({Facet.FILES, Facet.MEMORY})))
        except UnsupportedError as error:
            without = f"; files only: {error.why}"
    content = await sandbox.snapshot(SnapshotRequest())
    return replace(content, method=f"{content.method}{without}")
