"""A provider that is reached only through the policy. Everything it gives out is guarded too."""

from collections.abc import Sequence

from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.capability import Capabilities, Verb
from mcp_sandbox.core.delegation import DelegatingProvider, DelegatingSandbox
from mcp_sandbox.core.differences import Differences, DiffRequest
from mcp_sandbox.core.errors import InvalidRequestError, UnsupportedError
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
from mcp_sandbox.core.image import Image, ImageRequest
from mcp_sandbox.core.ports import Connection, DialRequest
from mcp_sandbox.core.provider import Forked, Provider, Sandbox, unsupported
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.policy.bounded import BoundedReceiveStream, refuse_oversize
from mcp_sandbox.policy.rules import (
    Policy,
    admit_exec,
    admit_isolation,
    admit_mode,
    admit_path,
    admit_provider,
    admit_range,
    admit_spec,
)

__all__ = ["GuardedProvider", "GuardedSandbox"]


def _require(name: str, capabilities: Capabilities, verb: Verb) -> None:
    if not capabilities.supports(verb):
        raise unsupported(name, verb)


def _require_own(name: str, content: NativeContent, use: str = "restored") -> None:
    if content.provider != name:
        raise InvalidRequestError(
            f"Snapshot not {use}",
            why=f"its content belongs to provider {content.provider!r}, this is {name!r}",
            fix=f"Restore it in a sandbox of provider {content.provider!r}",
        )


