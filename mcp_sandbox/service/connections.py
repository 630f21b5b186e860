"""The sandboxes that this server is connected to: one connection each, made once, found without touching the disk."""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import anyio

from mcp_sandbox.core.admission import weak_limits
from mcp_sandbox.core.errors import NotFoundError, SandboxError, StateError
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotId
from mcp_sandbox.service.bases import look_again
from mcp_sandbox.service.behind import Behind
from mcp_sandbox.service.opened import OpenProviders
from mcp_sandbox.service.watched import WatchedSandbox
from mcp_sandbox.store.atomic import alocked
from mcp_sandbox.store.record import Owner, SandboxRecord
from mcp_sandbox.store.registry import Registry, Stamp

__all__ = ["Connections", "LiveSandbox"]

_LOG = logging.getLogger(__name__)
_TOUCH_EVERY_S = 60.0
_CREATE_WAIT_S = 300.0
"""As long as another process may take to create a sandbox, pulling its image for example."""
_CLOSE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSandbox:
    """A sandbox that is ready to be used."""

    record: SandboxRecord
    sandbox: Sandbox
    directory: Path
    """The registry's directory of this sandbox, on the host."""
    notices: tuple[str, ...] = ()
    """What must be told once, in the answer to the call that opened it."""


class _Found(NamedTuple):
    """An engine's sandbox and the record it belongs to."""

    sandbox: Sandbox
    record: SandboxRecord
    stamp: Stamp = Stamp(0, 0)


@dataclass(slots=True, eq=False)
class _Connection:
    live: LiveSandbox
    stamp: Stamp
    touch_at: float = 0.0
    notices: list[str] = field(default_factory=list[str])


