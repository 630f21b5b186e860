"""Servers of one user and one state directory, as the tests of sandboxes and snapshots need them."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from anyio import to_thread

from mcp_sandbox.core.errors import ProviderUnavailableError
from mcp_sandbox.core.exec import ExecRequest, Exited
from mcp_sandbox.core.files import ReadRequest, WriteRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.providers import registry as providers
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.snapshots import SnapshotService
from mcp_sandbox.store.directories import StateDirectories, open_state
from mcp_sandbox.store.record import Owner, SandboxRecord
from mcp_sandbox.store.registry import Registry
from mcp_sandbox.store.snapshots import SnapshotStore

__all__ = ["Server", "World", "content", "put", "run", "working_server"]


def _unwrapped(provider: Provider) -> Provider:
    return provider


@dataclass(frozen=True)
class Server:
    """One server of the world."""

    sandboxes: SandboxService
    snapshots: SnapshotService


@dataclass
class World:
    """A state directory and a provider, on which any number of servers run."""

    state: StateDirectories
    provider: str = "memory"
    wrap: Callable[[Provider], Provider] = _unwrapped
    registry_class: type[Registry] = Registry
    aliases: dict[str, str] = field(default_factory=dict[str, str])
    """Further names of providers."""
    opened: list[str] = field(default_factory=list[str])
    """Names of the providers in the order in which they were constructed."""

    @classmethod
    def make(cls, tmp_path: Path, provider: str = "memory") -> "World":
        """Return a world in a fresh directory."""
        return cls(open_state({"MCP_SANDBOX_HOME": str(tmp_path / "state")}), provider)

    @property
    def registry(self) -> Registry:
        """The registry as a newcomer sees it."""
        return self.registry_class(self.state.registry)

    @property
    def store(self) -> SnapshotStore:
        """The snapshot records as a newcomer sees them."""
        return SnapshotStore(self.state.snapshots)

    async def records(self) -> tuple[SandboxRecord, ...]:
        """Return what the registry holds of the principal of every server."""
        return await to_thread.run_sync(lambda: self.registry.list(principal="me"))

    @asynccontextmanager
    async def engine(self) -> AsyncGenerator[Provider]:
        """Reach the engine past every server."""
        async with providers.load(self.provider, self.state.root / "providers" / self.provider) as provider:
            yield provider

    @asynccontextmanager
    async def server(
        self,
        *,
        project: str = "/p",
        principal: str = "me",
        provider: str = "",
        everywhere: bool = False,
        max_sandboxes: int = 256,
        env: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Server]:
        """Start a server."""

        def make(name: str) -> Provider:
            self.opened.append(name)
            return self.wrap(providers.load(self.aliases.get(name, name), self.state.provider(name)))

        async with SandboxService(
            registry=self.registry,
            snapshots=self.store,
            open_provider=make,
            owner=Owner(principal=principal, project=project),
            provider=provider or self.provider,
            is_asked=bool(provider),
            template=SandboxSpec(id=SandboxId("template"), env=env or {}),
            everywhere=everywhere,
            patience_s=0.5,
            max_sandboxes=max_sandboxes,
        ) as sandboxes:
            yield Server(sandboxes, SnapshotService(sandboxes))


@asynccontextmanager
async def working_server(world: World) -> AsyncGenerator[Server]:
    """Start a server with its default sandbox and destroy all that it has at the end; skip where the engine cannot."""
    async with world.server() as opened:
        try:
            live = await opened.sandboxes.open()
        except ProviderUnavailableError as error:
            pytest.skip(str(error))
        yield opened
        for summary in await opened.sandboxes.list():
            await opened.sandboxes.destroy(summary.record.id)
        assert live.record.id


async def put(sandbox: Sandbox, path: str, text: str, mode: int | None = None) -> None:
    """Write a file."""
    await sandbox.write(WriteRequest(path=path, mode=mode), text.encode())


async def content(sandbox: Sandbox, path: str) -> str:
    """Return the text of a file."""
    async with await sandbox.read(ReadRequest(path=path)) as reader:
        return b"".join([chunk async for chunk in reader]).decode()


async def run(sandbox: Sandbox, *argv: str) -> str:
    """Return the output of a command."""
    output = b""
    async with await sandbox.exec(ExecRequest(argv=argv, timeout_s=20)) as execution:
        while not isinstance(event := await execution.receive(), Exited):
            output += event.data
    assert event.result.exit_code == 0, event.result
    return output.decode()
