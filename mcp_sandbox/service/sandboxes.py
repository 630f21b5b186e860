"""Sandboxes by handle, and the project's default one, made on first use."""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import anyio
from anyio import to_thread

from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, ProviderError, SandboxError, StateError
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.core.snapshot import SnapshotId
from mcp_sandbox.service.all_or_none import all_or_none
from mcp_sandbox.service.announcing import Asked, about_another, about_configuration
from mcp_sandbox.service.behind import Behind
from mcp_sandbox.service.connections import Connections, LiveSandbox
from mcp_sandbox.service.contents import Contents
from mcp_sandbox.service.demands import Demands
from mcp_sandbox.service.denials import require_denied, require_denied_in
from mcp_sandbox.service.fallback import first_usable
from mcp_sandbox.service.housekeeping import Housekeeping
from mcp_sandbox.service.images import image_name
from mcp_sandbox.service.lineage import parents_of
from mcp_sandbox.service.naming import check_new
from mcp_sandbox.service.opened import OpenProviders
from mcp_sandbox.service.preparing import PATIENCE_S, Preparer
from mcp_sandbox.service.summaries import SandboxSummary, summaries
from mcp_sandbox.service.templates import new_record, records_like, spec_for
from mcp_sandbox.store.identity import ID_PATTERN, new_sandbox_id
from mcp_sandbox.store.record import Owner, SandboxRecord
from mcp_sandbox.store.registry import Registry
from mcp_sandbox.store.snapshots import SnapshotStore, StoredSnapshot

__all__ = ["LiveSandbox", "SandboxService", "SandboxSummary"]

_LOG = logging.getLogger(__name__)
_DESTROY_S = 60.0
_ATTEMPTS = 5


