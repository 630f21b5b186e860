"""The contract, run against containers of real engines: Docker, Docker with gVisor as runtime, Podman.

The whole of it runs on Docker. On the others a run of all tests leaves out what is the agent's alone, which is the same
program there: `MCP_SANDBOX_CONTRACT=whole` runs that as well (10 minutes more).
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar, Final

import pytest

from mcp_sandbox.core.provider import Provider
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.testing.archives import ArchiveContract
from mcp_sandbox.testing.directories import DirectoryContract
from mcp_sandbox.testing.execution import ExecutionContract
from mcp_sandbox.testing.files import FileContract
from mcp_sandbox.testing.kit import ProviderContract
from mcp_sandbox.testing.ports import PortContract
from tests.containers.engines import Dockerd, Engine, Podman

__all__ = ["TestDocker", "TestDockerOnGvisor", "TestPodman"]

_OF_THE_AGENT: Final = (ArchiveContract, DirectoryContract, ExecutionContract, FileContract, PortContract)


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


class _OtherEngineContract(ProviderContract):
    """What an engine can change, and what it is known to change."""

    odd: ClassVar[dict[str, str]] = {}
    """Names of tests that cannot pass there, with the parameter if it is that one only, and why."""

    @pytest.fixture(autouse=True)
    def chosen(self, request: pytest.FixtureRequest) -> None:
        """Skip what is odd there, and what is the agent's."""
        if reason := self.odd.get(request.node.originalname) or self.odd.get(request.node.name):
            pytest.skip(reason)
        contract = next(kind for kind in type(self).__mro__ if request.node.originalname in vars(kind))
        if contract in _OF_THE_AGENT and os.environ.get("MCP_SANDBOX_CONTRACT") != "whole":
            pytest.skip("the agent is the same on every engine: MCP_SANDBOX_CONTRACT=whole runs it here, too")


class TestDockerOnGvisor(_OtherEngineContract):
    """The same engine, with a kernel between programs and the host's."""

    odd: ClassVar = {
        "test_b010_a_deadline_kills_the_whole_tree[a tree that is stopped]": "gVisor ends what is stopped in a process "
        "group without a parent in its session: SIGHUP; `test_closing_a_live_command_ends_its_tree` kills that tree",
        "test_b039_a_fork_bomb_is_contained_and_the_next_command_works": "a bomb takes gVisor's processors: the next "
        "command waits long; the next server ends it: `test_res01_a_fork_bomb_that_hides_...`",
    }

    @pytest.fixture
    async def provider(self, dockerd: Dockerd, tmp_path: Path) -> AsyncIterator[Provider]:
        """A provider whose sandboxes run on `runsc`."""
        if "runsc" not in dockerd.runtimes:
            pytest.skip("no runsc here: tests/containers/install-runsc")
        async with _provider(dockerd, tmp_path, "runsc") as provider:
            yield provider


class TestPodman(_OtherEngineContract):
    """Rootless where the tests are."""

    odd: ClassVar = {
        "test_the_project_is_there_with_modes_times_and_links": "Podman unpacks with times in microseconds",
    }

    @pytest.fixture
    async def provider(self, podman: Podman, tmp_path: Path) -> AsyncIterator[Provider]:
        """A provider on Podman's socket."""
        async with _provider(podman, tmp_path) as provider:
            yield provider
