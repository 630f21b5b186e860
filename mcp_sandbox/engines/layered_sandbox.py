"""A sandbox whose files are layers of the embedded engine's store, whatever kernel serves them."""

import contextlib
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeVar

import anyio
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.errors import NotFoundError, SandboxError, UnsupportedError
from mcp_sandbox.core.files import WriteRequest, WriteResult
from mcp_sandbox.core.provider import Forked
from mcp_sandbox.core.sandbox import Limits, SandboxId, SandboxSpec
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.engines.carrier import GuestCarrier, gone
from mcp_sandbox.engines.diagnosis import explained
from mcp_sandbox.engines.embedded import EmbeddedEngine
from mcp_sandbox.engines.guest_files import write_file
from mcp_sandbox.engines.guest_sandbox import GuestSandbox
from mcp_sandbox.engines.layer_store import EngineState, StoredSnapshot, destroyed
from mcp_sandbox.engines.layering import Captured, destroy, keep_shallow
from mcp_sandbox.engines.plan import ENVIRONMENT, SPOOL
from mcp_sandbox.engines.sandbox_limits import SandboxLimits
from mcp_sandbox.hostfs.atomic import alocked

__all__ = ["LayeredSandbox", "new_state", "open_new", "timestamp"]

SOON_S: Final = 0.01
"""Behind the answer, and behind a restore, which begins with a snapshot."""
_Carrier = TypeVar("_Carrier", bound=GuestCarrier)


class LayeredSandbox(GuestSandbox[_Carrier]):
    """A provider adds how it is reached and captured.

    Args:
        engine: Opened by whoever made this.
        capabilities: What it can do.
        state: As the store has it.
        opened: Takes this sandbox up, for whoever must close it in the end.
    """

    def __init__(
        self,
        engine: EmbeddedEngine,
        capabilities: Capabilities,
        state: EngineState,
        opened: "weakref.WeakSet[Any]",
    ) -> None:
        self._opened = opened
        opened.add(self)
        self._engine = engine
        self._capabilities = capabilities
        self._state = state
        self._environment = {**ENVIRONMENT, **engine.images.environment(state.base), **state.env}
        self._carrier: _Carrier | None = None
        self._watch: SandboxLimits | None = None
        self._connecting = anyio.Lock()
        self._closed = False

    @property
    def id(self) -> SandboxId:
        return SandboxId(self._state.id)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def environment(self) -> Mapping[str, str]:
        return self._environment

    @property
    def limits(self) -> Limits:
        return self._state.limits

    async def begin(self) -> None:
        """Start the init of a sandbox that was made just now."""
        await self.connect()

    async def let_go(self) -> None:
        """End the connection, if there is one."""
        if self._carrier is not None:
            await self._carrier.aclose()

    async def aclose(self) -> None:
        self._closed = True
        if self._watch is not None:
            self._engine.limiting.forget(self.id, self._watch)
            self._watch = None
        await self.let_go()

    async def write(self, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
        async def write(carrier: GuestCarrier) -> WriteResult:
            """Write while nobody freezes the layer: the descriptor would reach into it afterwards."""
            if request.path.startswith(f"{SPOOL}/"):  # in no layer, and written all the time
                return await write_file(carrier, request, data)
            async with self._held(shared=True):
                return await write_file(carrier, request, data)

        return await self.served(write)

    # ------------------------------------------------------------------------------------------ for subclasses

    def _watched(self) -> SandboxLimits:
        """Have the limits watched, so that their part in a command's end is told."""
        if self._watch is None:
            self._watch = self._engine.limiting.watch(self._state)
        else:
            self._engine.limiting.refresh(self.id, self._watch)
        return self._watch

    def _loaded(self) -> EngineState:
        """Return the state that another process may have changed."""
        try:
            self._state = self._engine.store.load(self.id)
        except NotFoundError:
            raise destroyed(self.id) from None
        return self._state

    def _start_again(self) -> None:
        """Start what was ended for a snapshot or a restore, so that the next request need not wait for it."""
        if self._carrier is not None:
            self._engine.behind(self._connect_soon())

    async def _connect_soon(self) -> None:
        await anyio.sleep(SOON_S)
        with contextlib.suppress(SandboxError, OSError):
            await self.connect()

    def _require_held(self, request: SnapshotRequest) -> None:
        """Refuse a snapshot that must hold more than this provider can."""
        if extra := request.holds - self._capabilities.snapshot_holds:
            raise UnsupportedError(
                "Snapshot refused", why=f"provider {self.provider_name!r} cannot hold {', '.join(sorted(extra))}",
                fix="Ask for files only, or use a provider that holds more",
            )  # fmt: skip

    async def _shallow(self) -> None:
        """Wait for merging where it did not keep up in the background."""
        try:
            await keep_shallow(self._engine, self.id)
        except NotFoundError:
            raise destroyed(self.id) from None

    async def _copies(self, specs: Sequence[SandboxSpec], captured: Captured) -> Forked:
        """Make a sandbox for each spec from what was captured just now, all or none."""
        origin = self._engine.store.load(self.id).start
        made: list[Self] = []
        try:
            for spec in specs:
                made.append(await open_new(self._engine, self._sibling, spec, captured.layers, origin))  # noqa: PERF401 (those that were made are known below)
        except BaseException:
            with anyio.CancelScope(shield=True):
                for sandbox in made:
                    await sandbox.aclose()
                    await destroy(self._engine, sandbox.id)
            raise
        return Forked(sandboxes=made, paused_s=captured.paused_s)

    def _sibling(self, state: EngineState) -> Self:
        return type(self)(self._engine, self._capabilities, state, self._opened)

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


_Sandbox = TypeVar("_Sandbox", bound="LayeredSandbox[Any]")


async def open_new(
    engine: EmbeddedEngine,
    make: Callable[[EngineState], _Sandbox],
    spec: SandboxSpec,
    start: StoredSnapshot,
    origin: tuple[str, ...] | None = None,
) -> _Sandbox:
    """Make a sandbox on a snapshot's layers and start it; nothing is left of one that does not start.

    Args:
        engine: Whose store it is.
        make: Returns the sandbox of a state.
        spec: What it must be.
        start: What it starts from.
        origin: The layers that its changes are counted from; those of `start` without any.
    """
    state = replace(
        new_state(spec, start),
        top=engine.store.new_layer(start.layers),
        start=start.layers if origin is None else origin,
    )
    engine.store.add(state)
    sandbox = make(state)
    try:
        await sandbox.begin()
    except BaseException:
        await sandbox.aclose()
        engine.store.discard(engine.store.directory(spec.id))
        raise
    return sandbox


def timestamp() -> str:
    """Return the time as states say it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_state(spec: SandboxSpec, start: StoredSnapshot) -> EngineState:
    """Return the state of a sandbox that is to be made, without a layer to write to."""
    return EngineState(
        id=spec.id, created_at=timestamp(), base=start.base,
        layers=start.layers, top="", project=start.project, limits=spec.limits,
        best_effort=spec.best_effort, denied=spec.denied, memory=start.memory,
        env=dict(spec.env), labels=dict(spec.labels), start=start.layers,
    )  # fmt: skip
