"""Plain delegation: a wrapper overrides what it is about and inherits the rest."""

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.differences import Differences, DiffRequest
from mcp_sandbox.core.examination import Examination
from mcp_sandbox.core.exec import ExecEvent, ExecRequest, ExecResult, Execution
from mcp_sandbox.core.files import (
    DownloadRequest,
    FileInfo,
    FileReader,
    Listing,
    ListRequest,
    MkdirRequest,
    ReadRequest,
    RemoveRequest,
    RenameRequest,
    StatRequest,
    UploadRequest,
    WriteRequest,
    WriteResult,
)
from mcp_sandbox.core.image import Image, ImageRequest
from mcp_sandbox.core.leftovers import Leftover, Remembered
from mcp_sandbox.core.ports import Connection, DialRequest
from mcp_sandbox.core.provider import Forked, Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxInfo, SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest

__all__ = ["DelegatingExecution", "DelegatingProvider", "DelegatingSandbox"]


class DelegatingExecution(Execution):
    """An execution that passes everything on to another one."""

    def __init__(self, inner: Execution) -> None:
        self._inner = inner

    async def receive(self) -> ExecEvent:
        """Return the next event."""
        return await self._inner.receive()

    async def write_stdin(self, data: bytes) -> None:
        """Write all of `data`."""
        await self._inner.write_stdin(data)

    async def close_stdin(self) -> None:
        """Let the command read end of file."""
        await self._inner.close_stdin()

    async def signal(self, number: int, *, tree: bool = False) -> None:
        """Send a signal."""
        await self._inner.signal(number, tree=tree)

    async def kill(self) -> None:
        """Kill the whole tree."""
        await self._inner.kill()

    async def wait(self) -> ExecResult:
        """Return the result."""
        return await self._inner.wait()

    async def aclose(self) -> None:
        """Kill what still runs, and free the pipes."""
        await self._inner.aclose()


class DelegatingSandbox(Sandbox):
    """A sandbox that passes everything on to another one."""

    def __init__(self, inner: Sandbox) -> None:
        self._inner = inner

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        """Put the same wrapper around a sandbox that this one made."""
        return DelegatingSandbox(sandbox)

    @property
    def id(self) -> SandboxId:
        """Its id."""
        return self._inner.id

    @property
    def provider_name(self) -> str:
        """The registry name of the provider that serves it."""
        return self._inner.provider_name

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self._inner.capabilities

    async def exec(self, request: ExecRequest) -> Execution:
        """Start a command."""
        return await self._inner.exec(request)

    async def read(self, request: ReadRequest) -> FileReader:
        """Open a file for reading."""
        return await self._inner.read(request)

    async def write(self, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
        """Write a file."""
        return await self._inner.write(request, data)

    async def stat(self, request: StatRequest) -> FileInfo:
        """Look at one path."""
        return await self._inner.stat(request)

    async def list(self, request: ListRequest) -> Listing:
        """List a directory."""
        return await self._inner.list(request)

    async def remove(self, request: RemoveRequest) -> None:
        """Remove a path."""
        await self._inner.remove(request)

    async def rename(self, request: RenameRequest) -> None:
        """Rename a path."""
        await self._inner.rename(request)

    async def mkdir(self, request: MkdirRequest) -> None:
        """Make a directory."""
        await self._inner.mkdir(request)

    async def upload(self, request: UploadRequest, tar: ByteReceiveStream) -> None:
        """Unpack a tar stream."""
        await self._inner.upload(request, tar)

    async def download(self, request: DownloadRequest) -> ByteReceiveStream:
        """Pack a tree as a tar stream."""
        return await self._inner.download(request)

    async def aclose(self) -> None:
        """Let go of the sandbox."""
        await self._inner.aclose()

    async def snapshot(self, request: SnapshotRequest) -> NativeContent:
        """Capture the sandbox."""
        return await self._inner.snapshot(request)

    async def restore(self, content: NativeContent) -> None:
        """Put captured state in place."""
        await self._inner.restore(content)

    async def fork(self, specs: Sequence[SandboxSpec]) -> Forked:
        """Make copies, wrapped like this one."""
        forked = await self._inner.fork(specs)
        return replace(forked, sandboxes=[self.wrap(sandbox) for sandbox in forked.sandboxes])

    async def dial(self, request: DialRequest) -> Connection:
        """Connect to a server inside."""
        return await self._inner.dial(request)

    async def adopt(self, spec: SandboxSpec) -> Sandbox:
        """Become the sandbox that a spec describes."""
        return self.wrap(await self._inner.adopt(spec))


class DelegatingProvider(Provider):
    """A provider that passes everything on to another one, and wraps the sandboxes it gives out."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        """Put the wrapper of this provider around a sandbox."""
        return DelegatingSandbox(sandbox)

    @property
    def name(self) -> str:
        """The registry name of the provider inside."""
        return self._inner.name

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return self._inner.capabilities

    async def __aenter__(self) -> Self:
        """Reach the engine."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of every sandbox."""
        await self._inner.__aexit__(kind, error, trace)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Create a sandbox."""
        return self.wrap(await self._inner.create(spec))

    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        """Connect to a sandbox."""
        return self.wrap(await self._inner.attach(sandbox_id))

    async def list(self) -> Sequence[SandboxInfo]:
        """List the sandboxes."""
        return await self._inner.list()

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Destroy a sandbox."""
        await self._inner.destroy(sandbox_id)

    async def restore(self, content: NativeContent, spec: SandboxSpec) -> Sandbox:
        """Create a sandbox from a snapshot's content."""
        return self.wrap(await self._inner.restore(content, spec))

    async def measure(self, content: NativeContent) -> int | None:
        """Return the bytes that a snapshot alone added."""
        return await self._inner.measure(content)

    async def verify(self, content: NativeContent) -> Sequence[str]:
        """Say what is missing of a snapshot's content."""
        return await self._inner.verify(content)

    async def discard(self, content: NativeContent) -> None:
        """Free what a snapshot alone holds."""
        await self._inner.discard(content)

    async def prepare(self, spec: SandboxSpec) -> None:
        """Expect sandboxes like this one."""
        await self._inner.prepare(spec)

    async def examine(self) -> Examination:
        """Try the boundary for real."""
        return await self._inner.examine()

    async def diff(self, request: DiffRequest) -> Differences:
        """Say what changed between two states."""
        return await self._inner.diff(request)

    async def images(self) -> Sequence[Image]:
        """List the images."""
        return await self._inner.images()

    async def add_image(self, request: ImageRequest) -> Image:
        """Add an image."""
        return await self._inner.add_image(request)

    async def remove_image(self, name: str) -> None:
        """Forget an image."""
        await self._inner.remove_image(name)

    async def collect(
        self, remembered: Remembered, *, kept_s: float, now: float, dry_run: bool = False
    ) -> Sequence[Leftover]:
        """Remove what nobody remembers."""
        return await self._inner.collect(remembered, kept_s=kept_s, now=now, dry_run=dry_run)
