"""The end of a container while somebody waits for a command in it: noticed at once, and explained.

A connection into a container does not end with it everywhere: the one through gVisor's shim stays for a minute.
"""

from collections.abc import Mapping
from typing import Any, Final

import anyio

from mcp_sandbox.core.errors import NotFoundError, SandboxError
from mcp_sandbox.core.exec import Termination
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines.docker_client import DockerClient
from mcp_sandbox.engines.docker_stream import CONNECT_S, open_connection
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.engines.verdicts import size_text

__all__ = ["how_it_ended", "watch_container"]

_KILLED: Final = 137
SETTLE_S: Final = 1.5
_ANSWER_MAX: Final = 65_536


async def watch_container(
    client: DockerClient, version: str, container: str, carrier: StreamCarrier, limits: Limits, *, own_kernel: bool
) -> None:
    """Wait until a container ends, then end a connection into it.

    Args:
        client: Of its engine.
        version: Of the engine's API.
        container: Its id.
        carrier: Ended with it; asks for the reason also if it ends by itself.
        limits: Of the sandbox.
        own_kernel: Whether the container runs on a kernel of its own, which the host kills as a whole at the limit.
    """

    async def why() -> tuple[Termination, str]:
        try:  # first without the SDK, which leaves a socket open that it cannot connect
            await anyio.aclose_forcefully(await open_connection(client.endpoint))
        except OSError as error:
            words = error.strerror or type(error).__name__
            return Termination.LOST, f"the container engine does not answer ({words})"
        try:
            found = await client.call("No container", lambda api: api.inspect_container(container))
            with anyio.move_on_after(SETTLE_S):  # connections end before the engine knows of the container's end
                while found["State"].get("Running"):
                    await anyio.sleep(0.05)
                    found = await client.call("No container", lambda api: api.inspect_container(container))
        except NotFoundError:
            return Termination.LOST, "the sandbox was destroyed while the command ran"
        except SandboxError as error:
            return Termination.LOST, f"the connection to the sandbox ended, and {error.why}"
        return how_it_ended(found["State"], limits, own_kernel=own_kernel)

    carrier.on_loss = why
    try:
        if await _has_ended(client, version, container):
            await carrier.cut()
    except (OSError, anyio.EndOfStream, anyio.BrokenResourceError, TimeoutError):
        pass  # an engine that is gone ends the connection as well


async def _has_ended(client: DockerClient, version: str, container: str) -> bool:
    """Wait for the end of a container; `False` if the engine does not tell it."""
    with anyio.fail_after(CONNECT_S):
        stream = await open_connection(client.endpoint)
    try:
        await stream.send(
            f"POST /v{version}/containers/{container}/wait?condition=not-running HTTP/1.1\r\n"
            "Host: docker\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()
        )
        received = b""
        while b'"StatusCode"' not in received and len(received) < _ANSWER_MAX:
            received += await stream.receive()
        return b'"StatusCode"' in received
    finally:
        await anyio.aclose_forcefully(stream)


def how_it_ended(state: Mapping[str, Any], limits: Limits, *, own_kernel: bool) -> tuple[Termination, str]:
    """Return what ended a container, from `State` of its inspection, for whoever ran a command in it."""
    code = int(state.get("ExitCode") or 0)
    if state.get("Running"):
        return Termination.LOST, "the connection to the sandbox ended while the command ran"
    at_limit = bool(state.get("OOMKilled")) or (own_kernel and code == _KILLED)
    if at_limit and limits.memory_bytes is not None:
        return Termination.OOM, f"the whole sandbox was killed at the memory limit, {size_text(limits.memory_bytes)}"
    return Termination.LOST, f"the container ended (exit {code}) while the command ran"
