"""Images with the agent and the user of commands already in them: putting both into each container costs 50 ms.

The first container of an image is committed before it starts, under a name that says what it is made from; what is
committed later from a sandbox is such an image as well, by its labels.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

from mcp_sandbox.core.errors import NotFoundError, SandboxError
from mcp_sandbox.engines.docker_client import DockerClient
from mcp_sandbox.engines.docker_container import LABEL_SANDBOX, LABEL_STATE, ImageFacts
from mcp_sandbox.engines.docker_user import SandboxUser
from mcp_sandbox.engines.seccomp import build_filter
from mcp_sandbox.guest.binary import guest_binary

__all__ = ["REPOSITORY", "ReadyImage", "ReadyImages", "agent_digest", "ready_labels"]

_log = logging.getLogger(__name__)
REPOSITORY: Final = "mcp-sandbox/ready"
LABEL_AGENT: Final = "mcp-sandbox.agent"
LABEL_USER: Final = "mcp-sandbox.user"
LABEL_BASE: Final = "mcp-sandbox.base"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyImage:
    """An image that a container can start from as it is."""

    image_id: str
    user: SandboxUser


@cache
def agent_digest(machine: str) -> str:
    """Return a name for what is put into containers of an architecture. Blocks."""
    return hashlib.sha256(guest_binary(machine) + build_filter(machine, one_id=False)).hexdigest()[:20]


def ready_labels(image: ImageFacts, user: SandboxUser) -> "dict[str, str]":
    """Return the labels by which an image is known as ready. Blocks."""
    about = json.dumps(asdict(user)).encode().hex()  # quotes are read in different ways by Docker and Podman
    return {LABEL_AGENT: agent_digest(image.machine), LABEL_USER: about, LABEL_BASE: image.image_id}


class ReadyImages:
    """Of one engine."""

    def __init__(self, client: DockerClient) -> None:
        self._client = client

    async def find(self, image: ImageFacts) -> ReadyImage | None:
        """Return the image itself if it is ready, else the one made from it, if there is one."""
        if (own := _read(image.image_id, image.labels, image)) is not None:
            return own
        try:
            found = await self._client.call("No image", lambda api: api.inspect_image(_name(image)))
        except NotFoundError:
            return None
        config: Mapping[str, Any] = found.get("Config") or {}
        return _read(str(found["Id"]), config.get("Labels") or {}, image)

    async def keep(self, container: str, image: ImageFacts, user: SandboxUser) -> None:
        """Make an image from a container that was not started and holds nothing else. A failure only costs time."""
        labels = {**ready_labels(image, user), LABEL_SANDBOX: "", LABEL_STATE: ""}
        changes = [f"LABEL {name}={json.dumps(value)}" for name, value in labels.items()]
        try:
            await self._client.call(
                "No image", lambda api: api.commit(container, REPOSITORY, _tag(image), pause=False, changes=changes)
            )
        except SandboxError as error:
            _log.warning("image %s has to be prepared for every sandbox: %s", image.name, error)

    async def collect(self) -> "list[str]":
        """Remove those for an older agent, or whose own image is gone, unless a container needs them; return them."""
        removed: list[str] = []
        for row in await self._client.call("No list of images", lambda api: api.images(REPOSITORY)):
            labels: dict[str, str] = row.get("Labels") or {}
            if not await self._is_needed(labels):
                with suppress(SandboxError):  # it is in use
                    await self._client.call("No image", lambda api, row=row: api.remove_image(row["Id"]))
                    removed.append(str(row["Id"]))
        return removed

    async def _is_needed(self, labels: "dict[str, str]") -> bool:
        try:
            base = await self._client.call("No image", lambda api: api.inspect_image(labels.get(LABEL_BASE, "none")))
        except NotFoundError:
            return False
        machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(str(base["Architecture"]), str(base["Architecture"]))
        with suppress(SandboxError):
            return labels.get(LABEL_AGENT) == agent_digest(machine)
        return True


def _name(image: ImageFacts) -> str:
    return f"{REPOSITORY}:{_tag(image)}"


def _tag(image: ImageFacts) -> str:
    return hashlib.sha256(f"{image.image_id} {agent_digest(image.machine)}".encode()).hexdigest()[:20]


def _read(image_id: str, labels: Mapping[str, Any], image: ImageFacts) -> ReadyImage | None:
    if labels.get(LABEL_AGENT) != agent_digest(image.machine):
        return None
    try:
        return ReadyImage(image_id=image_id, user=SandboxUser(**json.loads(bytes.fromhex(labels[LABEL_USER]))))
    except (KeyError, ValueError, TypeError):
        return None
