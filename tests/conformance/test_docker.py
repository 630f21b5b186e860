"""The contract, run against containers of real engines: Docker, Docker with gVisor as runtime, Podman.

The whole of it runs on Docker. On the others a run of all tests leaves out what their kernel or engine has no part in:
`MCP_SANDBOX_CONTRACT=whole` runs that as well. A container costs half a second and more, so tests of commands, files
and processes share one, which is emptied between them.
"""

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import pytest

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.files import RemoveRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.testing.archives import ArchiveContract
from mcp_sandbox.testing.differences import DifferenceContract
from mcp_sandbox.testing.directories import DirectoryContract
from mcp_sandbox.testing.driving import entries, new_spec
from mcp_sandbox.testing.execution import ExecutionContract
from mcp_sandbox.testing.files import FileContract
from mcp_sandbox.testing.kernel import KernelContract
from mcp_sandbox.testing.kit import ProviderContract
from mcp_sandbox.testing.ports import PortContract
from mcp_sandbox.testing.trees import ProcessTreeContract
from tests.containers.engines import Dockerd, Engine, Podman

__all__ = ["TestDocker", "TestDockerOnGvisor", "TestPodman"]

_OF_THE_AGENT: Final = (ArchiveContract, DirectoryContract, ExecutionContract, FileContract, PortContract)
_OF_THE_KERNEL: Final = (KernelContract, ProcessTreeContract)
_LONG: Final = ("test_a_long_chain_of_snapshots_keeps_every_link",)
_SHARING: Final = (*_OF_THE_AGENT, *_OF_THE_KERNEL)
"""Whose tests are content with a sandbox that others had."""


@dataclass(slots=True)
class _Shared:
    """A sandbox that is handed from test to test."""

    directory: Path
    engine: Engine | None = None
    sandbox: SandboxId | None = None


@pytest.fixture(scope="class")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Shared]:
    """What tests of commands, files and processes share."""
    shared = _Shared(tmp_path_factory.mktemp("shared"))
    yield shared
    if shared.engine is not None and shared.sandbox is not None:
        shared.engine.run("rm", "--force", f"mcp-sandbox-{shared.sandbox}")


async def _empty(sandbox: Sandbox) -> None:
    """End everything in a sandbox, and remove what lies where tests write."""
    async with await sandbox.exec(ExecRequest(argv=("sh", "-c", "kill -9 -1"))) as execution:
        await execution.wait()
    for place in ("/workspace", "/tmp"):
        for name in await entries(sandbox, place):
            await sandbox.remove(RemoveRequest(path=f"{place}/{name}", recursive=True))


class _ContainerContract(ProviderContract):
    """On one engine and runtime."""

    runtime: ClassVar[str | None] = None
    left_out: ClassVar[tuple[type, ...]] = ()
    """What runs only if the whole contract was asked for."""
    long: ClassVar[tuple[str, ...]] = ()
    """Names of tests of which the same holds, for the time that they take."""
    odd: ClassVar[dict[str, str]] = {}
    """Names of tests that cannot pass there, with the parameter if it is that one only, and why."""

    @pytest.fixture
    def engine(self) -> Engine:
        """Override: an engine of our own."""
        raise NotImplementedError

    @pytest.fixture
    def contract(self, request: pytest.FixtureRequest) -> type:
        """The class that the test belongs to; skipped if it is not for this engine."""
        name = request.node.originalname
        if reason := self.odd.get(name) or self.odd.get(request.node.name):
            pytest.skip(reason)
        contract = next(kind for kind in type(self).__mro__ if name in vars(kind))
        if (contract in self.left_out or name in self.long) and os.environ.get("MCP_SANDBOX_CONTRACT") != "whole":
            pytest.skip("the engine has no part in it: MCP_SANDBOX_CONTRACT=whole runs it here, too")
        return contract

    @pytest.fixture
    async def provider(
        self, contract: type, engine: Engine, shared: _Shared, tmp_path: Path
    ) -> AsyncIterator[Provider]:
        """A provider on the engine."""
        shared.engine = engine
        directory = shared.directory if contract in _SHARING else tmp_path
        environ = {"DOCKER_HOST": engine.host, "HOME": str(directory)}
        async with DockerProvider(
            directory / "state", image=engine.base, runtime=self.runtime, environ=environ
        ) as provider:
            yield provider

    @pytest.fixture
    async def sandbox(self, contract: type, provider: Provider, shared: _Shared) -> AsyncIterator[Sandbox]:
        """A new sandbox that asks for nothing undeclared, or one as good as new."""
        sandbox = await provider.attach(shared.sandbox) if shared.sandbox and contract in _SHARING else None
        shared.sandbox = None
        async with sandbox or await provider.create(new_spec(provider.capabilities)) as sandbox:
            yield sandbox
            if contract in _SHARING:
                try:
                    await _empty(sandbox)
                    shared.sandbox = sandbox.id
                    return
                except (SandboxError, OSError):
                    pass  # the next one gets another one
        await provider.destroy(sandbox.id)


class TestDocker(_ContainerContract):
    """Skipped, as those below, where no such engine can be started."""

    @pytest.fixture
    def engine(self, dockerd: Dockerd) -> Engine:
        """Docker Engine."""
        return dockerd


class TestDockerOnGvisor(_ContainerContract):
    """The same engine, with a kernel between programs and the host's."""

    runtime = "runsc"
    left_out, long = _OF_THE_AGENT, _LONG
    odd: ClassVar = {
        "test_b010_a_deadline_kills_the_whole_tree[a tree that is stopped]": "gVisor ends what is stopped in a process "
        "group without a parent in its session: SIGHUP; `test_closing_a_live_command_ends_its_tree` kills that tree",
        "test_b039_a_fork_bomb_is_contained_and_the_next_command_works": "a bomb takes gVisor's processors: the next "
        "command waits long; the next server ends it: `test_res01_a_fork_bomb_that_hides_...`",
    }

    @pytest.fixture
    def engine(self, dockerd: Dockerd) -> Engine:
        """Docker Engine that knows runsc."""
        if "runsc" not in dockerd.runtimes:
            pytest.skip("no runsc here: tests/containers/install-runsc")
        return dockerd


class TestPodman(_ContainerContract):
    """Rootless where the tests are."""

    left_out, long = (*_OF_THE_AGENT, *_OF_THE_KERNEL, DifferenceContract), _LONG
    odd: ClassVar = {
        "test_the_project_is_there_with_modes_times_and_links": "Podman unpacks with times in microseconds",
    }

    @pytest.fixture
    def engine(self, podman: Podman) -> Engine:
        """Podman's service."""
        return podman
