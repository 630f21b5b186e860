"""The border. A provider is one file with one subclass of each class below.

Optional verbs are methods that refuse, plus an entry in the capability record of the opened provider. Never ask
`isinstance`: wrappers stand between.
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.capability import Capabilities, Verb
from mcp_sandbox.core.differences import Differences, DiffRequest
from mcp_sandbox.core.errors import UnsupportedError
from mcp_sandbox.core.examination import Examination
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
from mcp_sandbox.core.leftovers import Leftover, Remembered
from mcp_sandbox.core.ports import Connection, DialRequest
from mcp_sandbox.core.sandbox import SandboxId, SandboxInfo, SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest

__all__ = ["Forked", "Provider", "Sandbox", "unsupported"]


def unsupported(provider: str, verb: Verb) -> UnsupportedError:
    """Return the refusal of an optional verb."""
    return UnsupportedError(
        f"No {verb.replace('_', ' ')}",
        why=f"provider {provider!r} does not declare it",
        fix="Use a provider that does; `mcp-sandbox doctor` lists what each one can do",
    )


class Sandbox(abc.ABC):
    """A connection to one sandbox. Closing it lets go; the sandbox itself lives on until it is destroyed."""

    @property
    @abc.abstractmethod
    def id(self) -> SandboxId:
        """Its id, as in the spec it was created from."""

    @property
    @abc.abstractmethod
    def provider_name(self) -> str:
        """The registry name of the provider that serves it."""

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """What this sandbox can do; at most what its provider declares."""

    @abc.abstractmethod
    async def exec(self, request: ExecRequest) -> Execution:
        """Start a command.

        A program that is missing (127) or cannot be executed (126) is a result, as is a directory that does not
        exist (`ExecResult.detail` says so): the model can act on them.

        Raises:
            SandboxGoneError: The sandbox ended before the command started.
            ProviderError: The engine failed.
        """

    @abc.abstractmethod
    async def read(self, request: ReadRequest) -> FileReader:
        """Open a regular file for reading.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError, OSError: As the path deserves; `OSError` with
                `EINVAL` for a FIFO, socket or device.
        """

    @abc.abstractmethod
    async def write(self, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
        """Write a file. A final symbolic link is followed, inside the sandbox. Closes `data`.

        Raises:
            FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError, OSError: As the path deserves.
        """

    @abc.abstractmethod
    async def stat(self, request: StatRequest) -> FileInfo:
        """Look at one path; raises the `OSError` it deserves."""

    @abc.abstractmethod
    async def list(self, request: ListRequest) -> Listing:
        """List a directory; raises `NotADirectoryError` and the like."""

    @abc.abstractmethod
    async def remove(self, request: RemoveRequest) -> None:
        """Remove a path; raises `OSError` with `ENOTEMPTY` for a full directory without `recursive`."""

    @abc.abstractmethod
    async def rename(self, request: RenameRequest) -> None:
        """Rename a path; raises `FileExistsError` without `replace`."""

    @abc.abstractmethod
    async def mkdir(self, request: MkdirRequest) -> None:
        """Make a directory."""

    @abc.abstractmethod
    async def upload(self, request: UploadRequest, tar: ByteReceiveStream) -> None:
        """Unpack `tar` below a directory, in one round trip. Closes `tar`.

        Raises:
            InvalidRequestError: The stream is not a tar archive, or a member would leave the directory.
        """

    @abc.abstractmethod
    async def download(self, request: DownloadRequest) -> ByteReceiveStream:
        """Pack a tree as a tar stream, in one round trip. Whoever opened the stream closes it."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Let go of the sandbox, ending the commands started through this object. Idempotent."""

    async def snapshot(self, request: SnapshotRequest) -> NativeContent:
        """Capture the sandbox as it is now. Optional: `Verb.SNAPSHOT`."""
        raise unsupported(self.provider_name, Verb.SNAPSHOT)

    async def restore(self, content: NativeContent) -> None:
        """Put captured state in place of the present one, whole or not at all; ends running commands. Optional."""
        raise unsupported(self.provider_name, Verb.RESTORE)

    async def fork(self, specs: Sequence[SandboxSpec]) -> "Forked":
        """Make one new sandbox per spec that starts as this one is now, all or none. Optional: `Verb.FORK`.

        Commands that run here go on.
        """
        raise unsupported(self.provider_name, Verb.FORK)

    async def dial(self, request: DialRequest) -> Connection:
        """Connect to a server inside, whatever the network mode. Optional: `Verb.EXPOSE`.

        Raises:
            ConnectionRefusedError: Nothing listens there.
            TimeoutError: It does not accept.
        """
        raise unsupported(self.provider_name, Verb.EXPOSE)

    async def adopt(self, spec: SandboxSpec) -> "Sandbox":
        """Become the sandbox that `spec` describes, and return it; this object is closed. Optional: `Verb.ADOPT`.

        For blank sandboxes that were started ahead, from the same spec but for id, env and labels, which were empty.
        If the provider copies the project when it makes a sandbox, the workspace was empty, too, and is filled now.
        In one step: whoever is killed in the middle leaves the one or the other.

        Raises:
            StateError: There is a sandbox with this id; this one is still blank.
            SandboxGoneError: It is not what `create` would make any more.
        """
        raise unsupported(self.provider_name, Verb.ADOPT)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the sandbox."""
        await self.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """New sandboxes that start as another one was."""

    sandboxes: Sequence[Sandbox]
    """One per spec, in the same order."""
    paused_s: float = 0.0
    """How long the other one's processes stood still; 0 when none ran."""