class Connections:
    """Connects to sandboxes of the registry, creating in the engine what was entered and never created.

    Args:
        registry: Where the sandboxes are entered.
        providers: Opened by whoever made this.
        behind: Where sandboxes that were there before are compared with their projects.
        spec_of: What to create for a record.
        content_of: The content of a snapshot for a provider.
        make: Makes a new sandbox, and says what to tell about it.
    """

    def __init__(
        self,
        registry: Registry,
        providers: OpenProviders,
        behind: Behind,
        *,
        spec_of: Callable[[SandboxRecord], SandboxSpec],
        content_of: Callable[[SnapshotId, str], NativeContent],
        make: Callable[[Provider, SandboxSpec], Awaitable[tuple[Sandbox, str]]],
    ) -> None:
        self._registry = registry
        self._providers = providers
        self._behind = behind
        self._spec_of = spec_of
        self._content_of = content_of
        self._make = make
        self._told: dict[SandboxId, str] = {}
        self._connections: dict[SandboxId, _Connection] = {}
        self._locks: dict[SandboxId, anyio.Lock] = {}  # one connection is made per sandbox
        self._dead: list[Sandbox] = []

    def cached(self, sandbox_id: SandboxId) -> LiveSandbox | None:
        """Return a connection whose record has not changed since. One system call."""
        connection = self._connections.get(sandbox_id)
        if connection is None or self._registry.stamp(sandbox_id) != connection.stamp:
            return None
        return self._handed_out(connection)

    def named(self, name: str, owner: Owner) -> SandboxRecord | None:
        """Return the record of a connected sandbox of this name, if it has not changed since."""
        for sandbox_id, connection in self._connections.items():
            record = connection.live.record
            if record.name == name and record.owner == owner:
                return record if self._registry.stamp(sandbox_id) == connection.stamp else None
        return None

    async def connect(self, record: SandboxRecord, *, is_new: bool = False) -> LiveSandbox | None:
        """Return a connection, made if there is none yet; `None` if the sandbox is gone, which forgets it.

        Args:
            record: As found in the registry.
            is_new: Whether it was entered just now, by this server.

        Raises:
            ProviderUnavailableError, UnsupportedError, ProviderError: It could not be created or reached.
        """
        while self._dead:
            await _closed(self._dead.pop())
        async with self._locks.setdefault(record.id, anyio.Lock()):
            connection = self._connections.get(record.id)
            if connection is None:
                provider = await self._provider_of(record, is_new=is_new)
                found = await self._found(provider, record, is_new=is_new)
                connection = self._entered(provider, found) if found is not None else None
                if found is not None and not is_new:
                    self.look_soon(provider, found.record)
            connection = await self._refreshed(record.id, connection)
            return self._handed_out(connection) if connection is not None else None

    def look_soon(self, provider: Provider, record: SandboxRecord) -> None:
        """Learn behind the answer which files a sandbox has of its own: changes of the others are the project's."""
        directory = self._registry.directory(record.id)
        self._behind.do(("look", record.id), lambda: look_again(provider, record, directory))

    async def adopt(self, record: SandboxRecord, sandbox: Sandbox) -> LiveSandbox:
        """Return the connection of a sandbox that the engine made before it was entered, just now."""
        provider = await self._providers.get(record.provider)
        seen = self._registry.look(record.id)
        return self._handed_out(self._entered(provider, _Found(sandbox, seen.record, seen.stamp)))

    def tell(self, sandbox_id: SandboxId, notice: str) -> None:
        """Have something told by the next answer from a sandbox."""
        if (connection := self._connections.get(sandbox_id)) is not None:
            connection.notices.append(notice)

    async def close(self, sandbox_id: SandboxId) -> None:
        """Let go of one sandbox, within 3 s, and forget the connection."""
        connection = self._connections.pop(sandbox_id, None)
        if connection is not None:
            await _closed(connection.live.sandbox)

    async def close_all(self) -> None:
        """Let go of every sandbox, within 3 s."""
        sandboxes = [*self._dead, *(connection.live.sandbox for connection in self._connections.values())]
        self._connections.clear()
        self._dead.clear()
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for sandbox in sandboxes:
                    tasks.start_soon(_closed, sandbox)

    @asynccontextmanager
    async def exclusively(self, sandbox_id: SandboxId, *, wait_s: float = 60.0) -> AsyncGenerator[None]:
        """Keep every process from creating, snapshotting, restoring or destroying a sandbox meanwhile.

        Raises:
            NotFoundError: The registry does not know it.
            CapacityError: Another process was at it for `wait_s` seconds.
        """
        async with _held(self._registry, sandbox_id, wait_s):
            if self._registry.stamp(sandbox_id) is None:
                self._registry.get(sandbox_id)
            yield

    def _handed_out(self, connection: _Connection) -> LiveSandbox:
        now = time.monotonic()
        if now >= connection.touch_at:
            self._registry.touch(connection.live.record.id)
            connection.touch_at = now + _TOUCH_EVERY_S
        if not connection.notices:
            return connection.live
        notices = tuple(connection.notices)
        connection.notices.clear()
        return replace(connection.live, notices=notices)

    def _entered(self, provider: Provider, found: _Found) -> _Connection:
        record = found.record

        async def revive() -> Sandbox:
            again = await provider.attach(record.id)
            self.tell(
                record.id, f"sandbox {record.id} had ended and was started again: its files are there, its jobs are not"
            )
            return again

        def gone() -> None:
            if (dead := self._connections.pop(record.id, None)) is not None:
                self._dead.append(dead.live.sandbox)

        live = LiveSandbox(
            record=record,
            sandbox=WatchedSandbox(found.sandbox, revive, gone),
            directory=self._registry.directory(record.id),
        )
        connection = self._connections[record.id] = _Connection(live, found.stamp)
        if told := self._told.pop(record.id, ""):
            connection.notices.append(told)
        connection.notices += weak_limits(found.sandbox.capabilities, self._spec_of(record).limits)
        return connection

    async def _refreshed(self, sandbox_id: SandboxId, connection: _Connection | None) -> _Connection | None:
        """Bring the record of a connection up to date; `None` if it is gone."""
        if connection is not None and self._registry.stamp(sandbox_id) == connection.stamp:
            return connection
        try:
            seen = self._registry.look(sandbox_id)
        except NotFoundError:
            seen = None
        if connection is None or seen is None:
            await self.close(sandbox_id)
            self._locks.pop(sandbox_id, None)
            return None
        connection.live = replace(connection.live, record=seen.record)
        connection.stamp = seen.stamp
        return connection

    async def _provider_of(self, record: SandboxRecord, *, is_new: bool) -> Provider:
        try:
            return await self._providers.get(record.provider)
        except SandboxError:
            if is_new:  # else the project would be tied for good to a provider whose name was mistyped
                async with _held(self._registry, record.id, _CREATE_WAIT_S):
                    if self._registry.is_creating(record.id):
                        await self._registry.remove(record.id)
            raise

    async def _found(self, provider: Provider, record: SandboxRecord, *, is_new: bool) -> _Found | None:
        if not is_new and not self._registry.is_creating(record.id):
            with suppress(NotFoundError):
                return _Found(await provider.attach(record.id), record)
        # Somebody may be creating it, or have been killed while doing so; the lock tells them apart.
        try:
            async with _held(self._registry, record.id, _CREATE_WAIT_S):
                return await self._attached_or_created(provider, record, is_new=is_new)
        except NotFoundError:
            if self._registry.stamp(record.id) is None:
                return None
            raise

    async def _attached_or_created(self, provider: Provider, record: SandboxRecord, *, is_new: bool) -> _Found | None:
        if self._registry.stamp(record.id) is None:
            return None
        if not is_new and not self._registry.is_creating(record.id):
            try:
                return _Found(await provider.attach(record.id), record)
            except NotFoundError:
                _LOG.warning("sandbox %s: the engine does not have it any more", record.id)
                await self._registry.remove(record.id)
                return None
        sandbox: Sandbox | None = None
        try:
            sandbox = await self._made(provider, record)
            seen = self._registry.mark_created(record.id)
        except Exception:
            if sandbox is not None:
                await _closed(sandbox)
                with anyio.move_on_after(_CREATE_WAIT_S, shield=True):
                    await provider.destroy(record.id)
            await self._registry.remove(record.id)
            raise
        return _Found(sandbox, seen.record, seen.stamp)

    async def _made(self, provider: Provider, record: SandboxRecord) -> Sandbox:
        spec = self._spec_of(record)
        try:
            if record.parent is None:
                sandbox, told = await self._make(provider, spec)
                self._told[record.id] = told
                return sandbox
            content = self._content_of(record.parent, record.provider)
            return await provider.restore(content, spec)
        except NotFoundError as error:
            raise StateError(
                "Sandbox not created", why=f"the snapshot that it was to start from is gone ({error.why})",
                fix="Choose another one; `snapshot_list` shows them",
            ) from error  # fmt: skip
        except StateError:
            # There is one with this id: made by a process that was killed before it could say so.
            try:
                return await provider.attach(record.id)
            except NotFoundError:
                pass
            raise


@asynccontextmanager
async def _held(registry: Registry, sandbox_id: SandboxId, wait_s: float) -> AsyncGenerator[None]:
    try:
        async with alocked(registry.lock(sandbox_id), wait_s=wait_s, what="Sandbox"):
            yield
    except FileNotFoundError:
        registry.get(sandbox_id)
        raise


async def _closed(sandbox: Sandbox) -> None:
    with anyio.move_on_after(_CLOSE_S, shield=True) as scope:
        try:
            await sandbox.aclose()
        except Exception:  # noqa: BLE001 (closing goes on with the next one, and the log has it)
            _LOG.exception("closing sandbox %s", sandbox.id)
    if scope.cancelled_caught:
        _LOG.warning("sandbox %s did not close within %g s", sandbox.id, _CLOSE_S)
