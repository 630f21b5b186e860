"""Containers made with the agent in them, given files, and removed."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import anyio

from mcp_sandbox.core.errors import NotFoundError, ProviderError, SandboxError, StateError
from mcp_sandbox.core.sandbox import SandboxSpec, WorkspaceMode
from mcp_sandbox.engines.docker_client import DockerClient
from mcp_sandbox.engines.docker_container import ImageFacts, agent_archive, container_config, container_name
from mcp_sandbox.engines.docker_facts import EngineFacts
from mcp_sandbox.engines.docker_mounting import owner_of
from mcp_sandbox.engines.docker_ready import ReadyImages
from mcp_sandbox.engines.docker_state import ContainerStates
from mcp_sandbox.engines.docker_user import SandboxUser, choose_user, first_file

__all__ = ["ContainerMaker"]

_log = logging.getLogger(__name__)
_REMOVING_S: Final = 30.0


class ContainerMaker:
    """Of one engine. Close it."""

    def __init__(self, client: DockerClient, facts: EngineFacts, states: ContainerStates, ready: ReadyImages) -> None:
        self._client = client
        self._facts = facts
        self._states = states
        self._ready = ready
        self._behind: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Wait for what is being removed."""
        await asyncio.gather(*self._behind)

    # ------------------------------------------------------------------------------------------ making

    async def ready_container(self, spec: SandboxSpec, image: ImageFacts, name: str = "") -> tuple[str, SandboxUser]:
        """Make a container with the agent in it, which the engine does not run yet; return it and the user of commands.

        Args:
            spec: What it is to be.
            image: What it starts from.
            name: For the engine; that of the sandbox if it is empty.
        """
        if spec.workspace.mode is WorkspaceMode.MOUNT:
            return await self._container_of_owner(spec, image)
        if (ready := await self._ready.find(image)) is not None:
            return await self._make(spec, ready.image_id, ready.user, name), ready.user
        container = await self._make(spec, image.image_id, choose_user(image.user, None), name)
        try:
            passwd, group = await self._table(container, "passwd"), await self._table(container, "group")
            user = choose_user(image.user, passwd)
            await self.put(container, lambda: agent_archive(image, user, passwd, group))
            await self._ready.keep(container, image, user)
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(ProviderError):
                await self.remove(container)
            raise
        if (ready := await self._ready.find(image)) is not None:
            await self.remove(container)  # images committed from the other one have its labels, and are ready as well
            return await self._make(spec, ready.image_id, user, name), user
        if user != choose_user(image.user, None):  # it was made for another user than the image has
            await self.remove(container)
            raise ProviderError(
                f"Image {image.name!r} cannot be used", why="the container engine did not keep it with the agent in it",
                fix="Look into the log for the reason",
            )  # fmt: skip
        return container, user

    async def _container_of_owner(self, spec: SandboxSpec, image: ImageFacts) -> tuple[str, SandboxUser]:
        """Make a container whose user is the owner of the project that is mounted."""
        source = spec.workspace.source or ""
        owner = await anyio.to_thread.run_sync(owner_of, source, self._client.endpoint, self._facts)
        container = await self._make(spec, image.image_id, choose_user(image.user, None, owner))
        try:
            passwd, group = await self._table(container, "passwd"), await self._table(container, "group")
            user = choose_user(image.user, passwd, owner)
            if user.home != choose_user(image.user, None, owner).home:
                await self.remove(container)
                container = await self._make(spec, image.image_id, user)
            await self.put(container, lambda: agent_archive(image, user, passwd, group))
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(ProviderError):
                await self.remove(container)
            raise
        return container, user

    async def _make(self, spec: SandboxSpec, image_id: str, user: SandboxUser, name: str = "") -> str:
        name = name or container_name(spec.id)
        config = container_config(spec, image_id, user, self._facts, self._states.owner)
        what = f"Sandbox {spec.id!r} not created"
        try:
            made = await self._client.call(what, lambda api: api.create_container_from_config(config, name))
        except StateError:
            if self._states.has(spec.id):
                raise StateError(what, why="there is one with this id", fix="Choose another id") from None
            await self.remove(name)  # whoever made it was killed before it was finished
            made = await self._client.call(what, lambda api: api.create_container_from_config(config, name))
        return str(made["Id"])

    async def _table(self, container: str, name: str) -> bytes | None:
        try:
            return await self._client.call(
                "No table of users", lambda api: first_file(b"".join(api.get_archive(container, f"/etc/{name}")[0]))
            )
        except NotFoundError:
            return None

    async def put(self, container: str, archive: Callable[[], Iterator[bytes]], where: str = "/") -> None:
        """Unpack an archive in a container; its pieces are asked for in a thread."""
        what = "Nothing can be put into the container"
        await self._client.call(what, lambda api: api.put_archive(container, where, archive()))

    # ------------------------------------------------------------------------------------------ removing

    async def remove(self, container: str) -> None:
        """Kill what runs in a container and remove it with its files. No-op if there is none."""
        with suppress(NotFoundError):
            try:
                await self._client.call(
                    "The sandbox is not removed", lambda api: api.remove_container(container, v=True, force=True)
                )
            except StateError:  # somebody removes it already
                await self._removed(container)

    async def remove_behind(self, container: str) -> None:
        """Kill what runs in a container now, and remove it behind whoever calls. No-op if there is none."""
        with suppress(NotFoundError, StateError):  # it does not run
            await self._client.call("The sandbox is not ended", lambda api: api.kill(container))
        task = asyncio.get_running_loop().create_task(self._remove_or_log(container))
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def _remove_or_log(self, container: str) -> None:
        try:
            await self.remove(container)
        except (SandboxError, TimeoutError) as error:  # a later call of `collect` removes it
            _log.warning("container %s is not removed: %s", container, error)

    async def _removed(self, container: str) -> None:
        with anyio.fail_after(_REMOVING_S):
            while True:
                await self._client.call("The sandbox is not removed", lambda api: api.inspect_container(container))
                await anyio.sleep(0.05)
