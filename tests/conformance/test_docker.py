"""The contract, run against containers of a real Docker engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mcp_sandbox.core.provider import Provider
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.testing.kit import ProviderContract
from tests.containers.engines import Dockerd

__all__ = ["TestDocker"]


class TestDocker(ProviderContract):
    """Skipped where no engine can be started for it."""

    @pytest.fixture
    async def provider(self, dockerd: Dockerd, tmp_path: Path) -> AsyncIterator[Provider]:
        """A provider on an engine of our own."""
        environ = {"DOCKER_HOST": dockerd.host, "HOME": str(tmp_path)}
        async with DockerProvider(tmp_path / "state", image=dockerd.base, environ=environ) as provider:
            yield provider
