"""Containers of one engine that are ours: made, started, connected to, found and removed."""

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio

from mcp_sandbox.core.errors import NotFoundError, ProviderError, SandboxGoneError, StateError
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec, WorkspaceMode
from mcp_sandbox.engines.docker_client import DockerClient, open_client
from mcp_sandbox.engines.docker_container import (
    AGENT,
    LABEL_SANDBOX,
    LABEL_STATE,
    ImageFacts,
    bridge_command,
    container_name,
    environment,
    project_archive,
    tmp_archive,
)
from mcp_sandbox.engines.docker_facts import EngineFacts, engine_facts
from mcp_sandbox.engines.docker_making import ContainerMaker
from mcp_sandbox.engines.docker_pulling import ImagePuller
from mcp_sandbox.engines.docker_ready import ReadyImages
from mcp_sandbox.engines.docker_state import ContainerState, ContainerStates
from mcp_sandbox.engines.docker_stream import open_exec
from mcp_sandbox.engines.docker_user import SandboxUser
from mcp_sandbox.engines.docker_watching import watch_container
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.hostfs.tree_packing import packed_file

__all__ = ["DockerEngine", "Found", "timestamp"]

_log = logging.getLogger(__name__)
_CONNECT_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A container of ours, as the engine lists it."""

    sandbox: SandboxId
    container: str
    running: bool
    created_at: str
    labels: Mapping[str, str]
    replaced: bool
    """Whether the sandbox has another one now."""


class DockerEngine:
    """Use `open`, then `aclose`."""

    def __init__(self, client: DockerClient, facts: EngineFacts, version: str, root: Path) -> None:
        self.client = client
        self.facts = facts
        self.states = ContainerStates(root)
        self.puller = ImagePuller(client)
        self._version = version
        self.ready = ReadyImages(client)
        self.maker = ContainerMaker(client, facts, self.states, self.ready)

    @classmethod
    async def open(cls, root: Path, environ: Mapping[str, str] = os.environ) -> "DockerEngine":
        """Find an engine and ask it what it can do.

        Raises:
            ProviderUnavailableError: There is none.
        """
        client = await open_client(environ)
        try:
            info = await client.call("No container engine", lambda api: api.info())
            version = await client.call("No container engine", lambda api: api.version())
            facts = engine_facts(info, version)
            api_version = await client.call("No container engine", lambda api: api.api_version)
            return cls(client, facts, api_version, root)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await client.aclose()
            raise

    async def aclose(self) -> None:
        """Let go of the engine; containers stop by themselves once nobody is connected."""
        await self.puller.aclose()
        await self.maker.aclose()
        await self.client.aclose()

    # ------------------------------------------------------------------------------------------ making

    async def create(self, spec: SandboxSpec, image: ImageFacts, times: bytes = b"") -> ContainerState:
        """Make a container and start it; nothing is left of one that does not start.

        Args:
            spec: What it is to be.
            image: What it starts from.
            times: Of files of the image, to the nanosecond.

        Raises:
            StateError: There is one with this id.
        """
        if self.states.has(spec.id):
            raise StateError(
                f"Sandbox {spec.id!r} not created", why="there is one with this id", fix="Choose another id"
            )
        container, user = await self.maker.ready_container(spec, image)
        try:
            if spec.workspace.source and spec.workspace.mode is not WorkspaceMode.MOUNT:
                await self._bring(spec.id, container, spec.workspace.source, user, spec.denied)
            await self._start_with(container, times, spec.runtime)
            state = ContainerState(
                id=spec.id, created_at=timestamp(), image=image.name, image_id=image.image_id, uid=user.uid,
                gid=user.gid, user=user.name, home=user.home, env=environment(image, user, spec), limits=spec.limits,
                workspace=spec.workspace.mode.value, runtime=spec.runtime or "", engine_id=self.facts.engine_id,
                container=container, labels=dict(spec.labels), start_image=image.image_id,
                start_project=bool(spec.workspace.source) and spec.workspace.mode is not WorkspaceMode.MOUNT,
            )  # fmt: skip
            await anyio.to_thread.run_sync(self.states.add, state)
        except BaseException:
            self.states.start(spec.id).unlink(missing_ok=True)
            with anyio.CancelScope(shield=True), suppress(ProviderError):
                await self.maker.remove(container)
            raise
        return state

    async def beside(self, state: ContainerState, image: ImageFacts, times: bytes) -> ContainerState:
        """Make and start another container for a sandbox, from an image with the agent in it; nothing uses it yet."""
        spec = SandboxSpec(
            id=SandboxId(state.id), runtime=state.runtime or None, limits=state.limits, labels=state.labels
        )
        name = f"{container_name(state.id)}.{secrets.token_hex(6)}"
        container, user = await self.maker.ready_container(spec, image, name)
        try:
            await self._start_with(container, times, spec.runtime)
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(ProviderError):
                await self.maker.remove(container)
            raise
        return replace(
            state, container=container, image_id=image.image_id, uid=user.uid, gid=user.gid, user=user.name,
            home=user.home,
        )  # fmt: skip

    async def _start_with(self, container: str, times: bytes, runtime: str | None) -> None:
        if self.facts.has_own_kernel(runtime):
            await self._keep_tmp(container)
        if times:
            pieces = (packed_file(f"{AGENT[1:]}/times", times, 0o400), bytes(1024))
            await self.maker.put(container, lambda: iter(pieces))
        await self.start(container)

    async def _keep_tmp(self, container: str) -> None:
        try:
            await self.maker.put(container, lambda: iter([tmp_archive(whole=False)]), "/tmp")  # noqa: S108 (inside)
        except NotFoundError:  # its image has none
            await self.maker.put(container, lambda: iter([tmp_archive(whole=True)]))

    async def bring_project(
        self, state: ContainerState, sandbox: SandboxId, source: str, denied: Sequence[str]
    ) -> None:
        """Copy a project into the workspace of a sandbox, which may be about to get another id; not what globs deny."""
        user = SandboxUser(uid=state.uid, gid=state.gid, name=state.user, home=state.home, known=True)
        await self._bring(sandbox, state.container, source, user, denied)

    async def _bring(
        self, sandbox: SandboxId, container: str, source: str, user: SandboxUser, denied: Sequence[str]
    ) -> None:
        await self.maker.put(container, lambda: self.states.keep_start(sandbox, project_archive(source, user, denied)))

    async def bring_start(self, state: ContainerState, container: str) -> None:
        """Copy the project that a sandbox started with into another container.

        Raises:
            NotFoundError: It is not there.
        """
        try:
            with self.states.start(state.id).open("rb") as archive:
                await self.maker.put(container, lambda: iter(lambda: archive.read(1 << 20), b""))
        except FileNotFoundError:
            raise NotFoundError(
                "Nothing compared", why="the project as it was when the sandbox was made is not kept",
                fix="Compare with a snapshot",
            ) from None  # fmt: skip

    # ------------------------------------------------------------------------------------------ running

    async def start(self, container: str) -> None:
        """Start a container. No-op if it runs."""
        await self.client.call("The sandbox does not start", lambda api: api.start(container))

    async def connect(self, state: ContainerState) -> StreamCarrier:
        """Put a bridge into a container, which is started if it does not run.

        Raises:
            NotFoundError: There is no such container.
            ProviderError: It does not start, or no bridge can be put into it.
        """
        name = state.container
        for attempt in range(_CONNECT_ATTEMPTS):
            try:
                return await self._bridge(name, state)
            except (StateError, SandboxGoneError) as error:  # it stops just now, or has stopped
                if attempt + 1 == _CONNECT_ATTEMPTS:
                    raise ProviderError(
                        f"Sandbox {state.id!r} cannot be reached", why=await self._last_words(name, error),
                        fix="Call again; destroy the sandbox if it repeats",
                    ) from error  # fmt: skip
                await self.start(name)
        raise AssertionError

    async def _bridge(self, name: str, state: ContainerState) -> StreamCarrier:
        command = bridge_command(state.uid, state.gid)
        made = await self.client.call(
            "No connection into the container",
            lambda api: api.exec_create(name, command, stdin=True, user="0:0", workdir="/"),
        )
        stream = await open_exec(self.client.endpoint, self._version, str(made["Id"]))
        try:
            carrier = await StreamCarrier.open(stream)
            carrier.limits = state.limits
            own_kernel = self.facts.has_own_kernel(state.runtime or None)
            carrier.begin(
                watch_container(self.client, self._version, name, carrier, state.limits, own_kernel=own_kernel)
            )
            return carrier
        except SandboxGoneError:
            if stream.errors:
                _log.info("container %s: %r", name, stream.errors)
            raise

    async def _last_words(self, name: str, error: Exception) -> str:
        with suppress(ProviderError, NotFoundError, StateError):
            said = await self.client.call("No log", lambda api: api.logs(name, tail=3))
            if said:
                return said.decode("utf-8", "replace").strip()
        return str(error)

    # ------------------------------------------------------------------------------------------ finding

    async def find(self, state: ContainerState) -> "dict[str, Any]":
        """Return what the engine says about the container of a sandbox.

        Raises:
            NotFoundError: There is none, or it belongs to another state directory.
        """
        what = f"No sandbox {state.id!r}"
        found = await self.client.call(what, lambda api: api.inspect_container(state.container))
        if found["Config"]["Labels"].get(LABEL_STATE) != self.states.owner:
            raise NotFoundError(what, why="it belongs to another state directory", fix="Create another one")
        return found

    async def list(self) -> Sequence[Found]:
        """Return every container of ours, finished or not, but those that were replaced by others."""
        return [found for found in await self.containers() if not found.replaced]

    async def containers(self) -> Sequence[Found]:
        """Return every container of ours."""
        states = {state.container: state for state in await anyio.to_thread.run_sync(self.states.all)}
        known = {state.id for state in states.values()}
        label = f"{LABEL_STATE}={self.states.owner}"
        rows = await self.client.call(
            "No list of sandboxes", lambda api: api.containers(all=True, filters={"label": [label]})
        )
        return [
            Found(
                sandbox=SandboxId(state.id if state else row["Labels"][LABEL_SANDBOX]),
                container=row["Id"],
                running=row["State"] in ("running", "paused", "restarting"),
                created_at=datetime.fromtimestamp(_seconds(row["Created"]), UTC).isoformat(timespec="milliseconds"),
                labels=state.labels if state else row["Labels"],
                replaced=state is None and row["Labels"][LABEL_SANDBOX] in known,
            )
            for row in rows
            for state in [states.get(row["Id"])]
            if LABEL_SANDBOX in row["Labels"]
        ]

    # ------------------------------------------------------------------------------------------ ending

    async def destroy(self, sandbox: SandboxId) -> None:
        """Remove the container of a sandbox and what is remembered of it. No-op if there is none."""
        name = container_name(sandbox)
        with suppress(NotFoundError, StateError):
            name = (await anyio.to_thread.run_sync(self.states.load, sandbox)).container
        await self.maker.remove(name)
        await anyio.to_thread.run_sync(self.states.forget, sandbox)


def timestamp() -> str:
    """Return the time as states say it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _seconds(created: object) -> float:
    """Return a time of the list: Docker gives seconds, some versions of Podman a date."""
    if isinstance(created, int | float):
        return float(created)
    return datetime.fromisoformat(str(created)).timestamp()
