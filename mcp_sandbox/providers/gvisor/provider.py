"""Provider `gvisor`: runsc on the embedded engine's layers, started by its launcher."""

import contextlib
import secrets
import time
import weakref
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread

from mcp_sandbox.core.admission import require_enforceable
from mcp_sandbox.core.capability import Capabilities, Facet, Isolation, NetworkMode, Support, Verb, VerbSupport
from mcp_sandbox.core.differences import Differences, DiffRequest, LiveState, State
from mcp_sandbox.core.errors import NotFoundError, ProviderUnavailableError, StateError
from mcp_sandbox.core.examination import Examination, Fence
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.image import Image, ImageRequest
from mcp_sandbox.core.leftovers import EXPIRES, Leftover, Remembered
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxInfo, SandboxSpec, SandboxState
from mcp_sandbox.core.snapshot import NativeContent
from mcp_sandbox.engines.comparing import compare_layers
from mcp_sandbox.engines.diagnosis import explained
from mcp_sandbox.engines.image_build import add_image
from mcp_sandbox.engines.layer_store import StoredSnapshot
from mcp_sandbox.engines.layering import destroy
from mcp_sandbox.engines.leftovers import collect_leftovers
from mcp_sandbox.engines.runsc import find_runsc
from mcp_sandbox.engines.runsc_engine import RunscEngine
from mcp_sandbox.engines.runsc_memory import require_readable
from mcp_sandbox.hostfs.atomic import alocked
from mcp_sandbox.providers.gvisor.sandbox import NAME, GvisorSandbox, open_new

__all__ = ["GvisorProvider"]

EXAMINED_S = 20.0
_LONG_AGO = "1970-01-01T00:00:00.000Z"


class GvisorProvider(Provider):
    """Sandboxes of gVisor, with their state below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stack = AsyncExitStack()
        self._open: weakref.WeakSet[GvisorSandbox] = weakref.WeakSet()

    @property
    def name(self) -> str:
        return NAME

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def __aenter__(self) -> Self:
        with explained(self._root):
            engine = RunscEngine(self._root, await find_runsc())
            self._engine = await self._stack.enter_async_context(engine)
        native = VerbSupport(Support.NATIVE)
        self._capabilities = Capabilities(
            isolation=Isolation.USER_KERNEL,
            verbs={
                Verb.SNAPSHOT: VerbSupport(Support.NATIVE, "with memory and processes, which stand still meanwhile"),
                Verb.RESTORE: VerbSupport(Support.NATIVE, "ends what runs, and goes on with what ran at the snapshot"),
                Verb.CREATE_FROM_SNAPSHOT: native,
                Verb.FORK: native,
                Verb.DIFF: native,
                Verb.EXPOSE: native,
                Verb.IMAGES: VerbSupport(Support.NATIVE, "directories, tar and docker archives; built by debootstrap"),
            },
            snapshot_holds=frozenset({Facet.FILES, Facet.MEMORY}),
            network=frozenset({NetworkMode.NONE}),
            limits=self._engine.limiting.enforced,
            max_concurrent=256,
            keeps_fifos=False,
            owners=self._engine.identity.is_range,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sandbox in list(self._open):
            await sandbox.aclose()
        await self._stack.aclose()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        require_enforceable(NAME, self._capabilities, spec)
        named = alocked(self._engine.store.structure_lock(), shared=True) if spec.image else contextlib.nullcontext()
        async with named:  # until the sandbox needs the content, only its name may keep it
            return await self._create(spec)

    async def _create(self, spec: SandboxSpec) -> GvisorSandbox:
        with explained(self._root):
            return await self._new(spec, await self._blank(spec))

    async def _blank(self, spec: SandboxSpec) -> StoredSnapshot:
        if spec.image is None:
            base = await self._engine.bases.current()
        else:
            base = await anyio.to_thread.run_sync(self._engine.images.base_of, spec.image)
        return StoredSnapshot(base=base, layers=(), project=spec.workspace.source)

    async def examine(self) -> Examination:
        """Start a throw-away sandbox, and see that its kernel is gVisor's."""
        began = time.perf_counter()
        spec = SandboxSpec(id=SandboxId(f"sb_examined{secrets.token_hex(8)}"), labels={EXPIRES: _LONG_AGO})
        try:
            async with await self._create(spec) as sandbox:
                kernel = sandbox.kernel
                started = time.perf_counter()
                async with await sandbox.exec(ExecRequest(argv=("true",), cwd="/", timeout_s=EXAMINED_S)) as execution:
                    await execution.wait()
        finally:
            await self.destroy(spec.id)
        ended = time.perf_counter()
        fence = Fence(name="kernel", holds=kernel.is_gvisor, detail="" if kernel.is_gvisor else f"it is {kernel}")
        return Examination(
            fences=[fence], shortcomings=self._engine.limiting.shortcomings,
            milliseconds={
                "start": round((started - began) * 1e3, 1), "exec and destroy": round((ended - started) * 1e3, 1),
            },
        )  # fmt: skip

    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        sandbox = GvisorSandbox(self._engine, self._capabilities, self._engine.store.load(sandbox_id), self._open)
        try:
            await sandbox.connect()
        except BaseException:
            await sandbox.aclose()
            raise
        return sandbox

    async def _new(self, spec: SandboxSpec, start: StoredSnapshot) -> GvisorSandbox:
        return await open_new(self._engine, self._capabilities, spec, start, self._open)

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
        require_enforceable(NAME, self._capabilities, spec)
        with explained(self._root):
            async with alocked(self._engine.store.structure_lock(), shared=True):
                start = self._engine.store.load_snapshot(content.ref)
                require_readable(self._engine, start)
                return await self._new(spec, start)

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
            self._engine.store.remove_snapshot(content.ref)
        self._engine.sweep()

    async def diff(self, request: DiffRequest) -> Differences:
        async with alocked(self._engine.store.structure_lock(), shared=True):
            return await compare_layers(
                self._engine, self._state(request.before), self._state(request.after), paths=request.paths,
                limit=request.limit, text_bytes=request.text_bytes,
            )  # fmt: skip

    def _state(self, state: State) -> StoredSnapshot:
        if isinstance(state, NativeContent):
            return self._engine.store.load_snapshot(state.ref)
        found = self._engine.store.load(state.sandbox)
        return found.as_it_is() if isinstance(state, LiveState) else found.as_started()

    async def images(self) -> Sequence[Image]:
        return await anyio.to_thread.run_sync(self._engine.images.list)

    async def add_image(self, request: ImageRequest) -> Image:
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
