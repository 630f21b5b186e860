"""Snapshots as files: written from any provider, checked to the last byte before anything of one is believed."""

import os
import secrets
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

import anyio
from anyio import to_thread

from mcp_sandbox.core.attributes import attributes_of_pax
from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.differences import Action, DiffRequest, LiveState
from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, SandboxError, UnsupportedError
from mcp_sandbox.core.files import DownloadRequest, FileInfo, FileKind, StatRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import WORKSPACE, Workspace
from mcp_sandbox.core.snapshot import NativeContent, Snapshot, SnapshotId
from mcp_sandbox.service.archives import ArchiveSpool
from mcp_sandbox.service.contents import HOME
from mcp_sandbox.service.partial import chosen_paths
from mcp_sandbox.service.passing import PassingSandbox
from mcp_sandbox.service.paths import display
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.store.atomic import UNFINISHED
from mcp_sandbox.store.attachments import open_regular
from mcp_sandbox.store.manifest import CHUNK_BYTES, Entry, Manifest, Tree, damaged, sorted_entries
from mcp_sandbox.store.portable import Archive, ArchiveWriter
from mcp_sandbox.store.snapshots import StoredSnapshot

__all__ = ["Exported", "Imported", "export_snapshot", "import_snapshot", "verify_file", "verify_snapshot"]

