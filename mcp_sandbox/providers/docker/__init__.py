"""Provider `docker`: containers of Docker, Podman and what speaks their API."""

from mcp_sandbox.providers.docker.provider import DockerProvider
from mcp_sandbox.providers.docker.sandbox import DockerSandbox

__all__ = ["DockerProvider", "DockerSandbox"]
