"""One sandbox of the embedded engine."""

import contextlib
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
from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.errors import (
    NotFoundError,
    SandboxError,
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
from mcp_sandbox.engines.embedded import EmbeddedEngine
from mcp_sandbox.engines.layer_store import EngineState, StoredSnapshot, destroyed
from mcp_sandbox.engines.layering import capture, destroy, freeze, keep_shallow, restore_layers
from mcp_sandbox.engines.local_carrier import LocalCarrier
from mcp_sandbox.engines.plan import ENVIRONMENT, SPOOL
from mcp_sandbox.engines.sandbox_limits import SandboxLimits, within_time
from mcp_sandbox.guest.wire import GuestProtocolError
from mcp_sandbox.hostfs.atomic import alocked

__all__ = ["NAME", "LocalSandbox", "new_state", "open_new"]

NAME: Final = "local"
ATTEMPTS: Final = 20
SOON_S: Final = 0.01
"""Behind the answer, and behind a restore, which begins with a snapshot."""
_Value = TypeVar("_Value")


class LocalSandbox(Sandbox):
    """Connects again by itself after a snapshot or restore restarted the sandbox's init."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        capabilities: Capabilities,
        state: EngineState,
        opened: weakref.WeakSet["LocalSandbox"],
        carrier: LocalCarrier | None = None,
    ) -> None:
        self._opened = opened
        opened.add(self)
        self._engine = engine
        self._capabilities = capabilities
        self._state = state
        self._environment = {**ENVIRONMENT, **engine.images.environment(state.base), **state.env}
        self._limits: SandboxLimits | None = None
        self._carrier = self._limited(carrier) if carrier is not None else None
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
        """Return the live connection, making one and starting init if need be."""
        carrier = self._carrier
        if carrier is not None and not carrier.closed:
            return carrier
        async with self._connecting:
            if self._closed:
                raise gone()
            if self._carrier is not None and not self._carrier.closed:
                return self._carrier
            with explained(self._engine.store.root):
                self._carrier = await self._engine.connect(self.id)
                if self._carrier is None:
                    try:
                        async with alocked(self._engine.store.lock(self.id), what="Sandbox"):
                            self._carrier = await self._engine.connect(self.id) or await self._start()
                    except FileNotFoundError:
                        raise destroyed(self.id) from None
            if self._closed:  # meanwhile
                await self._carrier.aclose()
                raise gone()
            return self._limited(self._carrier)

    async def start(self) -> None:
        """Start the init of a sandbox that was made just now."""
        with explained(self._engine.store.root):
            async with alocked(self._engine.store.lock(self.id), what="Sandbox"):
                self._carrier = self._limited(await self._engine.start(self._state))

    def _limited(self, carrier: LocalCarrier) -> LocalCarrier:
        """Have the limits watched and their part in a command's end told."""
        if self._limits is None:
            self._limits = self._engine.limiting.watch(self._state)
        else:
            self._engine.limiting.refresh(self.id, self._limits)
        carrier.limits = self._limits
        return carrier

    def _start_again(self) -> None:
        """Start an init that was ended for a snapshot or a restore, so that the next request need not wait for it."""
        if self._carrier is not None:
            self._engine.behind(self._connect_soon())

    async def _connect_soon(self) -> None:
        await anyio.sleep(SOON_S)
        with contextlib.suppress(SandboxError, OSError):
            await self.connect()

    async def _start(self) -> LocalCarrier:
        try:
            self._state = self._engine.store.load(self.id)
        except NotFoundError:
            raise destroyed(self.id) from None
        return await self._engine.start(self._state)

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
                "Snapshot refused", why=f"provider 'local' cannot hold {', '.join(sorted(extra))}",
                fix="Ask for files only, or use a provider that holds memory",
            )  # fmt: skip
        await self._shallow()
        async with self._held(), alocked(self._engine.store.structure_lock(), shared=True):
            frozen = await freeze(self._engine, self.id)
        self._start_again()
        return NativeContent(
            provider=NAME, ref=frozen.ref, holds=self._capabilities.snapshot_holds, size_bytes=frozen.size_bytes,
            paused_s=frozen.paused_s, method=frozen.method,
        )  # fmt: skip

    async def restore(self, content: NativeContent) -> None:
        async with self._held():
            await restore_layers(self._engine, self.id, content.ref)
        self._start_again()

    async def fork(self, specs: Sequence[SandboxSpec]) -> Forked:
        for spec in specs:
            require_enforceable(NAME, self._capabilities, spec)
        await self._shallow()
        async with self._held(), alocked(self._engine.store.structure_lock(), shared=True):
            captured = await capture(self._engine, self.id)
            origin = self._engine.store.load(self.id).start
            made = await self._copies(specs, captured.layers, origin)
            return Forked(sandboxes=made, paused_s=captured.paused_s)

    async def adopt(self, spec: SandboxSpec) -> Sandbox:
        require_enforceable(NAME, self._capabilities, spec)
        state = replace(self._state, id=spec.id, env=dict(spec.env), labels=dict(spec.labels), created_at=_timestamp())
        if spec.image is None:
            base = await self._engine.bases.current()
        else:
            base = await anyio.to_thread.run_sync(self._engine.images.base_of, spec.image)
        carrier = self._carrier
        if carrier is None or carrier.closed or base != self._state.base:
            raise gone()
        async with alocked(self._engine.store.structure_lock(), shared=True):  # nobody looks for unused layers
            self._engine.store.adopt(self.id, state)
        self._carrier = None
        await self.aclose()
        return LocalSandbox(self._engine, self._capabilities, state, self._opened, carrier)

    async def _shallow(self) -> None:
        try:
            await keep_shallow(self._engine, self.id)
        except NotFoundError:
            raise destroyed(self.id) from None

    async def _copies(
        self, specs: Sequence[SandboxSpec], start: StoredSnapshot, origin: tuple[str, ...]
    ) -> "Sequence[LocalSandbox]":
        made: list[LocalSandbox] = []
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
                await stack.enter_async_context(
                    alocked(self._engine.store.lock(self.id), shared=shared, what="Sandbox")
                )
            except FileNotFoundError:
                raise destroyed(self.id) from None
            yield

    async def aclose(self) -> None:
        self._closed = True
        if self._limits is not None:
            self._engine.limiting.forget(self.id, self._limits)
            self._limits = None
        if self._carrier is not None:
            await self._carrier.aclose()