_SPECIAL_BITS: Final = 0o6000
_MOST_CHANGES: Final = 20_000
_NOT_COMPARED: Final = "/ (what it started from is not here: of what is elsewhere, nothing is carried or compared)"
_KINDS: Final = {
    tarfile.DIRTYPE: "d", tarfile.REGTYPE: "f", tarfile.SYMTYPE: "l", tarfile.LNKTYPE: "h", tarfile.FIFOTYPE: "p",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A file that was written."""

    snapshot: Snapshot
    trees: Sequence[str]
    size_bytes: int
    left_out: Sequence[str]
    """Paths that changed in the sandbox and are not in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A snapshot that came in."""

    snapshot: Snapshot
    left_out: Sequence[str]
    known: bool
    """Whether it was here already."""
    lacks_image: bool = False
    """Whether the image that it lies on is not here, by its name: it is used on what sandboxes start from here."""
    lacks_attributes: bool = False
    """Whether files have extended attributes in it, and the provider that uses it here has none."""


async def export_snapshot(
    sandboxes: SandboxService, prefix: str, target: Path, *, paths: Sequence[str] = (), replace_file: bool = False
) -> Exported:
    """Write a snapshot's workspace, home and further directories into one file, whole or not at all.

    Args:
        sandboxes: Where the snapshot is.
        prefix: A unique prefix of its id.
        target: The file; what it is a link to is never written.
        paths: Further directories to carry.
        replace_file: Whether a file that is there is replaced.

    Raises:
        NotFoundError: There is no such snapshot.
        InvalidRequestError: There is a file, or a path cannot be carried; nothing was written.
    """
    stored = await sandboxes.snapshot(prefix)
    if not replace_file and await to_thread.run_sync(os.path.lexists, target):
        raise _is_there(target)
    name = sandboxes.contents.provider_of(stored)
    content, provider = await sandboxes.contents.of(stored, name), await sandboxes.provider(name)
    roots = chosen_paths((WORKSPACE, HOME, *paths))
    beside = target.with_name(f"{UNFINISHED}{target.name[:100]}-{secrets.token_hex(8)}")
    try:
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidRequestError(
            "Nothing exported", why=f"{target.name!r}: {os.strerror(error.errno or 0)}", fix="Choose another place"
        ) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            manifest = await _write(sandboxes, provider, content, stored.snapshot, roots, file)
            await to_thread.run_sync(_sync, file)
            size = file.tell()
        _put(beside, target, replace_file=replace_file)
    finally:
        beside.unlink(missing_ok=True)
    return Exported(snapshot=stored.snapshot, trees=roots, size_bytes=size, left_out=manifest.left_out)


def _is_there(target: Path) -> InvalidRequestError:
    return InvalidRequestError(
        "Nothing exported", why=f"there is a {target.name!r} already", fix="Choose another name, or replace it: --force"
    )


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _put(beside: Path, target: Path, *, replace_file: bool) -> None:
    try:
        if replace_file:
            beside.replace(target)
        else:
            target.hardlink_to(beside)
    except FileExistsError:
        raise _is_there(target) from None
    except IsADirectoryError:
        raise InvalidRequestError(
            "Nothing exported", why=f"{target.name!r} is a directory", fix="Name a file in it"
        ) from None


async def _write(
    sandboxes: SandboxService,
    provider: Provider,
    content: NativeContent,
    snapshot: Snapshot,
    roots: Sequence[str],
    file: IO[bytes],
) -> Manifest:
    writer = ArchiveWriter(file)
    trees: list[Tree] = []
    left_out = await _left_out(sandboxes, provider, content, roots, snapshot.image)
    async with PassingSandbox(provider, sandboxes.contents.spec(provider.name), content) as source:
        for root in roots:
            tree, more = await _tree(writer, source, root)
            trees.append(tree)
            left_out += more
    manifest = Manifest(trees=tuple(trees), left_out=tuple(sorted(set(left_out))))
    await to_thread.run_sync(writer.finish, manifest, snapshot)
    return manifest


async def _tree(writer: ArchiveWriter, source: Sandbox, root: str) -> tuple[Tree, list[str]]:
    place = source.capabilities.home if root == HOME else root
    try:
        info = await source.stat(StatRequest(path=place, follow=False))
    except (FileNotFoundError, NotADirectoryError):
        info = None
    if info is None or info.kind is not FileKind.DIRECTORY:
        raise InvalidRequestError(
            "Nothing exported", why=f"{display(root)} is no directory of the snapshot", fix="Name directories"
        )
    spool = ArchiveSpool()
    try:
        held = await spool.hold(await source.download(DownloadRequest(path=place)))
        held.file.seek(0)
        owners = source.capabilities.owners
        return await to_thread.run_sync(lambda: _packed(writer, root, info, held.file, owners=owners))
    finally:
        spool.close()


def _packed(
    writer: ArchiveWriter, root: str, info: FileInfo, tar: IO[bytes], *, owners: bool
) -> tuple[Tree, list[str]]:
    """Return the tree that a tar stream holds, its content written."""
    top = Entry(path="", kind="d", mode=info.mode, modified_ns=info.modified_ns)
    entries = {"": replace(top, uid=info.uid, gid=info.gid) if owners else top}
    left_out: list[str] = []
    try:
        with tarfile.open(fileobj=tar, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                entry = _entry(member, owners=owners)
                if entry.path in ("", "."):
                    entries[""] = replace(entries[""], attributes=entry.attributes)
                    continue
                if entry.kind == "f":
                    entry = replace(entry, chunks=_chunks(writer, tar, member))
                    if entry.mode & _SPECIAL_BITS:
                        left_out.append(f"{root}/{entry.path} (set-user-id)")
                entries[entry.path] = entry if entry.kind == "d" else replace(entry, mode=entry.mode & ~_SPECIAL_BITS)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise damaged(repr(root), "its stream cannot be read") from error
    return Tree(root=root, entries=sorted_entries(_first_names(entries))), left_out


def _entry(member: tarfile.TarInfo, *, owners: bool) -> Entry:
    kind = _KINDS.get(member.type, "?")
    entry = Entry(
        path=member.name.rstrip("/"), kind=kind, mode=member.mode & 0o7777, modified_ns=_nanoseconds(member),
        size_bytes=member.size if kind == "f" else 0, target=member.linkname if kind in "lh" else "",
        attributes=tuple(attributes_of_pax(member.pax_headers).items()) if kind in "df" else (),
    )  # fmt: skip
    return replace(entry, uid=member.uid, gid=member.gid) if owners else entry


def _nanoseconds(member: tarfile.TarInfo) -> int:
    text = member.pax_headers.get("mtime")
    if text is None:
        return int(member.mtime) * 1_000_000_000
    whole, _, fraction = text.partition(".")
    value = int(whole.lstrip("-")) * 1_000_000_000 + int((fraction + "0" * 9)[:9])
    return -value if whole.startswith("-") else value


def _chunks(writer: ArchiveWriter, tar: IO[bytes], member: tarfile.TarInfo) -> tuple[str | None, ...]:
    digests: list[str | None] = []
    for at in range(0, member.size, CHUNK_BYTES):
        tar.seek(member.offset_data + at)
        digests.append(writer.chunk(tar.read(min(CHUNK_BYTES, member.size - at))))
    return tuple(digests)


def _first_names(entries: dict[str, Entry]) -> list[Entry]:
    """Return the entries with the content of a file under the first of its names, as they are sorted."""
    names: dict[str, list[Entry]] = {}
    for entry in entries.values():
        if entry.kind == "h":
            names.setdefault(entry.target, []).append(entry)
    made = dict(entries)
    for first, others in names.items():
        file = entries.get(first)
        if file is None or file.kind != "f":
            raise damaged(repr(first), "another name leads to it, and it is no file")
        whole = sorted_entries([file, *others])
        made[whole[0].path] = replace(file, path=whole[0].path)
        for other in whole[1:]:
            made[other.path] = replace(
                file, path=other.path, kind="h", target=whole[0].path, size_bytes=0, chunks=(), attributes=()
            )
    return [*made.values()]


async def _left_out(
    sandboxes: SandboxService, provider: Provider, content: NativeContent, roots: Sequence[str], image: str
) -> list[str]:
    """Return what changed outside of the trees that are carried, as far as the provider can say."""
    if not provider.capabilities.supports(Verb.DIFF):
        return []
    spec = replace(sandboxes.contents.spec(provider.name), workspace=Workspace(), image=image or None)
    try:
        async with PassingSandbox(provider, spec) as fresh:
            request = DiffRequest(before=LiveState(sandbox=fresh.id), after=content, limit=_MOST_CHANGES)
            found = await provider.diff(request)
    except (UnsupportedError, InvalidRequestError):
        return [_NOT_COMPARED]
    left_out = [f"{path} (could not be looked at)" for path in found.unseen]
    for change in found.changes:
        inside = any(f"{change.path}/".startswith(f"{root}/") for root in roots)
        known = left_out and change.path.startswith(f"{left_out[-1]}/")
        if not inside and not known:
            whole = change.action in (Action.ADDED, Action.DELETED)
            left_out.append(change.path if whole or change.content_differs else f"{change.path} (mode or owner)")
    return left_out[:1000]


async def import_snapshot(sandboxes: SandboxService, source: Path) -> Imported:
    """Take in a snapshot from a file that `export_snapshot` wrote, here or elsewhere; it belongs to the project then.

    Raises:
        SnapshotCorruptError: Names the member or path that is not as it must be; nothing came in.
        InvalidRequestError: It is no file.
    """
    attachments = sandboxes.snapshots.attachments
    copy, file = await to_thread.run_sync(attachments.copy_of, source)
    try:
        archive = await to_thread.run_sync(_checked, file)
        snapshot, left_out = archive.snapshot, archive.manifest.left_out
        known = await _known(sandboxes, snapshot.id)
        if known is not None and not known.imported:
            await _carry_over(sandboxes, known, [tree.root for tree in archive.manifest.trees])
        # The id does not cover the portable form: one that is here is never replaced by a stranger's.
        with anyio.CancelScope(shield=True):
            if not known or (known.imported and not await to_thread.run_sync(attachments.has_portable, snapshot.id)):
                await to_thread.run_sync(attachments.attach, snapshot.id, copy)
            if not known:
                stored = StoredSnapshot(snapshot=snapshot, owner=sandboxes.owner, imported=True)
                await to_thread.run_sync(sandboxes.snapshots.save, stored)
            await to_thread.run_sync(_sync, file)
    finally:
        file.close()
        copy.unlink(missing_ok=True)
    stored = await sandboxes.snapshot(snapshot.id)
    lacks_image = bool(snapshot.image) and not await _has_image(sandboxes, stored)
    attributes = any(entry.attributes for tree in archive.manifest.trees for entry in tree.entries)
    lacks_attributes = attributes and not await _keeps_attributes(sandboxes, stored)
    return Imported(
        snapshot=snapshot, left_out=left_out, known=known is not None, lacks_image=lacks_image,
        lacks_attributes=lacks_attributes,
    )  # fmt: skip


async def _carry_over(sandboxes: SandboxService, stored: StoredSnapshot, roots: Sequence[str]) -> None:
    """Give a snapshot that was taken here the portable form that another provider needs to use it.

    It is written from the snapshot itself: a stranger's file may say anything under its id.
    """
    attachments = sandboxes.snapshots.attachments
    if sandboxes.contents.is_native(stored) or await to_thread.run_sync(attachments.has_portable, stored.id):
        return
    with tempfile.TemporaryDirectory() as directory:
        written = Path(directory) / "portable"
        await export_snapshot(sandboxes, stored.id, written, paths=roots)
        copy, file = await to_thread.run_sync(attachments.copy_of, written)
    with file:
        await to_thread.run_sync(_sync, file)
        await to_thread.run_sync(attachments.attach, stored.id, copy)


async def _has_image(sandboxes: SandboxService, stored: StoredSnapshot) -> bool:
    try:
        return bool(await sandboxes.contents.image_of(stored, sandboxes.contents.provider_of(stored)))
    except SandboxError:  # its engine does not work here
        return False


async def _keeps_attributes(sandboxes: SandboxService, stored: StoredSnapshot) -> bool:
    try:
        provider = await sandboxes.provider(sandboxes.contents.provider_of(stored))
    except SandboxError:  # its engine does not work here
        return True
    return provider.capabilities.extended_attributes


def _checked(file: IO[bytes]) -> Archive:
    archive = Archive(file)
    archive.check_contents()
    return archive


async def _known(sandboxes: SandboxService, snapshot_id: SnapshotId) -> StoredSnapshot | None:
    try:
        return await sandboxes.snapshot(snapshot_id)
    except NotFoundError:
        return None


async def verify_file(path: Path) -> Snapshot:
    """Check a file to its last byte, and return the snapshot in it; raises as `import_snapshot`."""

    def check() -> Snapshot:
        with open_regular(path) as file:
            return _checked(file).snapshot

    return await to_thread.run_sync(check)


async def verify_snapshot(sandboxes: SandboxService, stored: StoredSnapshot) -> Sequence[str]:
    """Return everything that is wrong with a snapshot whose record was read: its content here, its portable form."""
    faults: list[str] = []
    attachments = sandboxes.snapshots.attachments
    natives = await to_thread.run_sync(attachments.natives, stored.id)
    if not stored.imported:
        natives = {**natives, stored.snapshot.native.provider: stored.snapshot.native}
    for name, native in natives.items():
        try:
            faults += await (await sandboxes.provider(name)).verify(native)
        except SandboxError as error:
            faults.append(f"provider {name!r} cannot be asked ({error.why})")
    file = await to_thread.run_sync(attachments.portable, stored.id)
    if file is None and stored.imported:
        faults.append("the file that it came in is gone")
    elif file is not None:
        faults += await to_thread.run_sync(_faults, file, stored.id)
    return faults


def _faults(file: IO[bytes], snapshot_id: SnapshotId) -> list[str]:
    try:
        with file:
            archive = _checked(file)
            return [] if archive.snapshot.id == snapshot_id else ["its portable form is that of another one"]
    except SandboxError as error:
        return [f"{error.what}: {error.why}"]
