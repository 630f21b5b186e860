"""A provider whose sandboxes lie on layers of the embedded engine's store."""

import abc
import contextlib
import weakref
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import anyio.to_thread

from mcp_sandbox.core.admission import require_enforceable
from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.differences import Differences, DiffRequest, LiveState, ProjectState, State
from mcp_sandbox.core.errors import NotFoundError, ProviderUnavailableError, StateError
from mcp_sandbox.core.image import Image, ImageRequest
from mcp_sandbox.core.leftovers import Leftover, Remembered
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxInfo, SandboxSpec, SandboxState
from mcp_sandbox.core.snapshot import NativeContent
from mcp_sandbox.engines.comparing import compare_layers
from mcp_sandbox.engines.diagnosis import explained
from mcp_sandbox.engines.embedded import EmbeddedEngine
from mcp_sandbox.engines.image_build import add_image
from mcp_sandbox.engines.layer_store import EngineState, StoredSnapshot
from mcp_sandbox.engines.layered_sandbox import LayeredSandbox, open_new
from mcp_sandbox.engines.layering import destroy
from mcp_sandbox.engines.leftovers import collect_leftovers
from mcp_sandbox.hostfs.atomic import alocked

__all__ = ["LayeredProvider"]

_Sandbox = TypeVar("_Sandbox", bound=LayeredSandbox[Any])


class LayeredProvider(Provider, Generic[_Sandbox]):
    """A provider opens `_engine` with `_stack`, fills `_capabilities`, and says what its sandboxes are.

    Args:
        root: Where its state is.
    """

    _engine: EmbeddedEngine
    _capabilities: Capabilities

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stack = AsyncExitStack()
        self._open: weakref.WeakSet[_Sandbox] = weakref.WeakSet()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @abc.abstractmethod
    def _sandbox(self, state: EngineState) -> _Sandbox:
        """Return the sandbox of a state, without a connection."""

    async def _require_working(self) -> None:
        """Raise if nothing may run here; asked before anything does."""

    async def _ready(self, spec: SandboxSpec, start: StoredSnapshot) -> _Sandbox:
        """Return a sandbox that starts from a state."""
        return await self._new(spec, start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sandbox in list(self._open):
            await sandbox.aclose()
        await self._stack.aclose()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        require_enforceable(self.name, self._capabilities, spec)
        await self._require_working()
        named = alocked(self._engine.store.structure_lock(), shared=True) if spec.image else contextlib.nullcontext()
        async with named:  # until the sandbox needs the content, only its name may keep it
            with explained(self._root):
                return await self._ready(spec, await self._blank(spec))

    async def _create(self, spec: SandboxSpec) -> _Sandbox:
        """Create a sandbox for a test of this provider itself."""
        with explained(self._root):
            return await self._new(spec, await self._blank(spec))

    async def _blank(self, spec: SandboxSpec) -> StoredSnapshot:
        if spec.image is None:
            base = await self._engine.bases.current()
        else:
            base = await anyio.to_thread.run_sync(self._engine.images.base_of, spec.image)
        return StoredSnapshot(base=base, layers=(), project=spec.workspace.source)

    async def _new(self, spec: SandboxSpec, start: StoredSnapshot) -> _Sandbox:
        return await open_new(self._engine, self._sandbox, spec, start)

    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        await self._require_working()
        sandbox = self._sandbox(self._engine.store.load(sandbox_id))
        try:
            await sandbox.connect()
        except BaseException:
            await sandbox.aclose()
            raise
        return sandbox

    async def list(self) -> Sequence[SandboxInfo]:
        found: list[SandboxInfo] = []
        for sandbox in self._engine.store.sandboxes():
            try:
                state = self._engine.store.load(sandbox)
                carrier = await self._engine.connect(sandbox)
            except (NotFoundError, StateError, ProviderUnavailableError):
                continue
            if carrier is not None:
                await carrier.aclose()
            running = SandboxState.STOPPED if carrier is None else SandboxState.RUNNING
            found.append(SandboxInfo(id=sandbox, state=running, created_at=state.created_at, labels=state.labels))
        return found

    async def destroy(self, sandbox_id: SandboxId) -> None:
        if await destroy(self._engine, sandbox_id):
            self._engine.sweep()

    async def restore(self, content: NativeContent, spec: SandboxSpec) -> Sandbox:
        require_enforceable(self.name, self._capabilities, spec)
        await self._require_working()
        with explained(self._root):
            async with alocked(self._engine.store.structure_lock(), shared=True):
                return await self._ready(spec, self._engine.store.load_snapshot(content.ref))

    async def measure(self, content: NativeContent) -> int | None:
        if content.size_bytes is not None:
            return content.size_bytes
        with contextlib.suppress(NotFoundError):
            return await anyio.to_thread.run_sync(self._engine.store.snapshot_size_bytes, content.ref)
        return None

    async def verify(self, content: NativeContent) -> Sequence[str]:
        return await self._engine.integrity.faults(content.ref)

    async def discard(self, content: NativeContent) -> None:
        async with alocked(self._engine.store.structure_lock(), shared=True):
            with contextlib.suppress(NotFoundError, StateError):
                await self._engine.spares.drop(self._engine.store.load_snapshot(content.ref).layers)
            self._engine.store.remove_snapshot(content.ref)
        self._engine.sweep()

    async def diff(self, request: DiffRequest) -> Differences:
        async with alocked(self._engine.store.structure_lock(), shared=True):
            return await compare_layers(
                self._engine, self._state(request.before), self._state(request.after), paths=request.paths,
                limit=request.limit, text_bytes=request.text_bytes, exact=request.exact,
            )  # fmt: skip

    def _state(self, state: State) -> StoredSnapshot:
        if isinstance(state, NativeContent):
            return self._engine.store.load_snapshot(state.ref)
        found = self._engine.store.load(state.sandbox)
        if isinstance(state, ProjectState):
            return replace(found.as_started(), layers=())
        return found.as_it_is() if isinstance(state, LiveState) else found.as_started()

    async def images(self) -> Sequence[Image]:
        return await anyio.to_thread.run_sync(self._engine.images.list)

    async def add_image(self, request: ImageRequest) -> Image:
        if request.recipe is not None:  # what packages bring will run in a sandbox
            await self._require_working()

        async def create(base: str, spec: SandboxSpec) -> Sandbox:
            return await self._new(spec, StoredSnapshot(base=base, layers=(), project=None))

        try:
            return await add_image(self._engine.images, request, create, self.destroy)
        finally:
            self._engine.sweep()

    async def remove_image(self, name: str) -> None:
        await anyio.to_thread.run_sync(self._engine.images.remove, name)
        self._engine.sweep()

    async def collect(
        self, remembered: Remembered, *, kept_s: float, now: float, dry_run: bool = False
    ) -> Sequence[Leftover]:
        if not dry_run:
            self._engine.integrity.soon()
        return await collect_leftovers(self._engine, remembered, kept_s=kept_s, now=now, dry_run=dry_run)
