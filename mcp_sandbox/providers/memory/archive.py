"""Tar streams into and out of a tree."""

import errno
import io
import tarfile

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.providers.memory.tree import Node, Tree, fail

__all__ = ["pack", "unpack"]

_KINDS = {
    FileKind.FILE: tarfile.REGTYPE,
    FileKind.DIRECTORY: tarfile.DIRTYPE,
    FileKind.SYMLINK: tarfile.SYMTYPE,
    FileKind.FIFO: tarfile.FIFOTYPE,
}


def pack(tree: Tree, path: str) -> bytes:
    """Return a tar of a file, or of everything below a directory; devices and sockets stay out."""
    top = tree.node(path)
    if top.kind not in (FileKind.FILE, FileKind.DIRECTORY):
        fail(errno.EINVAL, path)
    above = path.rstrip("/")
    if top.kind is FileKind.FILE:
        members = [(above.rpartition("/")[2], top)]
    else:
        members = [(found[len(above) + 1 :], node) for found, node in tree.walk(path, 1 << 30)]
    buffer = io.BytesIO()
    first: dict[int, str] = {}
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as tar:
        for name, node in members:
            if node.kind in _KINDS:
                tar.addfile(_member(name, node, first), io.BytesIO(node.data))
    return buffer.getvalue()


def _member(name: str, node: Node, first: dict[int, str]) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = _KINDS[node.kind], node.mode
    seconds, fraction = divmod(node.modified_ns, 1_000_000_000)
    member.mtime = seconds
    member.pax_headers = {"mtime": f"{seconds}.{fraction:09}"}
    if (earlier := first.setdefault(id(node), name)) != name:
        member.type, member.linkname = tarfile.LNKTYPE, earlier
    elif node.kind is FileKind.SYMLINK:
        member.linkname = node.target
    elif node.kind is FileKind.FILE:
        member.size = len(node.data)
    return member


def unpack(tree: Tree, path: str, data: bytes) -> None:
    """Unpack a tar below a directory; no member is written through a link or outside.

    Raises:
        InvalidRequestError: It is not a tar, or a member would leave the directory; nothing was unpacked.
    """
    top = tree.directory(path)
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errors="surrogateescape") as tar:
            members = [(member, _content(tar, member)) for member in tar.getmembers()]
    except tarfile.TarError as error:
        raise InvalidRequestError(
            "Nothing unpacked", why=f"the stream is not a tar archive ({error})", fix="Send an uncompressed tar"
        ) from error
    stage = Tree(top).copy()
    directories: list[tuple[Node, int]] = []
    for member, content in members:
        parts = _beneath(member.name, member.name)
        if not parts:
            continue
        parent = _parent(stage, parts, member.name)
        node = _node(stage, member, content, parent.children.get(parts[-1]))
        if node is None:
            continue
        if parent.children.get(parts[-1]) is not node:
            parent.put(parts[-1], node)
        if node.kind is FileKind.DIRECTORY:
            directories.append((node, _mtime_ns(member)))
    for node, modified_ns in reversed(directories):
        node.modified_ns = modified_ns
    top.children = stage.root.children


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if not member.isreg():
        return b""
    reader = tar.extractfile(member)
    return reader.read() if reader else b""


def _mtime_ns(member: tarfile.TarInfo) -> int:
    exact = member.pax_headers.get("mtime")
    if exact is None:
        return int(member.mtime * 1_000_000_000)
    seconds, _, fraction = exact.partition(".")
    return int(seconds) * 1_000_000_000 + int(fraction.ljust(9, "0")[:9] or 0)


def _node(stage: Tree, member: tarfile.TarInfo, content: bytes, there: Node | None) -> Node | None:
    if member.isdir():
        if there is None or there.kind is not FileKind.DIRECTORY:
            there = Node(FileKind.DIRECTORY, 0o755)
        there.mode = member.mode & 0o7777
        return there
    if member.islnk():
        parts = _beneath(member.linkname, member.name)
        source = _parent(stage, parts, member.name).children.get(parts[-1]) if parts else None
        return source or _refuse(member.name, "it is a hard link to a file that is not there")
    if member.issym():
        return Node(FileKind.SYMLINK, 0o777, _mtime_ns(member), target=member.linkname)
    if member.isfifo():
        return Node(FileKind.FIFO, member.mode & 0o7777, _mtime_ns(member))
    if member.isreg():
        return Node(FileKind.FILE, member.mode & 0o7777, _mtime_ns(member), data=content)
    return None


def _beneath(name: str, member: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        _refuse(member, "its name leads out of the directory")
    return parts


def _parent(stage: Tree, parts: list[str], member: str) -> Node:
    here = stage.root
    for name in parts[:-1]:
        if name not in here.children:
            here.put(name, Node(FileKind.DIRECTORY, 0o755))
        here = here.children[name]
        if here.kind is not FileKind.DIRECTORY:
            _refuse(member, f"{name!r} above it is not a directory")
    return here


def _refuse(member: str, why: str) -> Node:
    raise InvalidRequestError(
        f"Member {member!r} not unpacked", why=why, fix="Send an archive whose members lie below the directory"
    )
