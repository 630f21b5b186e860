"""What nobody needs any more goes by itself: what killed processes left, and sandboxes that nobody used for long.

Nothing is lost silently: a sandbox that goes because of its age is kept as a snapshot first.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Final

import anyio
from anyio import to_thread

from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.errors import CapacityError, NotFoundError, SandboxError
from mcp_sandbox.core.leftovers import Leftover, Remembered
from mcp_sandbox.core.provider import Provider
from mcp_sandbox.core.sandbox import SandboxState
from mcp_sandbox.core.snapshot import Snapshot, SnapshotRequest
from mcp_sandbox.store.atomic import alocked
from mcp_sandbox.store.record import SandboxRecord, now
from mcp_sandbox.store.registry import Registry
from mcp_sandbox.store.snapshots import SnapshotStore, StoredSnapshot

__all__ = ["DAY_S", "KEPT_S", "MAX_AGE_S", "Reaper"]

_LOG = logging.getLogger(__name__)
DAY_S: Final = 86_400.0
MAX_AGE_S: Final = 30 * DAY_S
KEPT_S: Final = 7 * DAY_S
"""How long whole sandboxes and snapshots of the engine stay although no record names them."""
_EVERY_S: Final = 300.0
_FIRST_S: Final = 10.0
"""Whoever starts a server waits for something else."""
_SETTLED_S: Final = 60.0
"""An entry that is younger may be about to be created."""
_WAIT_S: Final = 0.05
"""For a lock: whoever holds it is at work with what it covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaper:
    """Looks for leftovers once, or again and again.

    Several may run at once; what one of them removes the others do not find.
    """

    registry: Registry
    snapshots: SnapshotStore
    provider: Callable[[str], Awaitable[Provider]]
    """Returns an opened provider."""
    principal: str
    max_age_s: float | None = MAX_AGE_S
    """How long a sandbox that is not a project's default one is kept without being used; `None` is for ever."""
    clock: Callable[[], float] = time.time

    async def run(self, opened: Callable[[], Sequence[str]]) -> None:
        """Look soon and then every few minutes, until cancelled, at the providers that are open by then."""
        await anyio.sleep(_FIRST_S)
        while True:
            for name in opened():
                for leftover in await self.collect(name):
                    _LOG.info("removed %s %s: %s", leftover.kind, leftover.name, leftover.why)
            await anyio.sleep(_EVERY_S)

    async def collect(self, name: str, *, kept_s: float = KEPT_S, dry_run: bool = False) -> Sequence[Leftover]:
        """Remove the leftovers of one provider, and return them; failures are in the log and end nothing.

        Args:
            name: The provider.
            kept_s: How long whole sandboxes and snapshots stay although no record names them.
            dry_run: Only say what would go.
        """
        found: list[Leftover] = []
        for part in (self._unfinished, self._expired, self._retired_content):
            try:
                found += await part(name, dry_run)
            except (SandboxError, OSError) as error:
                _LOG.warning("leftovers of provider %s: %s", name, error)
        try:
            if not dry_run:
                await self.registry.sweep()
                await to_thread.run_sync(self.snapshots.sweep)
            provider = await self.provider(name)
            remembered = Remembered(
                sandbox=lambda sandbox: self.registry.stamp(sandbox) is not None,
                snapshot=self._is_named(),
            )
            found += await provider.collect(remembered, kept_s=kept_s, now=self.clock(), dry_run=dry_run)
        except (SandboxError, OSError) as error:
            _LOG.warning("leftovers of provider %s: %s", name, error)
        return found

    def _is_named(self) -> Callable[[str], bool]:
        """Return whether the record of a snapshot names a reference; one that cannot be read may name any. Blocks.

        The records are read when it is first asked, not before: a provider may have much else to remove until then.
        """

        @cache
        def named() -> frozenset[str] | None:
            try:
                return frozenset(
                    native.ref for stored in self.snapshots.all() for native in self.snapshots.natives(stored)
                )
            except SandboxError as error:
                _LOG.warning("no content of snapshots is removed: %s", error)
                return None

        return lambda ref: (found := named()) is None or ref in found

    # ------------------------------------------------------------------------------------------ never finished

    async def _unfinished(self, name: str, dry_run: bool) -> "list[Leftover]":
        """Forget sandboxes whose creation was begun by a process that is dead: nobody holds their lock."""
        found: list[Leftover] = []
        for record in await self._records(name):
            if not self.registry.is_creating(record.id) or self._age_s(record) < _SETTLED_S:
                continue
            with suppress(CapacityError, NotFoundError, FileNotFoundError):
                async with alocked(self.registry.lock(record.id), wait_s=_WAIT_S):
                    if not self.registry.is_creating(record.id):
                        continue
                    found.append(Leftover(kind="record", name=record.id, why="its creation was never finished"))
                    if not dry_run:
                        await (await self.provider(name)).destroy(record.id)
                        await self.registry.remove(record.id)
        return found

    async def _retired_content(self, name: str, dry_run: bool) -> "list[Leftover]":
        """Go on where deleting a snapshot was interrupted. Whoever is still at it does not mind."""
        found: list[Leftover] = []
        for stored in await to_thread.run_sync(lambda: [*self.snapshots.retired()]):
            natives = await to_thread.run_sync(self.snapshots.natives, stored)
            if natives and natives[0].provider != name:
                continue
            found.append(Leftover(kind="snapshot", name=stored.id, why="its deletion was interrupted"))
            if not dry_run:
                for native in natives:
                    await (await self.provider(native.provider)).discard(native)
                await to_thread.run_sync(self.snapshots.delete, stored.id)
        return found

    # ------------------------------------------------------------------------------------------ unused for long

    async def _expired(self, name: str, dry_run: bool) -> "list[Leftover]":
        if self.max_age_s is None:
            return []
        old = [one for one in await self._records(name) if not one.is_default and self._age_s(one) > self.max_age_s]
        if not old:
            return []
        provider = await self.provider(name)
        running = {info.id for info in await provider.list() if info.state is SandboxState.RUNNING}
        found: list[Leftover] = []
        for record in old:
            if record.id in running:
                continue
            leftover = Leftover(
                kind="sandbox", name=record.name or record.id, why=f"unused since {record.last_used_at}"
            )
            try:
                if dry_run or await self._let_go(provider, record):
                    found.append(leftover)
            except (SandboxError, OSError) as error:
                _LOG.warning("sandbox %s is older than it may be, but stays: %s", record.id, error)
        return found

    async def _let_go(self, provider: Provider, record: SandboxRecord) -> bool:
        """Keep a sandbox as a snapshot and destroy it; return whether that happened, or somebody uses it again."""
        with suppress(CapacityError, NotFoundError, FileNotFoundError):
            async with alocked(self.registry.lock(record.id), wait_s=_WAIT_S):
                if provider.capabilities.supports(Verb.SNAPSHOT):
                    await self._kept(provider, record)
                if self.registry.get(record.id).last_used_at != record.last_used_at:
                    return False
                with anyio.CancelScope(shield=True):
                    await provider.destroy(record.id)
                    await self.registry.remove(record.id)
                return True
        return False

    async def _kept(self, provider: Provider, record: SandboxRecord) -> None:
        try:
            attached = await provider.attach(record.id)
        except NotFoundError:
            _LOG.warning("sandbox %s: the engine does not have it any more, so nothing of it is kept", record.id)
            return
        async with attached as sandbox:
            native = await sandbox.snapshot(SnapshotRequest())
        note = f"sandbox {record.name or record.id[:12]}, which was unused since {record.last_used_at}"
        snapshot = Snapshot(
            sandbox=record.id, parent=record.parent, created_at=now(), note=note, native=native,
            denied=record.denied,
        )  # fmt: skip
        with anyio.CancelScope(shield=True):
            stored = StoredSnapshot(snapshot=snapshot, owner=record.owner, project_since_ns=record.project_since_ns)
            await to_thread.run_sync(self.snapshots.save, stored)

    async def _records(self, name: str) -> Sequence[SandboxRecord]:
        records = await to_thread.run_sync(lambda: self.registry.list(principal=self.principal))
        return [record for record in records if record.provider == name]

    def _age_s(self, record: SandboxRecord) -> float:
        try:
            return self.clock() - datetime.fromisoformat(record.last_used_at).timestamp()
        except (ValueError, OverflowError):
            return 0.0  # nobody knows, so it stays
