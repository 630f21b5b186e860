"""Provider `docker`: containers of Docker, Podman and what speaks their API."""

import contextlib
import os
import secrets
import time
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio

from mcp_sandbox.core.admission import require_enforceable
from mcp_sandbox.core.capability import Capabilities, Facet, NetworkMode, Support, Verb, VerbSupport
from mcp_sandbox.core.differences import Differences, DiffRequest, LiveState, ProjectState, StartState, State
from mcp_sandbox.core.errors import (
    InvalidRequestError,
    NotFoundError,
    ProviderUnavailableError,
    SandboxError,
    UnsupportedError,
)
from mcp_sandbox.core.examination import Examination, Fence, Shortcoming
from mcp_sandbox.core.image import Image, ImageRequest
from mcp_sandbox.core.leftovers import EXPIRES, Leftover, Remembered
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import Limits, SandboxId, SandboxInfo, SandboxSpec, SandboxState, Workspace, WorkspaceMode
from mcp_sandbox.core.snapshot import NativeContent
from mcp_sandbox.engines.docker_container import NOT_COMPARED, ImageFacts, container_name
from mcp_sandbox.engines.docker_engine import DockerEngine
from mcp_sandbox.engines.docker_fences import PIDS, tried
from mcp_sandbox.engines.docker_images import DockerImages
from mcp_sandbox.engines.docker_leftovers import collect_containers
from mcp_sandbox.engines.docker_mounting import require_mounted
from mcp_sandbox.engines.docker_runtime import found_runtime
from mcp_sandbox.engines.docker_snapshots import DockerSnapshots
from mcp_sandbox.engines.docker_state import ContainerState
from mcp_sandbox.engines.guest_comparing import compare_sandboxes
from mcp_sandbox.hostfs.atomic import alocked
from mcp_sandbox.providers.docker.sandbox import NAME, DockerSandbox

__all__ = ["DEFAULT_IMAGE", "DockerProvider"]

DEFAULT_IMAGE: Final = "python:3.12-slim"
_BUSY_S: Final = 60.0
_PASSING_S: Final = 3600.0
_WORKSPACES: Final = {
    WorkspaceMode.EMPTY: "",
    WorkspaceMode.OVERLAY: "copied in when the sandbox is made, so that snapshots hold it; the host's later changes "
    "do not show",
    WorkspaceMode.COPY: "",
    WorkspaceMode.MOUNT: "what commands write is on the host at once, as its owner's; snapshots do not hold it",
}


