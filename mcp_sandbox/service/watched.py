"""A connection that notices when its sandbox ends, so that nobody is handed a dead one twice."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

import anyio
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.delegation import DelegatingSandbox
from mcp_sandbox.core.errors import NotFoundError, SandboxGoneError
from mcp_sandbox.core.exec import ExecRequest, Execution
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
from mcp_sandbox.core.ports import Connection, DialRequest
from mcp_sandbox.core.provider import Forked, Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest

__all__ = ["WatchedSandbox"]


class _Watch(AbstractContextManager[None]):
    """Calls back when a verb says that the sandbox is gone."""

    def __init__(self, on_gone: Callable[[], None]) -> None:
        self._on_gone = on_gone

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SandboxGoneError | NotFoundError):
            self._on_gone()


class WatchedSandbox(DelegatingSandbox):
    """Passes every verb on, and connects again where that cannot do anything twice.

    Args:
        sandbox: The connection.
        revive: Connects again; raises `NotFoundError` if the engine has no such sandbox any more.
        on_gone: Called when a verb failed because the sandbox ended.
    """

    def __init__(self, sandbox: Sandbox, revive: Callable[[], Awaitable[Sandbox]], on_gone: Callable[[], None]) -> None:
        super().__init__(sandbox)
        self._revive = revive
        self._watch = _Watch(on_gone)
        self._reviving = anyio.Lock()  # of many calls that find it dead, one connects again

    async def exec(self, request: ExecRequest) -> Execution:
        """Start a command; if the sandbox ended before it started, connect again first."""
        with self._watch:
            stale = self._inner
            try:
                return await stale.exec(request)
            except SandboxGoneError as error:
                await self._connect_again(stale, error)
            return await self._inner.exec(request)

    async def _connect_again(self, stale: Sandbox, error: SandboxGoneError) -> None:
        async with self._reviving:
            if self._inner is not stale:
                return
            try:
                self._inner = await self._revive()
            except NotFoundError:
                raise error from None
        await stale.aclose()

    async def read(self, request: ReadRequest) -> FileReader:
        """Open a file."""
        with self._watch:
            return await self._inner.read(request)

    async def write(self, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
        """Write a file."""
        with self._watch:
            return await self._inner.write(request, data)

    async def stat(self, request: StatRequest) -> FileInfo:
        """Look at a path."""
        with self._watch:
            return await self._inner.stat(request)

    async def list(self, request: ListRequest) -> Listing:
        """List a directory."""
        with self._watch:
            return await self._inner.list(request)

    async def remove(self, request: RemoveRequest) -> None:
        """Remove a path."""
        with self._watch:
            await self._inner.remove(request)

    async def rename(self, request: RenameRequest) -> None:
        """Rename a path."""
        with self._watch:
            await self._inner.rename(request)

    async def mkdir(self, request: MkdirRequest) -> None:
        """Make a directory."""
        with self._watch:
            await self._inner.mkdir(request)

    async def upload(self, request: UploadRequest, tar: ByteReceiveStream) -> None:
        """Unpack a tar stream."""
        with self._watch:
            await self._inner.upload(request, tar)

    async def download(self, request: DownloadRequest) -> ByteReceiveStream:
        """Pack a tree."""
        with self._watch:
            return await self._inner.download(request)

    async def snapshot(self, request: SnapshotRequest) -> NativeContent:
        """Capture it."""
        with self._watch:
            return await self._inner.snapshot(request)

    async def restore(self, content: NativeContent) -> None:
        """Put captured state in place."""
        with self._watch:
            await self._inner.restore(content)

    async def fork(self, specs: Sequence[SandboxSpec]) -> Forked:
        """Make sandboxes that start as this one is."""
        with self._watch:
            return await self._inner.fork(specs)

    async def dial(self, request: DialRequest) -> Connection:
        """Connect to a server inside."""
        with self._watch:
            return await self._inner.dial(request)
