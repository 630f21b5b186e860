"""What a container really runs on, found after it has started: a name in a request proves nothing."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mcp_sandbox.core.capability import Isolation
from mcp_sandbox.core.errors import ProviderError
from mcp_sandbox.engines.docker_facts import EngineFacts
from mcp_sandbox.engines.kernels import Kernel, boundary

__all__ = ["Found", "found_runtime"]


_NO_ANSWER: Final = ("", "oci")
"""Podman says `oci` of every container."""


class Found(NamedTuple):
    """What a sandbox runs on."""

    runtime: str
    isolation: Isolation


def found_runtime(asked: str, inspected: Mapping[str, Any], kernel: Kernel, facts: EngineFacts) -> Found:
    """Return what a container runs on.

    Args:
        asked: The runtime that it was to have; empty is the engine's default.
        inspected: What the engine says about the container.
        kernel: What its agent was told by the kernel.
        facts: About the engine.

    Raises:
        ProviderError: It is something else, or a weaker boundary than that runtime is known for.
    """
    wanted = asked or facts.default_runtime
    said = str(inspected["HostConfig"].get("Runtime") or "")
    runtime = wanted if said in _NO_ANSWER else said
    promised = facts.runtimes.get(wanted, Isolation.CONTAINER)
    isolation = boundary(kernel, facts.kernel, promised)
    if (asked and runtime != asked) or isolation < promised:
        seen = f"the engine says {runtime!r}, and the kernel inside calls itself {kernel.release!r} ({isolation.name})"
        raise ProviderError(
            f"The sandbox does not run on {wanted!r}",
            why=f"{seen}, where {promised.name} was expected",
            fix="Look into the engine's configuration of this runtime, or choose another one",
        )
    return Found(runtime, isolation)
