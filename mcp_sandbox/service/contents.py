"""Content of a snapshot for whichever provider is to use it: its own, or made from the portable form."""

import tarfile
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from typing import Final

import anyio
from anyio import to_thread
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.attributes import pax_of_attributes
from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.errors import NotFoundError, UnsupportedError
from mcp_sandbox.core.files import ListRequest, MkdirRequest, RemoveRequest, UploadRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec, Workspace
from mcp_sandbox.core.snapshot import NativeContent, SnapshotId, SnapshotRequest
from mcp_sandbox.service.opened import OpenProviders
from mcp_sandbox.service.passing import PassingSandbox
from mcp_sandbox.store.atomic import alocked
from mcp_sandbox.store.manifest import Entry, Tree
from mcp_sandbox.store.portable import Archive
from mcp_sandbox.store.snapshots import SnapshotStore, StoredSnapshot

__all__ = ["HOME", "Contents"]

_TYPES = {
    "d": tarfile.DIRTYPE, "f": tarfile.REGTYPE, "l": tarfile.SYMTYPE, "h": tarfile.LNKTYPE, "p": tarfile.FIFOTYPE,
}  # fmt: skip
HOME: Final = "/root"
"""What the home of the user of commands is called in the portable form."""
_WAIT_S = 600.0
_ALL = 10_000_000


class Contents:
    """What provider can use which snapshot, and with which content.

    Args:
        snapshots: Where the records are, and what is attached to them.
        providers: Opened by whoever made this.
        spec: What a passing sandbox on a provider is made from; a fresh id each time.
        provider: Which one uses what came from elsewhere.
    """

    def __init__(
        self,
        snapshots: SnapshotStore,
        providers: OpenProviders,
        spec: Callable[[str], SandboxSpec],
        provider: str,
    ) -> None:
        self.spec = spec
        self._snapshots = snapshots
        self._attachments = snapshots.attachments
        self._providers = providers
        self.provider = provider

    def provider_of(self, stored: StoredSnapshot | None) -> str:
        """Return which provider uses a snapshot where nobody says: its own, unless it came from elsewhere."""
        return self.provider if stored is None or stored.imported else stored.snapshot.native.provider

    def is_native(self, stored: StoredSnapshot) -> bool:
        """Whether a snapshot was taken here, on the provider that uses what comes from elsewhere."""
        return not stored.imported and stored.snapshot.native.provider == self.provider

    def here(self, snapshot_id: SnapshotId, provider: str) -> NativeContent:
        """Return the content that a provider has already.

        Raises:
            NotFoundError: It has none.
        """
        stored = self._snapshots.again(snapshot_id)
        if (native := self._found(stored, provider)) is None:
            raise NotFoundError(
                "Sandbox not created", why=f"snapshot {snapshot_id[:12]} has no content here", fix="Create it again"
            )
        return native

    def _found(self, stored: StoredSnapshot, provider: str) -> NativeContent | None:
        native = stored.snapshot.native
        if not stored.imported and native.provider == provider:
            return native
        return self._attachments.native(stored.id, provider)

    async def of(self, stored: StoredSnapshot, name: str, *, image: str = "") -> NativeContent:
        """Return content that a provider can use, made now from the portable form if it has none yet.

        Args:
            stored: The snapshot.
            name: The provider.
            image: What it is made on if the snapshot has no image that is here; empty is that of new sandboxes.

        Raises:
            UnsupportedError: It belongs to another provider, and has no portable form.
            NotFoundError: The portable form is gone.
            SnapshotCorruptError: The portable form was damaged.
        """
        if (found := self._found(stored, name)) is not None:
            return found
        async with alocked(self._attachments.lock(), wait_s=_WAIT_S):
            if (found := self._found(stored, name)) is not None:  # made meanwhile
                return found
            file = await to_thread.run_sync(self._attachments.portable, stored.id)
            if file is None:
                raise _bound(stored, name)
            with file:
                archive = await to_thread.run_sync(Archive, file)
                spec = self.spec(name)
                if image := await self.image_of(stored, name) or image:
                    spec = replace(spec, image=image, fetch_image=False)
                native = await _unpacked(archive, await self._providers.get(name), spec)
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._attachments.attach_native, stored.id, native)
            return native

    async def image_of(self, stored: StoredSnapshot, name: str) -> str:
        """Return the name of the image that a snapshot lies on; empty if it has none, or none that is here.

        What came from elsewhere, or from another provider, lies on the image of the same name if there is one here.
        """
        image = stored.snapshot.image
        if not image or (not stored.imported and stored.snapshot.native.provider == name):
            return image
        return image if await self.has_image(name, image) else ""

    async def has_image(self, name: str, image: str) -> bool:
        """Whether a provider has an image of this name."""
        provider = await self._providers.get(name)
        return provider.capabilities.supports(Verb.IMAGES) and any(one.name == image for one in await provider.images())