class GuardedSandbox(DelegatingSandbox):
    """A sandbox reached only through the policy."""

    def __init__(self, inner: Sandbox, policy: Policy) -> None:
        super().__init__(inner)
        self._policy = policy

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        """Guard a sandbox that this one made."""
        return GuardedSandbox(sandbox, self._policy)

    async def exec(self, request: ExecRequest) -> Execution:
        """Start an admitted command."""
        return await self._inner.exec(admit_exec(self._policy, request))

    async def read(self, request: ReadRequest) -> FileReader:
        """Open a file for reading."""
        admit_path(request.path)
        admit_range("offset", request.offset, 0)
        if request.length is not None:
            admit_range("length", request.length, 0)
        return await self._inner.read(request)

    async def write(self, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
        """Write a file that is not too large."""
        admit_path(request.path)
        if request.mode is not None:
            admit_mode(request.mode)
        bound = self._policy.max_write_bytes
        if bound is not None:
            if isinstance(data, bytes):
                refuse_oversize(len(data), bound)
            else:
                data = BoundedReceiveStream(data, bound)
        return await self._inner.write(request, data)

    async def stat(self, request: StatRequest) -> FileInfo:
        """Look at one path."""
        admit_path(request.path)
        return await self._inner.stat(request)

    async def list(self, request: ListRequest) -> Listing:
        """List a directory."""
        admit_path(request.path)
        admit_range("depth", request.depth, 1)
        admit_range("limit", request.limit, 1)
        return await self._inner.list(request)

    async def remove(self, request: RemoveRequest) -> None:
        """Remove a path."""
        admit_path(request.path)
        await self._inner.remove(request)

    async def rename(self, request: RenameRequest) -> None:
        """Rename a path."""
        admit_path(request.source)
        admit_path(request.target)
        await self._inner.rename(request)

    async def mkdir(self, request: MkdirRequest) -> None:
        """Make a directory."""
        admit_path(request.path)
        admit_mode(request.mode)
        await self._inner.mkdir(request)

    async def upload(self, request: UploadRequest, tar: ByteReceiveStream) -> None:
        """Unpack a tar that is not too large."""
        admit_path(request.path)
        bound = self._policy.max_write_bytes
        await self._inner.upload(request, tar if bound is None else BoundedReceiveStream(tar, bound))

    async def download(self, request: DownloadRequest) -> ByteReceiveStream:
        """Pack a tree."""
        admit_path(request.path)
        return await self._inner.download(request)

    async def snapshot(self, request: SnapshotRequest) -> NativeContent:
        """Capture the sandbox, if the provider declares that it can hold what is asked for."""
        _require(self.provider_name, self.capabilities, Verb.SNAPSHOT)
        if missing := request.holds - self.capabilities.snapshot_holds:
            raise UnsupportedError(
                "No snapshot taken",
                why=f"provider {self.provider_name!r} cannot hold {', '.join(sorted(missing))}",
                fix="Ask for less, or use another provider",
            )
        return await self._inner.snapshot(request)

    async def restore(self, content: NativeContent) -> None:
        """Put captured state in place, if it is this provider's."""
        _require(self.provider_name, self.capabilities, Verb.RESTORE)
        _require_own(self.provider_name, content)
        await self._inner.restore(content)

    async def fork(self, specs: Sequence[SandboxSpec]) -> Forked:
        """Make admitted copies, guarded too."""
        _require(self.provider_name, self.capabilities, Verb.FORK)
        admitted = [admit_spec(self._policy, self.provider_name, self.capabilities, spec) for spec in specs]
        return await super().fork(admitted)

    async def dial(self, request: DialRequest) -> Connection:
        """Connect to a server inside, at a port that can be."""
        _require(self.provider_name, self.capabilities, Verb.EXPOSE)
        admit_range("port", request.port, 1, 65_535)
        return await self._inner.dial(request)

    async def adopt(self, spec: SandboxSpec) -> Sandbox:
        """Become an admitted sandbox."""
        _require(self.provider_name, self.capabilities, Verb.ADOPT)
        return await super().adopt(admit_spec(self._policy, self.provider_name, self.capabilities, spec))


class GuardedProvider(DelegatingProvider):
    """A provider reached only through the policy."""

    def __init__(self, inner: Provider, policy: Policy) -> None:
        super().__init__(inner)
        self._policy = policy

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        """Put the guard around a sandbox."""
        return GuardedSandbox(sandbox, self._policy)

    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        """Connect to a sandbox, unless the policy became stricter than what it is."""
        admit_provider(self._policy, self.name)
        sandbox = await super().attach(sandbox_id)
        try:
            admit_isolation(self._policy, self.name, sandbox.capabilities.isolation, f"Sandbox {sandbox_id} not used")
        except UnsupportedError:
            await sandbox.aclose()
            raise
        return sandbox

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Create an admitted sandbox."""
        return await super().create(self._admit(spec))

    async def prepare(self, spec: SandboxSpec) -> None:
        """Expect admitted sandboxes."""
        await super().prepare(self._admit(spec))

    async def restore(self, content: NativeContent, spec: SandboxSpec) -> Sandbox:
        """Create an admitted sandbox from a snapshot's content."""
        _require(self.name, self.capabilities, Verb.CREATE_FROM_SNAPSHOT)
        _require_own(self.name, content)
        return await super().restore(content, self._admit(spec))

    async def verify(self, content: NativeContent) -> Sequence[str]:
        """Say what is missing of a snapshot's content, if it is this provider's."""
        _require_own(self.name, content, "verified")
        return await self._inner.verify(content)

    async def discard(self, content: NativeContent) -> None:
        """Free what a snapshot alone holds."""
        _require(self.name, self.capabilities, Verb.SNAPSHOT)
        _require_own(self.name, content)
        await self._inner.discard(content)

    async def diff(self, request: DiffRequest) -> Differences:
        """Say what changed between two states that are this provider's."""
        _require(self.name, self.capabilities, Verb.DIFF)
        for state in (request.before, request.after):
            if isinstance(state, NativeContent):
                _require_own(self.name, state, "compared")
        for path in request.paths:
            admit_path(path)
        admit_range("limit", request.limit, 1)
        admit_range("text_bytes", request.text_bytes, 0)
        return await self._inner.diff(request)

    async def images(self) -> Sequence[Image]:
        """List the images."""
        _require(self.name, self.capabilities, Verb.IMAGES)
        return await self._inner.images()

    async def add_image(self, request: ImageRequest) -> Image:
        """Add an image."""
        _require(self.name, self.capabilities, Verb.IMAGES)
        return await self._inner.add_image(request)

    async def remove_image(self, name: str) -> None:
        """Forget an image."""
        _require(self.name, self.capabilities, Verb.IMAGES)
        await self._inner.remove_image(name)

    def _admit(self, spec: SandboxSpec) -> SandboxSpec:
        return admit_spec(self._policy, self.name, self.capabilities, spec)
