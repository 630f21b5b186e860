"""Images that are missing are pulled: once, behind whoever waits for them, with progress that is told."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from mcp_sandbox.core.errors import (
    CapacityError,
    InvalidRequestError,
    NotFoundError,
    ProviderError,
    SandboxError,
    UnsupportedError,
)
from mcp_sandbox.engines.docker_api import EngineApi
from mcp_sandbox.engines.docker_client import DockerClient
from mcp_sandbox.engines.docker_container import ImageFacts
from mcp_sandbox.engines.verdicts import size_text
from mcp_sandbox.guest.binary import guest_binary

__all__ = ["ImagePuller"]

_log = logging.getLogger(__name__)
PATIENCE_S: Final = 40.0
"""How long a call waits for an image: clients give up after a minute."""
TELL_EVERY_S: Final = 5.0
_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(slots=True, eq=False)
class _Pull:
    task: "asyncio.Task[None] | None" = None
    layers: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Bytes that came and bytes in all, by layer."""
    cancelled: bool = False

    def progress(self) -> str:
        done, total = (sum(numbers) for numbers in zip(*self.layers.values(), strict=True)) if self.layers else (0, 0)
        return f"{size_text(done)} of {size_text(total)}" if total else "it has just begun"


class ImagePuller:
    """Looks at images of one engine, and gets those that are missing."""

    def __init__(self, client: DockerClient) -> None:
        self._client = client
        self._pulls: dict[str, _Pull] = {}

    async def facts(self, name: str, *, fetch: bool = True) -> ImageFacts:
        """Return what matters of an image, pulled if the engine does not have it and `fetch` says so.

        Raises:
            InvalidRequestError: There is no such image, or it may not be fetched.
            CapacityError: It is still being pulled; that goes on.
            UnsupportedError: It is for an architecture that this installation has no agent for.
        """
        try:
            found = await self._inspect(name)
        except NotFoundError:
            if not fetch:
                raise InvalidRequestError(
                    f"No image {name!r}", why="the engine does not have it, and fetches only what the operator named",
                    fix=f"Have the operator run `docker pull {name}`, or start the server with `--image {name}`",
                ) from None  # fmt: skip
            await self._pulled(name)
            found = await self._inspect(name)
        machine = _MACHINES.get(str(found["Architecture"]), str(found["Architecture"]))
        try:
            guest_binary(machine)
        except ProviderError as error:
            raise UnsupportedError(
                f"Image {name!r} cannot be used", why=f"it is for {machine}, and {error.why}",
                fix="Use an image for this machine's architecture, or a release wheel of mcp-sandbox, which carries "
                "x86_64 and aarch64",
            ) from error  # fmt: skip
        config: dict[str, Any] = found.get("Config") or {}
        lines: list[str] = config.get("Env") or []
        pairs = (line.partition("=") for line in lines)
        return ImageFacts(
            name=name, image_id=found["Id"], machine=machine, user=config.get("User") or "",
            env={key: value for key, _, value in pairs}, labels=config.get("Labels") or {},
        )  # fmt: skip

    async def aclose(self) -> None:
        """End what is under way."""
        for pull in self._pulls.values():
            pull.cancelled = True
            if pull.task is not None:
                pull.task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await pull.task

    async def _inspect(self, name: str) -> "dict[str, Any]":
        return await self._client.call(f"No image {name!r}", lambda api: api.inspect_image(name))

    async def _pulled(self, name: str) -> None:
        pull = self._pulls.get(name)
        if pull is None:
            pull = self._pulls[name] = _Pull()
            pull.task = asyncio.get_running_loop().create_task(self._pull(name, pull))
        assert pull.task is not None
        with anyio.move_on_after(PATIENCE_S):
            await asyncio.shield(pull.task)
            return
        raise CapacityError(
            f"Image {name!r} is not here yet", why=f"it is being pulled, {pull.progress()}",
            fix="Call again in a moment: the pull goes on while this server runs",
        )  # fmt: skip

    async def _pull(self, name: str, pull: _Pull) -> None:
        _log.warning("image %s is missing; pulling it", name)
        telling = asyncio.get_running_loop().create_task(self._tell(name, pull))
        try:
            await self._client.call(f"Image {name!r} cannot be pulled", lambda api: _follow(api, name, pull))
            _log.warning("image %s is here", name)
        except SandboxError as error:
            raise InvalidRequestError(
                f"No image {name!r}", why=f"the engine does not have it, and cannot pull it: {error.why}",
                fix="Correct the name, log in to its registry (`docker login`), or pull it by hand",
            ) from error  # fmt: skip
        finally:
            telling.cancel()
            self._pulls.pop(name, None)

    async def _tell(self, name: str, pull: _Pull) -> None:
        while True:
            await anyio.sleep(TELL_EVERY_S)
            _log.warning("pulling image %s: %s", name, pull.progress())


def _follow(api: EngineApi, name: str, pull: _Pull) -> None:
    """Pull an image to its end. Blocks."""
    repository, tag = _repository(name)
    for event in api.pull(repository, tag=tag, stream=True, decode=True):
        if pull.cancelled:
            return
        if "error" in event:
            raise ProviderError("No image", why=str(event["error"]), fix="")
        detail: dict[str, Any] = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and detail.get("total"):
            pull.layers[str(event.get("id"))] = (int(detail.get("current", 0)), int(detail["total"]))


def _repository(name: str) -> tuple[str, str | None]:
    """Split a name as the engine wants it: everything that `pull` would take for all tags gets `latest`."""
    if "@" in name:
        return name, None
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "latest")