class Provider(abc.ABC):
    """Creates and finds sandboxes on one engine. Use as a context manager."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The registry name."""

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """What the opened engine can do; valid inside the context."""

    async def __aenter__(self) -> Self:
        """Reach the engine and look at what it can do.

        Raises:
            ProviderUnavailableError: The engine is missing or does not work here; says which step failed and how
                to mend it.
        """
        return self

    async def __aexit__(  # noqa: B027  (a provider may have nothing to let go of)
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of every sandbox opened here, leaving no process behind that nobody else uses."""

    @abc.abstractmethod
    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Create a sandbox and connect to it.

        Raises:
            UnsupportedError: The spec asks for what the engine cannot enforce; nothing was made.
            StateError: A sandbox with this id exists.
        """

    @abc.abstractmethod
    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        """Connect to a sandbox that exists, starting it if it is stopped.

        Raises:
            NotFoundError: The engine has no sandbox with this id.
        """

    @abc.abstractmethod
    async def list(self) -> Sequence[SandboxInfo]:
        """List every sandbox of ours on the engine, also those that nobody remembers."""

    @abc.abstractmethod
    async def destroy(self, sandbox_id: SandboxId) -> None:
        """End every process of a sandbox and remove its files; snapshots stay. No-op if there is none."""

    async def restore(self, content: NativeContent, spec: SandboxSpec) -> Sandbox:
        """Create a new sandbox from a snapshot's content. Optional: `Verb.CREATE_FROM_SNAPSHOT`."""
        raise unsupported(self.name, Verb.CREATE_FROM_SNAPSHOT)

    async def measure(self, content: NativeContent) -> int | None:
        """Return the bytes that a snapshot alone added, counting them if taking it did not; `None` if nobody knows."""
        return content.size_bytes

    async def verify(self, content: NativeContent) -> Sequence[str]:
        """Say what is missing of a snapshot's content, as clauses without a host path; nothing if it is whole."""
        return ()

    async def discard(self, content: NativeContent) -> None:
        """Free what a snapshot alone holds. Optional: `Verb.SNAPSHOT`; no-op if it is gone."""
        raise unsupported(self.name, Verb.SNAPSHOT)

    async def prepare(self, spec: SandboxSpec) -> None:  # noqa: B027 (nothing to do is an answer)
        """Expect that sandboxes like this one, but for id, env and labels, will be created: a hint, for their speed."""

    async def examine(self) -> Examination:
        """Try the boundary for real, now, and say which fences hold; a provider without a self-test tries none."""
        return Examination()

    async def diff(self, request: DiffRequest) -> Differences:
        """Say what changed between two states, at a cost that grows with what changed. Optional: `Verb.DIFF`.

        Raises:
            NotFoundError: One of them is not there any more.
        """
        raise unsupported(self.name, Verb.DIFF)

    async def images(self) -> Sequence[Image]:
        """List the images that a spec may name. Optional: `Verb.IMAGES`, as the two below."""
        raise unsupported(self.name, Verb.IMAGES)

    async def add_image(self, request: ImageRequest) -> Image:
        """Add an image, whole or not at all; a name that is taken goes over to it.

        Raises:
            InvalidRequestError: The source cannot be read, or holds what no sandbox may have.
        """
        raise unsupported(self.name, Verb.IMAGES)

    async def remove_image(self, name: str) -> None:
        """Forget an image; sandboxes and snapshots that started from it go on working.

        Raises:
            NotFoundError: There is none.
        """
        raise unsupported(self.name, Verb.IMAGES)

    async def collect(
        self, remembered: Remembered, *, kept_s: float, now: float, dry_run: bool = False
    ) -> Sequence[Leftover]:
        """Remove what nobody remembers and no live process uses or makes; say what that was. Optional.

        Args:
            remembered: What must stay.
            kept_s: How long whole sandboxes and snapshots stay although nobody remembers them.
            now: The time, in seconds since 1970.
            dry_run: Only say what would go.
        """
        return ()
