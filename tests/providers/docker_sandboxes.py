"""Providers on an engine of our own, and what its client says about their containers."""

import json
from pathlib import Path
from typing import Any

import anyio

from mcp_sandbox.providers.docker import DockerProvider
from tests.containers.engines import Engine, EngineError

__all__ = ["inspected", "is_running", "provider_on", "wait_until_stopped"]


def provider_on(engine: Engine, state: Path, *, image: str = "", runtime: str | None = None) -> DockerProvider:
    """Return a provider that keeps its state in a directory."""
    environ = {"DOCKER_HOST": engine.host, "HOME": str(state.parent)}
    return DockerProvider(state, image=image or engine.base, runtime=runtime, environ=environ)


def inspected(engine: Engine, sandbox: str) -> dict[str, Any]:
    """Return all that the engine says about the container of a sandbox."""
    (found,) = json.loads(engine.run("inspect", f"mcp-sandbox-{sandbox}"))
    return dict(found)


def is_running(engine: Engine, sandbox: str) -> bool:
    """Whether a sandbox has processes."""
    try:
        return bool(inspected(engine, sandbox)["State"]["Running"])
    except EngineError:
        return False


async def wait_until_stopped(engine: Engine, sandbox: str, within_s: float) -> None:
    """Wait until a sandbox has no processes any more."""
    with anyio.fail_after(within_s):
        while await anyio.to_thread.run_sync(is_running, engine, sandbox):
            await anyio.sleep(0.1)
