"""A fresh sandbox of any provider with the command use cases on it, as the service tests need it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_sandbox.core.errors import ProviderUnavailableError
from mcp_sandbox.core.files import ReadRequest
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.providers import registry as providers
from mcp_sandbox.service.command import Outcome
from mcp_sandbox.service.connections import LiveSandbox
from mcp_sandbox.service.execution import CommandRequest, ExecutionService
from mcp_sandbox.service.output import Captured
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.store.record import Owner
from mcp_sandbox.store.registry import Registry
from mcp_sandbox.store.snapshots import SnapshotStore

__all__ = ["CommandWorld", "open_command_world", "whole"]


@dataclass(frozen=True)
class CommandWorld:
    """The service under test, and the sandbox that it uses."""

    service: ExecutionService
    live: LiveSandbox

    async def run(self, command: str, **fields: Any) -> Outcome:
        """Run a command line."""
        return await self.service.run(CommandRequest(command=command, **fields))

    async def get(self, path: str) -> bytes:
        """Return the bytes of a file in the sandbox."""
        async with await self.live.sandbox.read(ReadRequest(path=path)) as reader:
            return b"".join([chunk async for chunk in reader])

    async def get_if_there(self, path: str) -> bytes:
        """Return the bytes of a file in the sandbox; none if there is no file."""
        try:
            return await self.get(path)
        except FileNotFoundError:
            return b""

    async def processes(self, pattern: str) -> int:
        """Return how many processes in the sandbox have `pattern` in their arguments."""
        script = (
            "n=0; for f in /proc/[0-9]*/cmdline; do "
            f"tr '\\0' ' ' <$f 2>/dev/null | grep -q '{pattern}' && n=$((n+1)); done; echo $n"
        )
        # The shell that counts has the pattern in its own arguments.
        return int(whole((await self.run(script)).stdout)) - 1


def whole(captured: Captured) -> str:
    """Return the text of a stretch that was not cut."""
    assert not captured.omitted_bytes
    return (captured.head + captured.tail).decode()


@asynccontextmanager
async def open_command_world(provider: str, directory: Path) -> AsyncGenerator[CommandWorld]:
    """Open a server's worth of services on a directory of state, or skip the test where the provider does not work."""
    for name in ("registry", "snapshots", "providers"):
        (directory / name).mkdir(mode=0o700, exist_ok=True)
    sandboxes = SandboxService(
        registry=Registry(directory / "registry"),
        snapshots=SnapshotStore(directory / "snapshots"),
        open_provider=lambda name: providers.load(name, directory / "providers"),
        owner=Owner(principal="me", project=""),
        provider=provider,
        template=SandboxSpec(id=SandboxId("sb_template")),
    )
    async with sandboxes, ExecutionService(sandboxes) as execution:
        try:
            live = await sandboxes.open()
        except ProviderUnavailableError as error:
            pytest.skip(str(error))
        yield CommandWorld(execution, live)
