"""One sandbox in a container."""

import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.capability import Capabilities, Isolation
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
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.engines import guest_files, guest_ports, guest_trees
from mcp_sandbox.engines.carrier import GuestCarrier, GuestRestarting, gone, protocol_failure
from mcp_sandbox.engines.docker_engine import DockerEngine
from mcp_sandbox.engines.docker_state import ContainerState
from mcp_sandbox.engines.sandbox_limits import within_time
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.guest.wire import GuestProtocolError

__all__ = ["NAME", "DockerSandbox"]

NAME: Final = "docker"
ATTEMPTS: Final = 5
_Value = TypeVar("_Value")


class DockerSandbox(Sandbox):
    """Connects again by itself, which starts the container if it stopped."""

    def __init__(
        self,
        engine: DockerEngine,
        capabilities: Capabilities,
        state: ContainerState,
        opened: "weakref.WeakSet[DockerSandbox]",
    ) -> None:
        opened.add(self)
        self._engine = engine
        self._capabilities = capabilities
        self._state = state
        self._carrier: StreamCarrier | None = None
        self._connecting = anyio.Lock()
        self._closed = False

    @property
    def id(self) -> SandboxId:
        return SandboxId(self._state.id)

    @property
    def provider_name(self) -> str:
        return NAME

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def found(self, runtime: str, isolation: Isolation) -> None:
        """Take what it runs on, as it was found."""
        self._capabilities = replace(self._capabilities, runtime=runtime, isolation=isolation)

    async def connect(self) -> StreamCarrier:
        """Return the live connection, making one and starting the container if need be."""
        if self._carrier is not None and not self._carrier.closed:
            return self._carrier
        async with self._connecting:
            if self._closed:
                raise gone()
            if self._carrier is None or self._carrier.closed:
                if self._carrier is not None:
                    await self._carrier.aclose()
                try:
                    self._carrier = await self._engine.connect(self._state)
                except NotFoundError as error:
                    raise SandboxGoneError(
                        f"Sandbox {self.id!r} is gone", why="it was destroyed", fix="Create another one"
                    ) from error
            if self._closed:  # meanwhile
                await self._carrier.aclose()
                raise gone()
            return self._carrier

    async def _with(self, use: Callable[[GuestCarrier], Awaitable[_Value]]) -> _Value:
        """Carry out a request, again if the connection ended before it was sent."""
        for _ in range(ATTEMPTS):
            try:
                return await use(await self.connect())
            except GuestRestarting:
                await anyio.lowlevel.checkpoint()
            except GuestProtocolError as error:
                raise protocol_failure(error) from error
        raise gone()

    async def exec(self, request: ExecRequest) -> Execution:
        environment = [f"{name}={value}" for name, value in {**self._state.env, **request.env}.items()]
        request = within_time(request, self._state.limits)
        return await self._with(lambda carrier: carrier.exec(request, environment))

    async def read(self, request: ReadRequest) -> FileReader:
        return await self._with(lambda carrier: guest_files.read_file(carrier, request))

    async def write(self, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
        return await self._with(lambda carrier: guest_files.write_file(carrier, request, data))

    async def stat(self, request: StatRequest) -> FileInfo:
        return await self._with(lambda carrier: guest_files.stat_path(carrier, request))

    async def list(self, request: ListRequest) -> Listing:
        return await self._with(lambda carrier: guest_files.list_tree(carrier, request))

    async def remove(self, request: RemoveRequest) -> None:
        await self._with(lambda carrier: guest_files.remove_path(carrier, request))

    async def rename(self, request: RenameRequest) -> None:
        await self._with(lambda carrier: guest_files.rename_path(carrier, request))

    async def mkdir(self, request: MkdirRequest) -> None:
        await self._with(lambda carrier: guest_files.make_directory(carrier, request))

    async def upload(self, request: UploadRequest, tar: ByteReceiveStream) -> None:
        await self._with(lambda carrier: guest_trees.unpack_tar(carrier, request, tar))

    async def download(self, request: DownloadRequest) -> ByteReceiveStream:
        return await self._with(lambda carrier: guest_trees.pack_tar(carrier, request))

    async def dial(self, request: DialRequest) -> Connection:
        return await self._with(lambda carrier: guest_ports.dial(carrier, request))

    async def aclose(self) -> None:
        self._closed = True
        if self._carrier is not None:
            await self._carrier.aclose()