def _bound(stored: StoredSnapshot, provider: str) -> UnsupportedError | NotFoundError:
    if stored.imported:
        return NotFoundError(
            f"Snapshot {stored.id[:12]} not used", why="the file that it came in is gone", fix="Import it again"
        )
    owner = stored.snapshot.native.provider
    return UnsupportedError(
        f"Snapshot {stored.id[:12]} not used",
        why=f"its content belongs to provider {owner!r}, not to {provider!r}",
        fix="Use a sandbox of that provider: `sandbox_create` makes one from it",
    )


async def _unpacked(archive: Archive, provider: Provider, spec: SandboxSpec) -> NativeContent:
    async with PassingSandbox(provider, replace(spec, workspace=Workspace())) as sandbox:
        for tree in archive.manifest.trees:
            root = sandbox.capabilities.home if tree.root == HOME else tree.root
            await sandbox.mkdir(MkdirRequest(path=root))
            for entry in (await sandbox.list(ListRequest(path=root, limit=_ALL))).entries:
                await sandbox.remove(RemoveRequest(path=entry.path, recursive=True))
            await _upload(sandbox, root, _members(archive, tree))
            # The directory itself at last: what is put into it changes its time.
            parent, _, name = root.rpartition("/")
            await _upload(sandbox, parent or "/", iter([_header(tree.entries[0], name), _END]))
        return await sandbox.snapshot(SnapshotRequest())


async def _upload(sandbox: Sandbox, path: str, pieces: Iterator[bytes]) -> None:
    await sandbox.upload(UploadRequest(path=path), _TarStream(_in_threads(pieces)))


_END = bytes(2 * tarfile.BLOCKSIZE)


def _members(archive: Archive, tree: Tree) -> Iterator[bytes]:
    for entry in tree.entries[1:]:
        yield _header(entry, entry.path)
        if entry.kind == "f":
            yield from archive.content(entry)
            yield bytes(-entry.size_bytes % tarfile.BLOCKSIZE)
    yield _END


def _header(entry: Entry, name: str) -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.uid, member.gid = _TYPES[entry.kind], entry.mode, entry.uid, entry.gid
    member.size, member.linkname = entry.size_bytes, entry.target
    seconds, fraction = divmod(entry.modified_ns, 1_000_000_000)
    member.mtime = seconds
    if fraction and seconds >= 0:
        member.pax_headers = {"mtime": f"{seconds}.{fraction:09}"}
    if entry.attributes:
        member.pax_headers = {**member.pax_headers, **pax_of_attributes(dict(entry.attributes))}
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


async def _in_threads(pieces: Iterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield what an iterator that reads a file yields, some of it at a time."""
    while batch := await to_thread.run_sync(_batch, pieces):
        yield batch


def _batch(pieces: Iterator[bytes], least: int = 1 << 20) -> bytes:
    taken: list[bytes] = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= least:
            break
    return b"".join(taken)


class _TarStream(ByteReceiveStream):
    def __init__(self, pieces: AsyncGenerator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self._rest:
            try:
                self._rest = await anext(self._pieces)
            except StopAsyncIteration:
                raise anyio.EndOfStream from None
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return data

    async def aclose(self) -> None:
        await self._pieces.aclose()