async def open_new(
    engine: EmbeddedEngine,
    capabilities: Capabilities,
    spec: SandboxSpec,
    start: StoredSnapshot,
    opened: weakref.WeakSet[LocalSandbox],
    origin: tuple[str, ...] | None = None,
) -> LocalSandbox:
    """Make a sandbox on a snapshot's layers and start it; nothing is left of one that does not start."""
    state = replace(
        new_state(spec, start),
        top=engine.store.new_layer(start.layers),
        start=start.layers if origin is None else origin,
    )
    engine.store.add(state)
    sandbox = LocalSandbox(engine, capabilities, state, opened)
    try:
        await sandbox.start()
    except BaseException:
        await sandbox.aclose()
        engine.store.discard(engine.store.directory(spec.id))
        raise
    return sandbox


def _timestamp() -> str:
    """Return the time as states say it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_state(spec: SandboxSpec, start: StoredSnapshot) -> EngineState:
    """Return the state of a sandbox that is to be made, without a layer to write to."""
    return EngineState(
        id=spec.id, created_at=_timestamp(), base=start.base,
        layers=start.layers, top="", project=start.project, limits=spec.limits,
        best_effort=spec.best_effort, env=dict(spec.env), labels=dict(spec.labels), start=start.layers,
    )  # fmt: skip
