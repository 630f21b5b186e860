"""One sandbox of gVisor."""

import contextlib
import secrets
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.admission import require_enforceable
from mcp_sandbox.core.capability import Capabilities, Facet
from mcp_sandbox.core.errors import (
    NotFoundError,
    ProviderError,
    SandboxError,
    SandboxGoneError,
    UnsupportedError,
)
from mcp_sandbox.core.exec import ExecRequest, Execution
from mcp_sandbox.core.files import (
    DownloadRequest,
    FileInfo,
    FileReader,
    Listing,
    ListRequest,
    MkdirRequest,
    ReadRequest,
    RemoveRequest,
    RenameRequest,
    StatRequest,
    UploadRequest,
    WriteRequest,
    WriteResult,
)
from mcp_sandbox.core.ports import Connection, DialRequest
from mcp_sandbox.core.provider import Forked, Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.engines import guest_files, guest_ports, guest_trees
from mcp_sandbox.engines.carrier import GuestCarrier, GuestRestarting, gone, protocol_failure
from mcp_sandbox.engines.diagnosis import explained
from mcp_sandbox.engines.kernels import Kernel
from mcp_sandbox.engines.layer_store import EngineState, StoredSnapshot, destroyed
from mcp_sandbox.engines.layering import Captured, destroy, keep_shallow, restore_layers, stop
from mcp_sandbox.engines.local_carrier import LocalCarrier
from mcp_sandbox.engines.plan import ENVIRONMENT, SPOOL
from mcp_sandbox.engines.runsc_capture import capture_files, stop_softly
from mcp_sandbox.engines.runsc_engine import Inside, RunscEngine
from mcp_sandbox.engines.runsc_memory import capture_all, require_readable
from mcp_sandbox.engines.runsc_plan import CONTAINER
from mcp_sandbox.engines.sandbox_limits import SandboxLimits, within_time
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.guest.wire import GuestProtocolError, Type
from mcp_sandbox.hostfs.atomic import alocked

__all__ = ["NAME", "GvisorSandbox", "new_state", "open_new"]

NAME: Final = "gvisor"
ATTEMPTS: Final = 20
SOON_S: Final = 0.01
"""Behind the answer, and behind a restore, which begins with a snapshot."""
_Value = TypeVar("_Value")


