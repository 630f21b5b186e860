"""Provider `docker`: containers of Docker, Podman and what speaks their API."""

import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio

from mcp_sandbox.core.admission import require_enforceable
from mcp_sandbox.core.capability import Capabilities, Isolation, NetworkMode, Support, Verb, VerbSupport
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxInfo, SandboxSpec, SandboxState
from mcp_sandbox.engines.docker_container import container_name
from mcp_sandbox.engines.docker_engine import DockerEngine
from mcp_sandbox.providers.docker.sandbox import NAME, DockerSandbox

__all__ = ["DEFAULT_IMAGE", "DockerProvider"]

DEFAULT_IMAGE: Final = "python:3.12-slim"


class DockerProvider(Provider):
    """Sandboxes in containers, with what is remembered of them below `root`.

    Args:
        root: Of this provider's state.
        image: What sandboxes start from that name no image.
        environ: Where DOCKER_HOST and the like are looked for.
    """

    def __init__(self, root: Path, *, image: str = DEFAULT_IMAGE, environ: Mapping[str, str] = os.environ) -> None:
        self._root = root
        self._image = image
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
        facts = self._engine.facts
        self._capabilities = Capabilities(
            isolation=Isolation.CONTAINER,
            verbs={Verb.EXPOSE: VerbSupport(Support.NATIVE)},
            network=frozenset({NetworkMode.NONE}),
            limits=facts.limits,
            unenforced=facts.unenforced,
            max_concurrent=256,
            writable_roots=("/workspace", "/home", "/tmp", "/var/tmp"),  # noqa: S108 (inside)
            root_inside=False,
            owners=False,
            runtimes=frozenset(facts.runtimes),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for sandbox in list(self._open):
                    tasks.start_soon(sandbox.aclose)
            await self._engine.aclose()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        require_enforceable(NAME, self._capabilities, spec)
        image = await self._engine.puller.facts(spec.image or self._image)
        state = await self._engine.create(spec, image)
        sandbox = DockerSandbox(self._engine, self._capabilities, state, self._open)
        try:
            await sandbox.connect()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await sandbox.aclose()
                await self.destroy(spec.id)
            raise
        return sandbox

    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        state = self._engine.states.load(sandbox_id)
        await self._engine.find(sandbox_id)
        sandbox = DockerSandbox(self._engine, self._capabilities, state, self._open)
        try:
            await sandbox.connect()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await sandbox.aclose()
            raise
        return sandbox

    async def list(self) -> Sequence[SandboxInfo]:
        return [
            SandboxInfo(
                id=found.sandbox,
                state=SandboxState.RUNNING if found.running else SandboxState.STOPPED,
                created_at=found.created_at,
                labels=found.labels,
            )
            for found in await self._engine.list()
        ]

    async def destroy(self, sandbox_id: SandboxId) -> None:
        await self._engine.remove(container_name(sandbox_id))
        self._engine.states.forget(sandbox_id)
