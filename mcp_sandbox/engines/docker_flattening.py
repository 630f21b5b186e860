"""An image of many layers made one of two: container engines end at 125, and every generation of snapshots adds one.

Everything in it is written anew, the base too, so it is done rarely. What a killed process leaves is a container that
was never finished and an image under a name of what was discarded; both are collected.
"""

import secrets
from contextlib import suppress
from typing import Any, Final

import anyio

from mcp_sandbox.core.errors import ProviderError
from mcp_sandbox.engines.docker_container import LABEL_SANDBOX, LABEL_STATE
from mcp_sandbox.engines.docker_engine import DockerEngine

__all__ = ["MOST_LAYERS", "flatten", "has_many_layers"]

MOST_LAYERS: Final = 110


async def has_many_layers(engine: DockerEngine, image: str) -> bool:
    """Whether an image should get no further layer."""
    found = await engine.client.call("No image", lambda api: api.inspect_image(image))
    root: dict[str, Any] = found.get("RootFS") or {}
    return len(root.get("Layers") or ()) >= MOST_LAYERS


async def flatten(engine: DockerEngine, repository: str, tag: str, beside: str) -> None:
    """Put an image with the same files, variables and labels and few layers in the place of one.

    Args:
        engine: Has it.
        repository: Of the image.
        tag: Of the image.
        beside: A repository whose images somebody removes.

    Raises:
        ProviderError: The engine cannot; the image is as it was.
    """
    what, name, flat = "The layers of a snapshot are not merged", f"{repository}:{tag}", f"{beside}:{tag}-flat"
    found = await engine.client.call(what, lambda api: api.inspect_image(name))
    config: dict[str, Any] = found.get("Config") or {}
    old: dict[str, str] = config.get("Labels") or {}
    mark = {LABEL_STATE: engine.states.owner, LABEL_SANDBOX: f"merging-{secrets.token_hex(12)}"}
    made: list[str] = []

    async def container(image: str, labels: dict[str, str]) -> str:
        about = {"Image": image, "Cmd": ["none"], "Labels": labels}
        about |= {key: config[key] for key in ("Env", "User", "WorkingDir") if config.get(key)}
        answer = await engine.client.call(
            what, lambda api: api.create_container_from_config(about, f"mcp-sandbox-{secrets.token_hex(16)}")
        )
        made.append(str(answer["Id"]))
        return made[-1]

    try:
        whole = await container(name, mark)
        ours = [f"LABEL {LABEL_STATE}={engine.states.owner}"]
        await engine.client.call(
            what, lambda api: api.import_image_from_data(api.export(whole), repository=flat, changes=ours)
        )
        bare = await container(flat, {**old, **mark})
        changes = [f'LABEL {label}="{old.get(label, "")}"' for label in mark]
        await engine.client.call(what, lambda api: api.commit(bare, repository, tag, pause=False, changes=changes))
    finally:
        with anyio.CancelScope(shield=True), suppress(ProviderError):
            for each in made:
                await engine.maker.remove(each)
