"""The contract, run against containers of real engines: Docker, Docker with gVisor as runtime, Podman."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mcp_sandbox.core.provider import Provider
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.testing.confinement import ConfinementContract
from mcp_sandbox.testing.kit import ProviderContract
from mcp_sandbox.testing.lifecycle import LifecycleContract
from mcp_sandbox.testing.snapshots import SnapshotContract
from tests.containers.engines import Dockerd, Engine, Podman

__all__ = ["TestDocker", "TestDockerOnGvisor", "TestPodman"]


def _provider(engine: Engine, directory: Path, runtime: str | None = None) -> DockerProvider:
    environ = {"DOCKER_HOST": engine.host, "HOME": str(directory)}
    return DockerProvider(directory / "state", image=engine.base, runtime=runtime, environ=environ)


class TestDocker(ProviderContract):
    """Skipped, as those below, where no such engine can be started."""

    @pytest.fixture
    async def provider(self, dockerd: Dockerd, tmp_path: Path) -> AsyncIterator[Provider]:
        """A provider on an engine of our own."""
        async with _provider(dockerd, tmp_path) as provider:
            yield provider


class TestDockerOnGvisor(LifecycleContract, SnapshotContract, ConfinementContract):
    """The same engine, with a kernel between programs and the host's: what that can change.

    Commands and files inside are tested on provider `gvisor`, with the same kernel.
    """

    @pytest.fixture
    async def provider(self, dockerd: Dockerd, tmp_path: Path) -> AsyncIterator[Provider]:
        """A provider whose sandboxes run on `runsc`."""
        if "runsc" not in dockerd.runtimes:
            pytest.skip("no runsc here: tests/containers/install-runsc")
        async with _provider(dockerd, tmp_path, "runsc") as provider:
            yield provider


class TestPodman(LifecycleContract, ConfinementContract):
    """Rootless where the tests are: what another engine can change. The agent inside is the same."""

    @pytest.fixture
    async def provider(self, podman: Podman, tmp_path: Path) -> AsyncIterator[Provider]:
        """A provider on Podman's socket."""
        async with _provider(podman, tmp_path) as provider:
            yield provider
