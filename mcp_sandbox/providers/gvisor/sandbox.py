"""One sandbox of gVisor."""

import contextlib
import secrets
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from mcp_sandbox.core.admission import require_enforceable
from mcp_sandbox.core.capability import Capabilities, Facet
from mcp_sandbox.core.errors import (
    ProviderError,
    ProviderUnavailableError,
    SandboxGoneError,
)
from mcp_sandbox.core.exec import Termination
from mcp_sandbox.core.provider import Forked
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.engines.carrier import gone
from mcp_sandbox.engines.diagnosis import explained
from mcp_sandbox.engines.init_process import init_pid, note_end, why_ended
from mcp_sandbox.engines.kernels import Kernel
from mcp_sandbox.engines.layer_store import EngineState, destroyed
from mcp_sandbox.engines.layered_sandbox import LayeredSandbox
from mcp_sandbox.engines.layering import Captured, restore_layers, stop
from mcp_sandbox.engines.local_carrier import LocalCarrier
from mcp_sandbox.engines.runsc_capture import capture_files, stop_softly
from mcp_sandbox.engines.runsc_engine import Inside, RunscEngine
from mcp_sandbox.engines.runsc_memory import capture_all, require_readable
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.guest.wire import Type
from mcp_sandbox.hostfs.atomic import alocked

__all__ = ["NAME", "GvisorSandbox"]

NAME: Final = "gvisor"


class GvisorSandbox(LayeredSandbox[StreamCarrier]):
    """An agent outside of gVisor holds it; the one inside serves the verbs."""

    def __init__(
        self, engine: RunscEngine, capabilities: Capabilities, state: EngineState, opened: weakref.WeakSet[Any]
    ) -> None:
        super().__init__(engine, capabilities, state, opened)
        self._runsc = engine
        self._outer: LocalCarrier | None = None
        self._inside: Inside | None = None

    @property
    def provider_name(self) -> str:
        return NAME

    async def connect(self) -> StreamCarrier:
        """Return the live connection, making one and starting the sandbox if need be."""
        carrier = self._carrier
        if carrier is not None and not carrier.closed:
            return carrier
        async with self._connecting:
            if self._closed:
                raise gone()
            if self._carrier is not None and not self._carrier.closed:
                return self._carrier
            try:
                async with alocked(self._engine.store.lock(self.id)):  # nobody snapshots or ends it meanwhile
                    if self._carrier is None or self._carrier.closed:  # a restore that held the lock made another one
                        self._carrier = await self._reach()
            except FileNotFoundError:
                raise destroyed(self.id) from None
            if self._closed:  # meanwhile
                await self.let_go()
                raise gone()
            return self._carrier

    async def _reach(self) -> StreamCarrier:
        """Connect to the agent inside; where gVisor is gone or silent it starts anew. The caller holds the lock."""
        await self.let_go()
        with explained(self._engine.store.root):
            self._outer = await self._engine.connect(self.id)
            if self._outer is not None:
                try:
                    return self._use(await self._runsc.reach(self._outer))
                except SandboxGoneError:
                    pass
                except ProviderUnavailableError as error:
                    note_end(self._directory, f"gVisor was ended because {error.why}; the files are kept")
                await self.let_go()
                await stop(self._engine, self.id)
            self._outer, restored = await self._start()
            inside = await self._runsc.reach(self._outer)
            if restored:
                await inside.carrier.request(Type.DETACH, b"")
            return self._use(inside)

    async def let_go(self) -> None:
        for connection in (self._carrier, self._outer):
            if connection is not None:
                await connection.aclose()
        self._carrier = self._outer = self._inside = None

    def _use(self, inside: Inside) -> StreamCarrier:
        """Have the limits watched, and let go of the stream whenever somebody captures what runs."""
        self._inside, carrier = inside, inside.carrier
        if not carrier.kernel.is_gvisor:
            raise ProviderError("No sandbox", why="its kernel is not gVisor's", fix="Nothing was run; report this")
        watch = self._watched()
        watch.whole = True
        carrier.limits, carrier.watched = self._state.limits, watch
        init = init_pid(self._directory)

        async def why() -> tuple[Termination, str]:
            return Termination.LOST, why_ended(self._directory, init)

        carrier.on_loss = why
        carrier.on_park = lambda: self._engine.behind(self._stand_aside(inside))
        return carrier

    @property
    def _directory(self) -> Path:
        return self._engine.store.directory(self.id)

    @property
    def kernel(self) -> Kernel:
        """What it runs on, as the agent inside was told."""
        return self._carrier.kernel if self._carrier is not None else Kernel()

    async def _stand_aside(self, inside: Inside) -> None:
        """Be without a stream while somebody else captures what runs, who holds the sandbox's lock until it is done."""
        if inside.stream.parked or self._outer is None:
            return
        name = secrets.randbits(31) | 1
        with contextlib.suppress(ProviderError, SandboxGoneError, TimeoutError, OSError, anyio.BrokenResourceError):
            await inside.stream.park(name)
            async with alocked(self._engine.store.lock(self.id)):
                await self._runsc.end_standstill(self._outer, self.id)  # of somebody who was killed
                await self._runsc.plug(self._outer, inside.stream, name)

    async def _start(self) -> tuple[LocalCarrier, bool]:
        state = self._loaded()
        return await self._runsc.start(state), state.memory is not None

    async def snapshot(self, request: SnapshotRequest) -> NativeContent:
        self._require_held(request)
        await self._shallow()
        whole = Facet.MEMORY in request.holds
        if whole:
            await self.connect()
        async with self._held(), alocked(self._engine.store.structure_lock(), shared=True):
            captured = await (self._capture() if whole else capture_files(self._runsc, self.id))
            ref = self._engine.store.add_snapshot(captured.layers)
        self._start_again()
        return NativeContent(
            provider=NAME, ref=ref, holds=request.holds | {Facet.FILES},
            size_bytes=await anyio.to_thread.run_sync(self._runsc.size_bytes, captured),
            paused_s=captured.paused_s, method=captured.method,
        )  # fmt: skip

    async def _capture(self) -> Captured:
        """Capture files, memory and processes. The caller holds the sandbox's lock."""
        if self._inside is None or self._outer is None or self._inside.carrier.closed:
            raise gone()
        return await capture_all(self._runsc, self.id, self._outer, self._inside)

    async def restore(self, content: NativeContent) -> None:
        store = self._engine.store
        async with self._held(), alocked(store.structure_lock(), shared=True):
            require_readable(self._runsc, store.load_snapshot(content.ref))
            before = store.load(self.id)
            await restore_layers(
                self._engine, self.id, content.ref, lambda engine, sandbox: stop_softly(engine, sandbox, self._inside)
            )
            if store.load(self.id).memory is not None:  # find out now whether it can be brought to life
                try:
                    self._carrier = await self._reach()
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await self.let_go()
                        await stop(self._engine, self.id)
                        store.save(before)
                    raise
        self._start_again()

    async def fork(self, specs: Sequence[SandboxSpec]) -> Forked:
        for spec in specs:
            require_enforceable(NAME, self._capabilities, spec)
        await self._shallow()
        await self.connect()
        async with self._held(), alocked(self._engine.store.structure_lock(), shared=True):
            return await self._copies(specs, await self._capture())