class DockerProvider(Provider):
    """Sandboxes in containers, with what is remembered of them below `root`.

    Args:
        root: Of this provider's state.
        image: What sandboxes start from that name no image.
        runtime: What sandboxes run on that name no runtime; `None` is the engine's default.
        environ: Where DOCKER_HOST and the like are looked for.
    """

    def __init__(
        self,
        root: Path,
        *,
        image: str = DEFAULT_IMAGE,
        runtime: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._root = root
        self._image = image
        self._runtime = runtime
        self._environ = environ
        self._open: weakref.WeakSet[DockerSandbox] = weakref.WeakSet()

    @property
    def name(self) -> str:
        return NAME

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def __aenter__(self) -> Self:
        self._engine = await DockerEngine.open(self._root, self._environ)
        self._snapshots = DockerSnapshots(self._engine)
        self._images = DockerImages(self._engine.client, self._root)
        self._capabilities = self._capabilities_on(self._runtime)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for sandbox in list(self._open):
                    tasks.start_soon(sandbox.aclose)
            await self._engine.aclose()

    def _capabilities_on(self, runtime: str | None) -> Capabilities:
        facts = self._engine.facts
        return Capabilities(
            isolation=facts.boundary_of(runtime),
            verbs={
                Verb.EXPOSE: VerbSupport(Support.NATIVE),
                Verb.SNAPSHOT: VerbSupport(Support.NATIVE, "an image that shares its layers"),
                Verb.RESTORE: VerbSupport(Support.NATIVE, "ends running commands"),
                Verb.CREATE_FROM_SNAPSHOT: VerbSupport(Support.NATIVE),
                Verb.FORK: VerbSupport(Support.NATIVE),
                Verb.DIFF: VerbSupport(
                    Support.EMULATED, "snapshots, and what a sandbox started as, are started for it"
                ),
                Verb.ADOPT: VerbSupport(Support.NATIVE),
                Verb.IMAGES: VerbSupport(
                    Support.NATIVE, "the engine's; directories, tar archives, built by debootstrap"
                ),
            },
            snapshot_holds=frozenset({Facet.FILES}),
            workspace_copied=True,
            network=frozenset({NetworkMode.NONE}),
            limits=facts.limits_on(runtime),
            unenforced=facts.gaps_on(runtime),
            max_concurrent=256,
            writable_roots=("/workspace", "/home", "/tmp", "/var/tmp"),  # noqa: S108 (inside)
            runtimes=facts.runtimes,
            runtime=runtime or facts.default_runtime,
            workspaces=_WORKSPACES,
            denies=frozenset({WorkspaceMode.OVERLAY, WorkspaceMode.COPY}),
            root_inside=False,
            owners=False,
        )

    async def create(self, spec: SandboxSpec) -> Sandbox:
        spec = replace(spec, runtime=spec.runtime or self._runtime)
        require_enforceable(NAME, self._capabilities_on(spec.runtime), spec)
        image = await self._engine.puller.facts(spec.image or self._image, fetch=spec.fetch_image)
        return await self._made(spec, image)

    async def _made(self, spec: SandboxSpec, image: ImageFacts, times: bytes = b"") -> DockerSandbox:
        state = await self._engine.create(spec, image, times)
        try:
            sandbox = await self._opened(state)
            known = replace(state, found_runtime=sandbox.capabilities.runtime)
            await anyio.to_thread.run_sync(self._engine.states.save, known)
            if spec.workspace.mode is WorkspaceMode.MOUNT and spec.workspace.source:
                names = await anyio.to_thread.run_sync(os.listdir, spec.workspace.source)
                await require_mounted(await sandbox.connect(), set(names))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.destroy(spec.id)
            raise
        return sandbox

    async def images(self) -> Sequence[Image]:
        return await self._images.list()

    async def add_image(self, request: ImageRequest) -> Image:
        return await self._images.add(request)

    async def remove_image(self, name: str) -> None:
        await self._images.remove(name)

    async def examine(self) -> Examination:
        facts, client = self._engine.facts, self._engine.client
        runtimes = (f"{name} ({boundary.name.lower()})" for name, boundary in facts.runtimes.items())
        told = {
            "engine": f"{facts.name}{', rootless' * facts.rootless}, at {client.endpoint.url}",
            "storage driver": facts.storage,
            "runtimes": f"{', '.join(runtimes)}; {self._capabilities.runtime} by default",
            "image": f"{self._image} by default",
        }
        lacks = [
            Shortcoming(what=f"limit {name} is not enforced", why=gap.why, fix=gap.fix)
            for name, gap in facts.unenforced.items()
        ]
        began = time.perf_counter()
        try:
            fences = await self._fences()
        except InvalidRequestError as error:  # no image: it is not for an examination to pull one
            return Examination(
                facts=told, shortcomings=[Shortcoming(what="no fence was tried", why=error.why, fix=error.fix), *lacks]
            )
        took = round((time.perf_counter() - began) * 1000, 1)
        return Examination(facts=told, shortcomings=lacks, fences=fences, milliseconds={"self-test": took})

    async def _fences(self) -> Sequence[Fence]:
        """Attack a throw-away sandbox from inside."""
        image = await self._engine.puller.facts(self._image, fetch=False)
        sandbox = await self._passing(image, self._runtime, limits=Limits(pids=PIDS))
        try:
            own_kernel = self._engine.facts.has_own_kernel(self._runtime)
            return await tried(sandbox, sandbox.environment, machine=image.machine, own_kernel=own_kernel)
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):
                await sandbox.aclose()
                await self.destroy(sandbox.id)

    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        return await self._attached(sandbox_id)

    async def _attached(self, sandbox_id: SandboxId) -> DockerSandbox:
        state = await anyio.to_thread.run_sync(self._engine.states.load, sandbox_id)
        if state.engine_id != self._engine.facts.engine_id:
            raise ProviderUnavailableError(
                f"Sandbox {sandbox_id!r} cannot be reached",
                why=f"it is on another container engine than {self._engine.facts.name} ({self._engine.client.origin})",
                fix="Start that engine, or name it in DOCKER_HOST; `mcp-sandbox rm` forgets the sandbox",
            )
        return await self._opened(state)

    async def _opened(self, state: ContainerState) -> DockerSandbox:
        """Connect to a sandbox, and look what it really runs on."""
        capabilities = self._capabilities_on(state.runtime or None)
        sandbox = DockerSandbox(self._engine, self._snapshots, capabilities, state, self._open)
        try:
            inspected = await self._engine.find(state)
            found = found_runtime(state.runtime, inspected, (await sandbox.connect()).kernel, self._engine.facts)
            sandbox.found(found.runtime, found.isolation)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await sandbox.aclose()
            raise
        return sandbox

    async def list(self) -> Sequence[SandboxInfo]:
        runtimes = await anyio.to_thread.run_sync(self._engine.states.runtimes)
        return [
            SandboxInfo(
                id=found.sandbox,
                state=SandboxState.RUNNING if found.running else SandboxState.STOPPED,
                created_at=found.created_at,
                runtime=runtimes.get(found.sandbox, ""),
                labels=found.labels,
            )
            for found in await self._engine.list()
        ]

    async def destroy(self, sandbox_id: SandboxId) -> None:
        with contextlib.suppress(NotFoundError):  # no id looks like that
            async with alocked(self._engine.states.lock(sandbox_id), wait_s=_BUSY_S):
                await self._engine.destroy(sandbox_id)
        await self._snapshots.sweep()

    async def restore(self, content: NativeContent, spec: SandboxSpec) -> Sandbox:
        spec = replace(spec, runtime=spec.runtime or self._runtime, workspace=Workspace())
        require_enforceable(NAME, self._capabilities, spec)
        image = await self._snapshots.facts(content.ref)
        return await self._made(spec, image, await self._snapshots.times(content.ref))

    async def diff(self, request: DiffRequest) -> Differences:
        async with self._view(request.before) as before, self._view(request.after) as after:
            return await compare_sandboxes(before, after, request, left_out=NOT_COMPARED)

    @contextlib.asynccontextmanager
    async def _view(self, state: State) -> AsyncGenerator[DockerSandbox]:
        """Give out a sandbox in which a state can be looked at; one that is not live is started for that."""
        if isinstance(state, LiveState):
            sandbox = await self._attached(state.sandbox)
        elif isinstance(state, StartState | ProjectState):
            start = await anyio.to_thread.run_sync(self._engine.states.load, state.sandbox)
            if isinstance(state, ProjectState) and not start.start_project:
                raise UnsupportedError(
                    "Nothing compared", why="this sandbox began as a snapshot, and what the project was is not kept",
                    fix="Compare it with what it started as",
                )  # fmt: skip
            sandbox = await self._started_again(start)
        else:
            sandbox = await self._passing(await self._snapshots.facts(state.ref), self._runtime, state.ref)
        try:
            yield sandbox
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):
                await sandbox.aclose()
                if not isinstance(state, LiveState):
                    await self.destroy(sandbox.id)

    async def _started_again(self, state: ContainerState) -> DockerSandbox:
        """Start what a sandbox started as once more."""
        if state.workspace == WorkspaceMode.MOUNT:
            raise UnsupportedError(
                "Nothing compared", why="the workspace is the host's own directory, and what that was is not kept",
                fix="Use the project's version control, or serve with a copy of the project (--workspace overlay)",
            )  # fmt: skip
        image = await self._engine.puller.facts(state.start_image or state.image_id, fetch=False)
        sandbox = await self._passing(image, state.runtime or self._runtime)
        if state.start_project:
            try:
                await self._engine.bring_start(state, container_name(sandbox.id))
            except BaseException:
                with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):
                    await sandbox.aclose()
                    await self.destroy(sandbox.id)
                raise
        return sandbox

    async def _passing(
        self, image: ImageFacts, runtime: str | None, ref: str = "", limits: Limits | None = None
    ) -> DockerSandbox:
        """Make a sandbox to look at, whose times nobody sees; a kernel of its own gets its FIFOs with them."""
        expires = (datetime.now(UTC) + timedelta(seconds=_PASSING_S)).isoformat(timespec="milliseconds")
        name = SandboxId(f"looking-{secrets.token_hex(12)}")
        spec = SandboxSpec(
            id=name, runtime=runtime, limits=limits or Limits(), best_effort=True, labels={EXPIRES: expires}
        )
        times = await self._snapshots.times(ref) if ref and self._engine.facts.has_own_kernel(runtime) else b""
        return await self._made(spec, image, times)

    async def measure(self, content: NativeContent) -> int | None:
        return content.size_bytes

    async def verify(self, content: NativeContent) -> Sequence[str]:
        try:
            await self._snapshots.inspect(content.ref)
        except NotFoundError:
            return ("the container engine does not have its image any more",)
        return ()

    async def discard(self, content: NativeContent) -> None:
        await self._snapshots.discard(content.ref)

    async def collect(
        self, remembered: Remembered, *, kept_s: float, now: float, dry_run: bool = False
    ) -> Sequence[Leftover]:
        gone = await collect_containers(self._engine, remembered, kept_s=kept_s, now=now, dry_run=dry_run)
        return [*gone, *await self._snapshots.collect(remembered, kept_s=kept_s, now=now, dry_run=dry_run)]
