"""What every contract class stands on: the fixtures, and the reasons for which a test may be skipped."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mcp_sandbox.core.capability import Capabilities, Isolation
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.testing.driving import new_spec, run

__all__ = ["Canary", "Contract"]


class Canary(NamedTuple):
    """Secrets of the host that nothing inside may ever show."""

    token: str
    """In the value of an environment variable, in a file's name and in its content."""
    file: Path
    """A file on the host that anybody there may read."""


class Contract:
    """Fixtures that all contracts share. A provider's test class overrides `provider`."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Asyncio is the one event loop that providers support."""
        return "asyncio"

    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        """Override: yield an opened provider."""
        raise NotImplementedError
        yield

    @pytest.fixture(autouse=True)
    def canary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Canary:
        """Plant secrets in this process and on its disk before the provider opens."""
        token = f"canary{secrets.token_hex(12)}"
        file = tmp_path / f"{token}.txt"
        file.write_text(token)
        file.chmod(0o644)
        monkeypatch.setenv("MCP_SANDBOX_CONTRACT_CANARY", token)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", token)
        return Canary(token, file)

    @pytest.fixture
    def host_paths(self) -> tuple[str, ...]:
        """Override: paths of the host, such as the provider's own state, that nothing inside may mention."""
        return ()

    @pytest.fixture
    def capabilities(self, provider: Provider) -> Capabilities:
        """What the provider declares."""
        return provider.capabilities

    @pytest.fixture
    async def sandbox(self, provider: Provider) -> AsyncIterator[Sandbox]:
        """A new sandbox that asks for nothing undeclared."""
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            yield sandbox
        await provider.destroy(spec.id)

    @pytest.fixture
    def programs(self, capabilities: Capabilities) -> None:
        """Real programs and a POSIX shell, or a skip."""
        if not capabilities.runs_programs:
            pytest.skip("the provider declares runs_programs=False: no shell, no processes")

    @pytest.fixture
    async def python(self, programs: None, sandbox: Sandbox) -> str:
        """The name of a Python inside, or a skip."""
        if (await run(sandbox, "python3", "-c", "import ctypes")).exit_code != 0:
            pytest.skip("there is no python3 inside, which this test probes with")
        return "python3"

    @pytest.fixture
    def machine(self, programs: None, sandbox: Sandbox) -> Sandbox:
        """A new sandbox that runs real programs, or a skip."""
        return sandbox

    @pytest.fixture
    def confined(self, capabilities: Capabilities, machine: Sandbox) -> Sandbox:
        """A new sandbox with a boundary around it, or a skip."""
        if capabilities.isolation < Isolation.NAMESPACE:
            pytest.skip(f"the provider declares isolation {capabilities.isolation.name}: it promises no boundary")
        return machine

    @pytest.fixture
    def shared_kernel(self, capabilities: Capabilities, confined: Sandbox) -> Sandbox:
        """A new confined sandbox whose programs run on the kernel of the host, or a skip."""
        if capabilities.isolation >= Isolation.USER_KERNEL:
            pytest.skip(f"the provider declares isolation {capabilities.isolation.name}: the kernel inside is its own")
        return confined
