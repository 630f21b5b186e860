"""One sandbox in a container."""

import contextlib
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import anyio
import anyio.to_thread

from mcp_sandbox.core.admission import require_enforceable
from mcp_sandbox.core.capability import Capabilities, Isolation
from mcp_sandbox.core.errors import NotFoundError, SandboxError, SandboxGoneError, StateError, UnsupportedError
from mcp_sandbox.core.provider import Forked, Sandbox
from mcp_sandbox.core.sandbox import Limits, SandboxId, SandboxSpec, Workspace, WorkspaceMode
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.engines.carrier import gone
from mcp_sandbox.engines.docker_container import ImageFacts
from mcp_sandbox.engines.docker_engine import DockerEngine, timestamp
from mcp_sandbox.engines.docker_snapshots import DockerSnapshots
from mcp_sandbox.engines.docker_state import ContainerState
from mcp_sandbox.engines.guest_sandbox import GuestSandbox
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.hostfs.atomic import alocked

__all__ = ["NAME", "DockerSandbox"]

NAME: Final = "docker"
_BUSY_S: Final = 60.0


class DockerSandbox(GuestSandbox[StreamCarrier]):
    """Connects again by itself, which starts the container if it stopped."""

    ATTEMPTS = 5

    def __init__(
        self,
        engine: DockerEngine,
        snapshots: DockerSnapshots,
        capabilities: Capabilities,
        state: ContainerState,
        opened: "weakref.WeakSet[DockerSandbox]",
    ) -> None:
        opened.add(self)
        self._opened = opened
        self._engine = engine
        self._snapshots = snapshots
        self._capabilities = replace(capabilities, home=state.home)
        self._state = state
        self._stamp = (0, 0)
        self._carrier: StreamCarrier | None = None
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

    @property
    def environment(self) -> Mapping[str, str]:
        return self._state.env

    @property
    def limits(self) -> Limits:
        return self._state.limits

    def found(self, runtime: str, isolation: Isolation) -> None:
        """Take what it runs on, as it was found."""
        self._capabilities = replace(self._capabilities, runtime=runtime, isolation=isolation)
        self._state = replace(self._state, found_runtime=runtime)

    async def connect(self) -> StreamCarrier:
        """Return the live connection to its present container, making one and starting that if need be."""
        if self._carrier is not None and self._is_current(self._carrier):
            return self._carrier
        async with self._connecting:
            if self._closed:
                raise gone()
            try:
                if (stamp := self._engine.states.stamp(self.id)) != self._stamp:
                    before = self._state
                    self._state = await anyio.to_thread.run_sync(self._engine.states.load, self.id)
                    self._stamp = stamp
                    if self._carrier is not None and self._state.container != before.container:
                        await self._carrier.aclose()
                if self._carrier is not None and self._carrier.closed:
                    await self._carrier.aclose()
                if self._carrier is None or self._carrier.closed:
                    self._carrier = await self._engine.connect(self._state)
            except NotFoundError as error:
                raise SandboxGoneError(
                    f"Sandbox {self.id!r} is gone", why="it was destroyed", fix="Create another one"
                ) from error
            if self._closed:  # meanwhile
                await self._carrier.aclose()
                raise gone()
            return self._carrier

    def _is_current(self, carrier: StreamCarrier) -> bool:
        """Whether a connection lives and leads to the container that the sandbox has now."""
        return not carrier.closed and self._engine.states.stamp(self.id) == self._stamp

    def _take(self, carrier: StreamCarrier, stamp: tuple[int, int]) -> None:
        self._carrier, self._stamp = carrier, stamp

    async def snapshot(self, request: SnapshotRequest) -> NativeContent:
        if extra := request.holds - self._capabilities.snapshot_holds:
            raise UnsupportedError(
                "Snapshot refused", why=f"provider {NAME!r} cannot hold {', '.join(sorted(extra))}",
                fix="Ask for files only, or use a provider that holds memory",
            )  # fmt: skip
        async with self._held():
            taken = await self.served(lambda carrier: self._snapshots.take(self._state, carrier))
        return NativeContent(
            provider=NAME, ref=taken.ref, holds=self._capabilities.snapshot_holds, size_bytes=taken.size_bytes,
            paused_s=taken.paused_s, method="committed as a layer of an image, while commands stood still",
        )  # fmt: skip

    async def restore(self, content: NativeContent) -> None:
        """Start a container from the snapshot beside the present one; one write makes it the sandbox's."""
        image = await self._snapshots.facts(content.ref)
        async with self._held():
            before = await anyio.to_thread.run_sync(self._engine.states.load, self.id)
            self._snapshots.require_captured(before)
            after = await self._engine.beside(before, image, await self._snapshots.times(content.ref))
            try:
                carrier = await self._engine.connect(after)
                await anyio.to_thread.run_sync(self._engine.states.save, after)
            except BaseException:
                with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):
                    await self._engine.maker.remove(after.container)
                raise
            with anyio.CancelScope(shield=True):
                old, self._state = self._carrier, after
                self._take(carrier, self._engine.states.stamp(self.id))
                if old is not None:
                    await old.aclose()
                await self._engine.maker.remove_behind(before.container)

    async def fork(self, specs: Sequence[SandboxSpec]) -> Forked:
        for spec in specs:
            require_enforceable(NAME, self._capabilities, spec)
        async with self._held():
            taken = await self.served(lambda carrier: self._snapshots.take(self._state, carrier))
        made: list[Sandbox] = []
        try:
            image = await self._snapshots.facts(taken.ref)
            times = await self._snapshots.times(taken.ref)
            for spec in specs:
                made.append(await self._started(spec, image, times))  # noqa: PERF401 (those that were made are known below)
        except BaseException:
            with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):
                for sandbox in made:
                    await sandbox.aclose()
                    await self._engine.destroy(sandbox.id)
            raise
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):
                await self._snapshots.discard(taken.ref)
        return Forked(sandboxes=made, paused_s=taken.paused_s)

    async def _started(self, spec: SandboxSpec, image: ImageFacts, times: bytes) -> "DockerSandbox":
        """Make a sandbox of the same runtime from the image of a snapshot."""
        spec = replace(spec, runtime=spec.runtime or self._state.runtime or None, workspace=Workspace())
        own = self._state
        state = await self._engine.create(spec, image, times)
        sandbox = DockerSandbox(self._engine, self._snapshots, self._capabilities, state, self._opened)
        try:
            if own.start_project:
                await anyio.to_thread.run_sync(self._engine.states.share_start, own.id, spec.id)
            start = replace(state, start_image=own.start_image or own.image_id, start_project=own.start_project)
            await anyio.to_thread.run_sync(self._engine.states.save, start)
            await sandbox.connect()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await sandbox.aclose()
                await self._engine.destroy(spec.id)
            raise
        return sandbox

    async def adopt(self, spec: SandboxSpec) -> Sandbox:
        require_enforceable(NAME, self._capabilities, spec)
        carrier, state = await self.connect(), self._state
        image = await self._engine.puller.facts(state.image, fetch=False)
        if image.image_id != state.image_id:
            raise gone()
        if spec.workspace.source and spec.workspace.mode is not WorkspaceMode.MOUNT:
            if self._engine.states.has(spec.id):
                raise StateError("Sandbox not created", why=f"{spec.id} exists already", fix="Choose another id")
            await self._engine.bring_project(state, spec.id, spec.workspace.source, spec.denied)
        after = replace(
            state, id=spec.id, env={**state.env, **spec.env}, labels=dict(spec.labels), created_at=timestamp(),
            workspace=spec.workspace.mode.value, start_project=bool(spec.workspace.source),
        )  # fmt: skip
        self._engine.states.rename(self.id, after)
        self._carrier = None
        await self.aclose()
        sandbox = DockerSandbox(self._engine, self._snapshots, self._capabilities, after, self._opened)
        sandbox._take(carrier, self._engine.states.stamp(spec.id))
        return sandbox

    @asynccontextmanager
    async def _held(self) -> AsyncGenerator[None]:
        """Keep every process from giving the sandbox another container meanwhile."""
        if self._closed:
            raise gone()
        async with alocked(self._engine.states.lock(self.id), wait_s=_BUSY_S):
            yield

    async def aclose(self) -> None:
        self._closed = True
        if self._carrier is not None:
            await self._carrier.aclose()