class GvisorSandbox(Sandbox):
    """Connects again by itself after a snapshot or restore restarted the sandbox's init."""

    def __init__(
        self,
        engine: RunscEngine,
        capabilities: Capabilities,
        state: EngineState,
        opened: weakref.WeakSet["GvisorSandbox"],
    ) -> None:
        self._opened = opened
        opened.add(self)
        self._engine = engine
        self._capabilities = capabilities
        self._state = state
        self._environment = {**ENVIRONMENT, **engine.images.environment(state.base), **state.env}
        self._limits: SandboxLimits | None = None
        self._carrier: StreamCarrier | None = None
        self._outer: LocalCarrier | None = None
        self._inside: Inside | None = None
        self._connecting = anyio.Lock()
        self._closed = False

    @property
    def id(self) -> SandboxId:
        return SandboxId(self._state.id)

    @property
    def provider_name(self) -> str:
        return NAME

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def connect(self) -> GuestCarrier:
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
                    self._carrier = await self._reach()
            except FileNotFoundError:
                raise destroyed(self.id) from None
            if self._closed:  # meanwhile
                await self._let_go()
                raise gone()
            return self._carrier

    async def _reach(self) -> StreamCarrier:
        """Connect to the agent inside; a sandbox whose gVisor is gone starts anew. The caller holds its lock."""
        await self._let_go()
        with explained(self._engine.store.root):
            self._outer = await self._engine.connect(self.id)
            if self._outer is not None:
                with contextlib.suppress(SandboxGoneError):
                    return self._use(await self._engine.reach(self._outer))
                await self._let_go()
                await stop(self._engine, self.id)
            self._outer, restored = await self._start()
            inside = await self._engine.reach(self._outer)
            if restored:
                await inside.carrier.request(Type.DETACH, b"")
            return self._use(inside)

    async def _let_go(self) -> None:
        for connection in (self._carrier, self._outer):
            if connection is not None:
                await connection.aclose()
        self._carrier = self._outer = self._inside = None

    def _use(self, inside: Inside) -> StreamCarrier:
        """Have the limits watched, and let go of the stream whenever somebody captures what runs."""
        self._inside, carrier = inside, inside.carrier
        if not carrier.kernel.is_gvisor:
            raise ProviderError("No sandbox", why="its kernel is not gVisor's", fix="Nothing was run; report this")
        if self._limits is None:
            self._limits = self._engine.limiting.watch(self._state)
            self._limits.whole = True
        else:
            self._engine.limiting.refresh(self.id, self._limits)
        carrier.limits, carrier.watched = self._state.limits, self._limits
        carrier.on_park = lambda: self._engine.behind(self._stand_aside(inside))
        return carrier

    @property
    def kernel(self) -> Kernel:
        """What it runs on, as the agent inside was told."""
        return self._carrier.kernel if self._carrier is not None else Kernel()

    async def _stand_aside(self, inside: Inside) -> None:
        """Be without a stream while somebody else captures what runs, who holds the sandbox's lock until it is done."""
        if inside.stream.parked or self._outer is None:
            return
        name = secrets.randbits(31) | 1
        with contextlib.suppress(ProviderError, TimeoutError, OSError, anyio.BrokenResourceError):
            await inside.stream.park(name)
            async with alocked(self._engine.store.lock(self.id)):
                with contextlib.suppress(ProviderError):  # it stands still only if who captured it was killed
                    await self._engine.run(self._outer, "resume", CONTAINER)
                await self._engine.plug(self._outer, inside.stream, name)

    async def _start(self) -> tuple[LocalCarrier, bool]:
        try:
            self._state = self._engine.store.load(self.id)
        except NotFoundError:
            raise destroyed(self.id) from None
        return await self._engine.start(self._state), self._state.memory is not None

    def _start_again(self) -> None:
        """Start a sandbox that was ended for a snapshot or a restore, so that the next request waits less for it."""
        if self._carrier is not None:
            self._engine.behind(self._connect_soon())

    async def _connect_soon(self) -> None:
        with contextlib.suppress(SandboxError, OSError):
            await self.connect()

    async def _with(self, use: Callable[[GuestCarrier], Awaitable[_Value]]) -> _Value:
        """Carry out a request, again if the agent restarted before it looked at it."""
        for _ in range(ATTEMPTS):
            try:
                return await use(await self.connect())
            except GuestRestarting:
                await anyio.lowlevel.checkpoint()
            except GuestProtocolError as error:
                raise protocol_failure(error) from error
        raise gone()

    async def exec(self, request: ExecRequest) -> Execution:
        environment = [f"{name}={value}" for name, value in {**self._environment, **request.env}.items()]
        request = within_time(request, self._state.limits)
        return await self._with(lambda carrier: carrier.exec(request, environment))

    async def read(self, request: ReadRequest) -> FileReader:
        return await self._with(lambda carrier: guest_files.read_file(carrier, request))

    async def write(self, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
        async def write(carrier: GuestCarrier) -> WriteResult:
            """Write while nobody freezes the layer: the descriptor would reach into it afterwards."""
            if request.path.startswith(f"{SPOOL}/"):  # in no layer, and written all the time
                return await guest_files.write_file(carrier, request, data)
            async with self._held(shared=True):
                return await guest_files.write_file(carrier, request, data)

        return await self._with(write)

    async def stat(self, request: StatRequest) -> FileInfo:
        return await self._with(lambda carrier: guest_files.stat_path(carrier, request))

    async def list(self, request: ListRequest) -> Listing:
        return await self._with(lambda carrier: guest_files.list_tree(carrier, request))

    async def remove(self, request: RemoveRequest) -> None:
        await self._with(lambda carrier: guest_files.remove_path(carrier, request))

    async def rename(self, request: RenameRequest) -> None:
        await self._with(lambda carrier: guest_files.rename_path(carrier, request))

    async def mkdir(self, request: MkdirRequest) -> None:
        await self._with(lambda carrier: guest_files.make_directory(carrier, request))

    async def upload(self, request: UploadRequest, tar: ByteReceiveStream) -> None:
        await self._with(lambda carrier: guest_trees.unpack_tar(carrier, request, tar))

    async def download(self, request: DownloadRequest) -> ByteReceiveStream:
        return await self._with(lambda carrier: guest_trees.pack_tar(carrier, request))

    async def dial(self, request: DialRequest) -> Connection:
        return await self._with(lambda carrier: guest_ports.dial(carrier, request))

    async def snapshot(self, request: SnapshotRequest) -> NativeContent:
        if extra := request.holds - self._capabilities.snapshot_holds:
            raise UnsupportedError(
                "Snapshot refused", why=f"provider 'gvisor' cannot hold {', '.join(sorted(extra))}",
                fix="Ask for files only",
            )  # fmt: skip
        await self._shallow()
        whole = Facet.MEMORY in request.holds
        if whole:
            await self.connect()
        async with self._held(), alocked(self._engine.store.structure_lock(), shared=True):
            captured = await (self._capture() if whole else capture_files(self._engine, self.id))
            ref = self._engine.store.add_snapshot(captured.layers)
        self._start_again()
        return NativeContent(
            provider=NAME, ref=ref, holds=request.holds | {Facet.FILES},
            size_bytes=await anyio.to_thread.run_sync(self._engine.size_bytes, captured),
            paused_s=captured.paused_s, method=captured.method,
        )  # fmt: skip

    async def _capture(self) -> Captured:
        """Capture files, memory and processes. The caller holds the sandbox's lock."""
        if self._inside is None or self._outer is None or self._inside.carrier.closed:
            raise gone()
        return await capture_all(self._engine, self.id, self._outer, self._inside)

    async def restore(self, content: NativeContent) -> None:
        store = self._engine.store
        async with self._held(), alocked(store.structure_lock(), shared=True):
            require_readable(self._engine, store.load_snapshot(content.ref))
            before = store.load(self.id)
            await restore_layers(self._engine, self.id, content.ref, stop_softly)
            if store.load(self.id).memory is not None:  # find out now whether it can be brought to life
                try:
                    self._carrier = await self._reach()
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await self._let_go()
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
            captured = await self._capture()
            origin = self._engine.store.load(self.id).start
            made = await self._copies(specs, captured.layers, origin)
            return Forked(sandboxes=made, paused_s=captured.paused_s)

    async def _shallow(self) -> None:
        try:
            await keep_shallow(self._engine, self.id)
        except NotFoundError:
            raise destroyed(self.id) from None

    async def _copies(
        self, specs: Sequence[SandboxSpec], start: StoredSnapshot, origin: tuple[str, ...]
    ) -> "Sequence[GvisorSandbox]":
        made: list[GvisorSandbox] = []
        try:
            for spec in specs:
                sandbox = await open_new(self._engine, self._capabilities, spec, start, self._opened, origin)
                made.append(sandbox)
        except BaseException:
            with anyio.CancelScope(shield=True):
                for sandbox in made:
                    await sandbox.aclose()
                    await destroy(self._engine, sandbox.id)
            raise
        return made

    @asynccontextmanager
    async def _held(self, *, shared: bool = False) -> AsyncGenerator[None]:
        """Hold the sandbox against everybody else, or `shared` against those who do; it need not run."""
        if self._closed:
            raise gone()
        async with AsyncExitStack() as stack:
            if not shared:  # what a file verb meets inside stays as it is
                stack.enter_context(explained(self._engine.store.root))
            try:
                await stack.enter_async_context(alocked(self._engine.store.lock(self.id), shared=shared))
            except FileNotFoundError:
                raise destroyed(self.id) from None
            yield

    async def aclose(self) -> None:
        self._closed = True
        if self._limits is not None:
            self._engine.limiting.forget(self.id, self._limits)
            self._limits = None
        await self._let_go()


async def open_new(
    engine: RunscEngine,
    capabilities: Capabilities,
    spec: SandboxSpec,
    start: StoredSnapshot,
    opened: weakref.WeakSet[GvisorSandbox],
    origin: tuple[str, ...] | None = None,
) -> GvisorSandbox:
    """Make a sandbox on a snapshot's layers and start it; nothing is left of one that does not start."""
    state = replace(
        new_state(spec, start),
        top=engine.store.new_layer(start.layers),
        start=start.layers if origin is None else origin,
    )
    engine.store.add(state)
    sandbox = GvisorSandbox(engine, capabilities, state, opened)
    try:
        await sandbox.connect()
    except BaseException:
        await sandbox.aclose()
        engine.store.discard(engine.store.directory(spec.id))
        raise
    return sandbox


def new_state(spec: SandboxSpec, start: StoredSnapshot) -> EngineState:
    """Return the state of a sandbox that is to be made, without a layer to write to."""
    return EngineState(
        id=spec.id, created_at=datetime.now(UTC).isoformat(timespec="milliseconds"), base=start.base,
        layers=start.layers, top="", project=start.project, limits=spec.limits,
        best_effort=spec.best_effort, memory=start.memory,
        env=dict(spec.env), labels=dict(spec.labels), start=start.layers,
    )  # fmt: skip
