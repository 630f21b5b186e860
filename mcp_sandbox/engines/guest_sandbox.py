"""A sandbox whose verbs are carried out by the guest agent inside, over whichever carrier reaches it."""

import abc
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, Generic, TypeVar

import anyio.lowlevel
from anyio.abc import ByteReceiveStream

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
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines import guest_files, guest_ports, guest_trees
from mcp_sandbox.engines.carrier import GuestCarrier, GuestRestarting, gone, protocol_failure
from mcp_sandbox.engines.sandbox_limits import within_time
from mcp_sandbox.guest.wire import GuestProtocolError

__all__ = ["GuestSandbox"]

_Carrier = TypeVar("_Carrier", bound=GuestCarrier)
_Value = TypeVar("_Value")


class GuestSandbox(Sandbox, Generic[_Carrier]):
    """Connects again by itself after its init restarted. A provider adds how it is reached, and snapshots."""

    ATTEMPTS: ClassVar = 20
    """How often a request that nobody looked at is sent again."""

    @abc.abstractmethod
    async def connect(self) -> _Carrier:
        """Return the live connection, making one and starting the sandbox if need be."""

    @property
    @abc.abstractmethod
    def environment(self) -> Mapping[str, str]:
        """The variables of every command."""

    @property
    @abc.abstractmethod
    def limits(self) -> Limits:
        """The limits that it was made with."""

    async def served(self, use: Callable[[_Carrier], Awaitable[_Value]]) -> _Value:
        """Carry out a request, again if the agent restarted before it looked at it.

        Raises:
            SandboxGoneError: It ended, or does not come to rest.
            ProviderError: The agent broke the protocol.
        """
        for _ in range(self.ATTEMPTS):
            try:
                return await use(await self.connect())
            except GuestRestarting:
                await anyio.lowlevel.checkpoint()
            except GuestProtocolError as error:
                raise protocol_failure(error) from error
        raise gone()

    async def exec(self, request: ExecRequest) -> Execution:
        environment = [f"{name}={value}" for name, value in {**self.environment, **request.env}.items()]
        request = within_time(request, self.limits)
        return await self.served(lambda carrier: carrier.exec(request, environment))

    async def read(self, request: ReadRequest) -> FileReader:
        return await self.served(lambda carrier: guest_files.read_file(carrier, request))

    async def write(self, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
        return await self.served(lambda carrier: guest_files.write_file(carrier, request, data))

    async def stat(self, request: StatRequest) -> FileInfo:
        return await self.served(lambda carrier: guest_files.stat_path(carrier, request))

    async def list(self, request: ListRequest) -> Listing:
        return await self.served(lambda carrier: guest_files.list_tree(carrier, request))

    async def remove(self, request: RemoveRequest) -> None:
        await self.served(lambda carrier: guest_files.remove_path(carrier, request))

    async def rename(self, request: RenameRequest) -> None:
        await self.served(lambda carrier: guest_files.rename_path(carrier, request))

    async def mkdir(self, request: MkdirRequest) -> None:
        await self.served(lambda carrier: guest_files.make_directory(carrier, request))

    async def upload(self, request: UploadRequest, tar: ByteReceiveStream) -> None:
        await self.served(lambda carrier: guest_trees.unpack_tar(carrier, request, tar))

    async def download(self, request: DownloadRequest) -> ByteReceiveStream:
        return await self.served(lambda carrier: guest_trees.pack_tar(carrier, request))

    async def dial(self, request: DialRequest) -> Connection:
        return await self.served(lambda carrier: guest_ports.dial(carrier, request))
