"""A sandbox of any provider with the file use cases on it, as the service tests need it."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcp_sandbox.core.errors import InvalidRequestError, ProviderUnavailableError
from mcp_sandbox.core.exec import ExecRequest, Exited
from mcp_sandbox.core.files import ReadRequest, WriteRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec, Workspace
from mcp_sandbox.providers import registry as providers
from mcp_sandbox.service.edit import Edit
from mcp_sandbox.service.files import FileService
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.search import SearchService
from mcp_sandbox.store.record import Owner
from mcp_sandbox.store.registry import Registry
from mcp_sandbox.store.snapshots import SnapshotStore

__all__ = ["World", "open_world"]

_EMPTY = Workspace()


@dataclass(frozen=True)
class World:
    """A sandbox, and the service under test on it."""

    files: FileService
    search: SearchService
    sandbox: Sandbox

    async def put(self, path: str, data: bytes, mode: int | None = None) -> None:
        """Put bytes in a file."""
        await self.sandbox.write(WriteRequest(path=f"/workspace/{path}", mode=mode), data)

    async def get(self, path: str) -> bytes:
        """Return the bytes of a file."""
        async with await self.sandbox.read(ReadRequest(path=f"/workspace/{path}")) as reader:
            return b"".join([chunk async for chunk in reader])

    async def view(self, path: str, *, offset: int = 1, limit: int = 2000) -> str:
        """Return what a reader of a file is told."""
        return (await self.files.read_file(None, path, offset=offset, limit=limit)).text

    async def edit(self, path: str, old: str, new: str, *, replace_all: bool = False) -> str:
        """Edit a file; return what is told."""
        return (await self.files.edit_file(None, path, Edit(old=old, new=new, replace_all=replace_all))).text

    async def listed(self, pattern: str = "", path: str = "") -> list[str]:
        """Return the lines that a lister is told."""
        return (await self.files.list_files(None, pattern, path)).text.split("\n")

    async def refused(self, call: Callable[[], Awaitable[object]]) -> str:
        """Return what a refused caller is told."""
        with pytest.raises(InvalidRequestError) as caught:
            await call()
        return str(caught.value)

    async def run(self, script: str) -> None:
        """Run a shell script in the workspace."""
        request = ExecRequest(argv=("/bin/sh", "-c", script), timeout_s=20)
        async with await self.sandbox.exec(request) as execution:
            while not isinstance(event := await execution.receive(), Exited):
                pass
        assert event.result.exit_code == 0, event.result


def _unwrapped(provider: Provider) -> Provider:
    return provider


async def open_world(
    provider: str,
    tmp_path: Path,
    *,
    workspace: Workspace = _EMPTY,
    wrap: Callable[[Provider], Provider] = _unwrapped,
) -> AsyncGenerator[World]:
    """Open a fresh sandbox of a provider, or skip the test where that provider does not work."""
    directories = [tmp_path / name for name in ("registry", "snapshots", "providers")]
    for directory in directories:
        directory.mkdir(mode=0o700)
    service = SandboxService(
        registry=Registry(directories[0]),
        snapshots=SnapshotStore(directories[1]),
        open_provider=lambda name: wrap(providers.load(name, directories[2])),
        owner=Owner(principal="me", project=workspace.source or ""),
        provider=provider,
        template=SandboxSpec(id=SandboxId("sb_template"), workspace=workspace),
    )
    async with service:
        try:
            live = await service.open()
        except ProviderUnavailableError as error:
            pytest.skip(str(error))
        yield World(FileService(service), SearchService(service), live.sandbox)
        await service.destroy(live.record.id)