class SandboxService:
    """Use as a context manager: leaving it lets go of every sandbox and closes the providers that were opened.

    Args:
        registry: Where sandboxes are entered.
        snapshots: Where snapshots are found.
        open_provider: Constructs a provider by name; it is opened here, once, when it is first needed.
        owner: Whose sandboxes these are, and for which project.
        provider: Name of the provider of new sandboxes.
        is_asked: Whether somebody named it: then the project's own sandbox must be no weaker.
        template: What a new sandbox is created from; its id and labels are replaced.
        demands: What the project's manifest demands beside that.
        everywhere: Whether handles and lists reach beyond the project, as for the person at the command line, who
            also gets the project's own sandbox only if it is what was asked for.
        patience_s: How long a list waits for engines.
        max_sandboxes: How many sandboxes a project may have.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        snapshots: SnapshotStore,
        open_provider: Callable[[str], Provider],
        owner: Owner,
        provider: str,
        is_asked: bool = False,
        template: SandboxSpec,
        demands: Demands = Demands(),  # noqa: B008 (frozen)
        everywhere: bool = False,
        patience_s: float = 5.0,
        max_sandboxes: int = 256,
    ) -> None:
        self.owner = owner
        self.snapshots = snapshots
        self.everywhere = everywhere
        self.demands = demands
        self._max_sandboxes = max_sandboxes
        self._registry = registry
        self._provider = provider
        self._asked_provider = provider if is_asked else ""
        self._template = template
        self._patience_s = patience_s
        self._providers = OpenProviders(open_provider)
        self.contents = Contents(snapshots, self._providers, self._passing_spec, provider)
        self.behind = Behind()
        self._connections = Connections(
            registry, self._providers, self.behind, spec_of=self.spec_of, content_of=self.contents.here,
            make=lambda provider, spec: self._preparer.make(provider, spec, self.demands),
        )  # fmt: skip
        self.look_soon = self._connections.look_soon
        self.housekeeping = Housekeeping(
            registry=registry, snapshots=snapshots, providers=self._providers, connections=self._connections,
            principal=owner.principal,
        )  # fmt: skip
        self._preparer = Preparer(snapshots, owner, patience_s=None if everywhere else PATIENCE_S)
        self._default: SandboxId | None = None
        self._finding_default = anyio.Lock()  # of many first calls, one looks for the default sandbox

    async def __aenter__(self) -> Self:
        """Return itself."""
        await self._providers.__aenter__()
        await self.behind.__aenter__()
        await self._preparer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of everything; what exists goes on existing."""
        await self._preparer.__aexit__(None, None, None)
        await self.behind.__aexit__(None, None, None)
        await self._connections.close_all()
        await self._providers.__aexit__(None, None, None)

    async def open(self, handle: str | None = None) -> LiveSandbox:
        """Return the sandbox that a handle means, connected; without one the project's default, made on first use.

        Raises:
            NotFoundError: There is no such sandbox, or its engine has lost it.
            ConfigError: The project's manifest cannot be carried out.
            InvalidRequestError: The handle means several.
            ProviderError: The engine cannot be reached or fails.
        """
        self.demands.require()
        sandbox_id = SandboxId(handle) if handle else self._default
        if sandbox_id is not None and (live := self._connections.cached(sandbox_id)) is not None:
            return live
        return await (self._open(handle) if handle else self._open_default())

    async def use_image(self, image: str) -> None:
        """Let new sandboxes start from an image, by its name or by a path, which is imported if it is new.

        Raises:
            InvalidRequestError: Nothing is at the path, or it cannot be an image.
            UnsupportedError: The provider takes no images.
        """
        provider = await self._providers.get(self._provider)
        self._template = replace(self._template, image=await image_name(provider, image))

    async def use_first(self, names: Sequence[str]) -> None:
        """Let new sandboxes run on the first of some providers that works, and have it told if that is another."""
        chosen = await first_usable(self._providers, names)
        self._provider = self.contents.provider = chosen.name
        self._asked_provider = self._asked_provider and chosen.name
        self.demands = replace(self.demands, notices=(*self.demands.notices, *chosen.notices))

    async def create(
        self, *, name: str = "", provider: str = "", image: str = "", from_snapshot: str = "", count: int = 1
    ) -> Sequence[LiveSandbox]:
        """Create sandboxes, all or none, with a snapshot's state if one is given.

        Args:
            name: A name in the project; with several sandboxes, its beginning (`name-1`, `name-2`, ...).
            provider: Name of a provider; empty is the snapshot's, else the configured one.
            image: Name of an image; empty is the configured one.
            from_snapshot: A unique prefix of a snapshot's id, or empty.
            count: How many.

        Raises:
            InvalidRequestError: The name or the count cannot be used.
            StateError: The name is taken.
            UnsupportedError: The provider cannot do it.
        """
        self.demands.require()
        check_new(name, count)
        if image and from_snapshot:
            raise InvalidRequestError(
                "Sandbox not created", why="a snapshot brings all its files along, an image as well", fix="Give one"
            )
        stored = await self.snapshot(from_snapshot) if from_snapshot else None
        self.require_room(count)
        chosen = provider or self.contents.provider_of(stored)
        await self._providers.get(chosen)
        model = replace(self._record(), provider=chosen)
        if stored is not None:
            require_denied_in(stored, self._template.denied)
            await self.contents.of(stored, chosen)
            image = await self.contents.image_of(stored, chosen)
            model = replace(model, parent=stored.id, project_since_ns=stored.project_since_ns)
            # Of variables, what holds here wins over what held there.
            model = replace(model, from_snapshot=True, env={**dict(stored.snapshot.env), **model.env})
        if image or stored or chosen != self._provider:
            model = replace(model, image=image or None)
        return await all_or_none(records_like(model, name, count), self._create, self._undo)

    async def adopt(self, records: "Sequence[SandboxRecord]", sandboxes: "Sequence[Sandbox]") -> "list[LiveSandbox]":
        """Enter sandboxes that an engine has made, all or none: of none anything is left if one cannot be entered.

        Raises:
            StateError: A name is taken.
        """
        try:
            for record in records:
                await self._registry.add(record, most=self._max_sandboxes, is_there=True)
            return [
                await self._connections.adopt(record, sandbox)
                for record, sandbox in zip(records, sandboxes, strict=True)
            ]
        except BaseException:
            with anyio.CancelScope(shield=True):
                for record, sandbox in zip(records, sandboxes, strict=True):
                    await self._connections.close(record.id)
                    await sandbox.aclose()
                    await (await self._providers.get(record.provider)).destroy(record.id)
                    await self._registry.remove(record.id)
            raise

    async def _create(self, record: SandboxRecord) -> LiveSandbox:
        await self._registry.add(record, most=self._max_sandboxes)
        return await self._connected(record, is_new=True)

    async def _undo(self, record: SandboxRecord) -> None:
        await self._destroy(record, forget=True)

    async def list(self) -> Sequence[SandboxSummary]:
        """Return the sandboxes of the project (or of the principal, `everywhere`), oldest first; creates none."""
        project = None if self.everywhere else self.owner.project
        records = await to_thread.run_sync(lambda: self._registry.list(principal=self.owner.principal, project=project))
        return await summaries(records, self._providers, self.owner, patience_s=self._patience_s)

    def require_room(self, count: int) -> None:
        """Return if the project may have so many more sandboxes; others may make some before these are entered.

        Raises:
            CapacityError: It may not; names those that were not used for longest.
        """
        self._registry.require_room(self.owner, count, self._max_sandboxes)

    async def find(self, handle: str | None = None) -> SandboxRecord | None:
        """Return the record that a handle means, without connecting; without one that of the default, if there is one.

        Raises:
            NotFoundError: There is no such sandbox.
            InvalidRequestError: The handle means several.
        """
        if handle:
            return await self._found(handle)
        records = await to_thread.run_sync(
            lambda: self._registry.list(principal=self.owner.principal, project=self.owner.project)
        )
        return next((record for record in records if record.is_default), None)

    async def destroy(self, handle: str, *, forget: bool = False) -> SandboxRecord:
        """End a sandbox with everything in it, and forget it; its snapshots stay.

        Once begun it is carried through, even if the caller is cancelled.

        Args:
            handle: An id, a name or a unique prefix of an id.
            forget: Forget it even if its engine cannot be reached; what is there then stays there.
        """
        record = await self._found(handle)
        with anyio.CancelScope(shield=True):
            await self._destroy(record, forget=forget)
        return record

    @asynccontextmanager
    async def exclusively(self, record: SandboxRecord) -> AsyncGenerator[None]:
        """Keep every process from changing a sandbox as a whole meanwhile.

        Raises:
            NotFoundError: It was destroyed.
            CapacityError: Another process was at it for a minute.
        """
        async with self._connections.exclusively(record.id):
            yield

    async def note(self, record: SandboxRecord, **changes: object) -> None:
        """Remember something of a sandbox: which snapshot it last took or was restored to."""
        await self._registry.update(record.id, **changes)

    def tell_again(self, live: LiveSandbox) -> None:
        """Leave the notices of an opened sandbox to the next call: whoever opened it speaks to nobody."""
        for notice in live.notices:
            self._connections.tell(live.record.id, notice)

    async def provider(self, name: str) -> Provider:
        """Return an opened provider."""
        return await self._providers.get(name)

    async def parents(self) -> "dict[SnapshotId, list[str]]":
        """Return the snapshots that sandboxes of this principal go on from, with the names or ids of those."""
        records = await to_thread.run_sync(lambda: self._registry.list(principal=self.owner.principal))
        return parents_of(records)

    async def snapshot(self, prefix: str) -> StoredSnapshot:
        """Return the snapshot whose id begins with `prefix`; raises as `SnapshotStore.find`."""
        whose: dict[str, Any] = {
            "principal": self.owner.principal, "project": None if self.everywhere else self.owner.project,
        }  # fmt: skip
        stored = self.snapshots.only(prefix, **whose)
        return stored or await to_thread.run_sync(lambda: self.snapshots.find(prefix, **whose))

    @property
    def denied(self) -> Sequence[str]:
        """What of the project its sandboxes must not see."""
        return self._template.denied

    def new_spec(self, record: SandboxRecord) -> SandboxSpec:
        """Return the spec of a nameless sandbox like an existing one, for a passing purpose."""
        return self.spec_of(replace(record, id=new_sandbox_id()))

    async def _open(self, handle: str) -> LiveSandbox:
        record = await self._found(handle)
        return self._connections.cached(record.id) or await self._connected(record)

    async def _connected(self, record: SandboxRecord, *, is_new: bool = False) -> LiveSandbox:
        self._require_denied(record)
        live = await self._connections.connect(record, is_new=is_new)
        if live is None:
            raise NotFoundError(
                f"Sandbox {record.name or record.id!r} is gone", fix="Create another one, also from a snapshot",
                why=f"provider {record.provider!r} does not have it any more, or it was destroyed meanwhile",
            )  # fmt: skip
        return live

    def _require_denied(self, record: SandboxRecord) -> None:
        if record.owner == self.owner:  # of other projects this one's manifest says nothing
            require_denied(record, self._template.denied)

    async def _open_default(self) -> LiveSandbox:
        async with self._finding_default:
            if self._default is not None and (live := self._connections.cached(self._default)) is not None:
                return live
            gone = self._default
            for _ in range(_ATTEMPTS):
                found = await self._registry.default_for(self.owner, self._new_default)
                self._require_denied(found.record)
                live = await self._connections.connect(found.record, is_new=found.is_new)
                if live is not None:
                    return await self._announced(live, gone)
                gone = found.record.id
        raise StateError("No sandbox for this project", why="others destroy it when it is made", fix="Stop them first")

    async def _destroy(self, record: SandboxRecord, *, forget: bool) -> None:
        with anyio.move_on_after(_DESTROY_S) as scope, suppress(NotFoundError):  # not found: somebody was faster
            async with self._connections.exclusively(record.id):
                await self._connections.close(record.id)
                try:
                    provider = await self._providers.get(record.provider)
                    await provider.destroy(record.id)
                except SandboxError as error:
                    if not forget:
                        raise
                    _LOG.warning("sandbox %s is forgotten, its engine was not told: %s", record.id, error)
                await self._registry.remove(record.id)
        if scope.cancelled_caught:
            raise ProviderError(
                f"Sandbox {record.id} not destroyed", fix="Try again",
                why=f"provider {record.provider!r} did not finish within {_DESTROY_S:g} s",
            )  # fmt: skip
        if self._default == record.id:
            self._default = None

    async def _announced(self, live: LiveSandbox, gone: SandboxId | None) -> LiveSandbox:
        notices = [*live.notices, *about_another(live.record, gone)]
        if self._default is None:
            notices += self.demands.notices
            asked = Asked(self._asked_provider, self._template, workspace=self.demands.asked_workspace)
            notices += await about_configuration(live, self._providers, asked, exact=self.everywhere)
        self._default = live.record.id
        return replace(live, notices=tuple(notices)) if notices else live

    async def _found(self, handle: str) -> SandboxRecord:
        """Return the record that a handle means: at once by an id or the name of a connected sandbox, else searched."""
        if (known := self._connections.named(handle, self.owner)) is not None:
            return known
        return self._find(handle) if ID_PATTERN.match(handle) else await to_thread.run_sync(self._find, handle)

    def _find(self, handle: str) -> SandboxRecord:
        principal, project = self.owner.principal, self.owner.project
        try:
            return self._registry.find(handle, principal=principal, project=project)
        except NotFoundError:
            if not self.everywhere:
                raise
        return self._registry.find(handle, principal=principal)

    def _record(self) -> SandboxRecord:
        return new_record(self._template, self.owner, self._provider)

    def _passing_spec(self, provider: str) -> SandboxSpec:
        return self.spec_of(replace(self._record(), provider=provider))

    def _new_default(self) -> SandboxRecord:
        return replace(self._record(), is_default=True)

    def spec_of(self, record: SandboxRecord) -> SandboxSpec:
        """Return what a sandbox is created from."""
        spec = spec_for(self._template, record)
        return spec if record.provider == self._provider else replace(spec, runtime=None)
