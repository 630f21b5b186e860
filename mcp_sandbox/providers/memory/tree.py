"""A file system that is a tree of nodes, with the kernel's rules for paths, links and errors."""

import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NoReturn

from mcp_sandbox.core.files import FileInfo, FileKind

__all__ = ["Node", "Spot", "Tree", "fail", "info"]

_LINK_HOPS = 40
_NAME_BYTES = 255
_PATH_BYTES = 4095


def fail(number: int, path: str) -> NoReturn:
    """Raise the `OSError` subclass that belongs to an error number."""
    raise OSError(number, os.strerror(number), path)


@dataclass(slots=True, eq=False)
class Node:
    """An inode: several directories may hold the same one."""

    kind: FileKind
    mode: int
    modified_ns: int = field(default_factory=time.time_ns)
    links: int = 0
    data: bytes = b""
    target: str = ""
    children: dict[str, "Node"] = field(default_factory=dict[str, "Node"])

    @property
    def size_bytes(self) -> int:
        """What `stat` says of the size."""
        return len(os.fsencode(self.target)) if self.kind is FileKind.SYMLINK else len(self.data)

    def put(self, name: str, child: "Node") -> None:
        """Enter a node under a name, in place of whatever was there."""
        if (old := self.children.get(name)) is not None:
            old.links -= 1
        self.children[name] = child
        child.links += 1
        self.modified_ns = time.time_ns()

    def drop(self, name: str) -> None:
        """Take a name away."""
        self.children.pop(name).links -= 1
        self.modified_ns = time.time_ns()


class Spot(NamedTuple):
    """Where a path leads: the directory, the name in it, and the node if there is one."""

    parent: Node
    name: str
    node: Node | None
    path: str
    """The path without links and dots."""


class Tree:
    """One sandbox's files."""

    def __init__(self, root: Node | None = None) -> None:
        self.root = root or Node(FileKind.DIRECTORY, 0o755, links=1)

    def locate(self, path: str, *, follow: bool = True) -> Spot:
        """Walk to a path as the kernel does; only the last name may be missing.

        Raises:
            OSError: `ENOENT`, `ENOTDIR`, `ELOOP`, `ENAMETOOLONG`, or `EINVAL` for a relative path or a NUL.
        """
        if not path.startswith("/") or "\0" in path:
            fail(errno.EINVAL, path)
        if len(os.fsencode(path)) > _PATH_BYTES:
            fail(errno.ENAMETOOLONG, path)
        trail: list[tuple[Node, str]] = [(self.root, "")]
        pending = _parts(path)
        hops = 0
        while pending:
            name = pending.pop()
            here = trail[-1][0]
            if here.kind is not FileKind.DIRECTORY:
                fail(errno.ENOTDIR, path)
            if name == "..":
                trail = trail[:-1] or trail
                continue
            if len(os.fsencode(name)) > _NAME_BYTES:
                fail(errno.ENAMETOOLONG, path)
            child = here.children.get(name)
            if child is None:
                if pending:
                    fail(errno.ENOENT, path)
                return Spot(here, name, None, _join(trail, name))
            if child.kind is FileKind.SYMLINK and (follow or pending):
                hops += 1
                if hops > _LINK_HOPS:
                    fail(errno.ELOOP, path)
                if child.target.startswith("/"):
                    trail = trail[:1]
                pending.extend(_parts(child.target))
                continue
            trail.append((child, name))
        node, name = trail[-1]
        if path.endswith("/") and node.kind is not FileKind.DIRECTORY:
            fail(errno.ENOTDIR, path)
        return Spot(trail[-2][0] if len(trail) > 1 else node, name, node, _join(trail))

    def node(self, path: str, *, follow: bool = True) -> Node:
        """Return the node at a path; `FileNotFoundError` if there is none."""
        return self.locate(path, follow=follow).node or fail(errno.ENOENT, path)

    def directory(self, path: str) -> Node:
        """Return the directory at a path; `NotADirectoryError` if it is something else."""
        node = self.node(path)
        return node if node.kind is FileKind.DIRECTORY else fail(errno.ENOTDIR, path)

    def make_directory(self, path: str, mode: int = 0o755, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Make a directory, and with `parents` those above it."""
        if parents:
            self._make_parents(_above(path))
        spot = self.locate(path)
        if spot.node is None:
            if self.locate(path.rstrip("/"), follow=False).node is not None:
                fail(errno.EEXIST, path)
            spot.parent.put(spot.name, Node(FileKind.DIRECTORY, mode & 0o7777))
        elif not exist_ok or spot.node.kind is not FileKind.DIRECTORY:
            fail(errno.EEXIST, path)

    def writable(self, path: str, *, make_parents: bool, create_only: bool) -> Spot:
        """Return where a file is to be written, after every check that can be made beforehand."""
        if make_parents:
            self._make_parents(_above(path))
        if path.endswith("/"):
            fail(errno.EISDIR, path)
        spot = self.locate(path, follow=not create_only)
        if spot.node is not None:
            if create_only:
                fail(errno.EEXIST, path)
            if spot.node.kind is FileKind.DIRECTORY:
                fail(errno.EISDIR, path)
            if spot.node.kind is not FileKind.FILE:
                fail(errno.EINVAL, path)
        return spot

    def _make_parents(self, path: str) -> None:
        try:
            spot = self.locate(path)
        except FileNotFoundError:
            self._make_parents(_above(path))
            spot = self.locate(path)
        if spot.node is None:
            spot.parent.put(spot.name, Node(FileKind.DIRECTORY, 0o755))
        elif spot.node.kind is not FileKind.DIRECTORY:
            fail(errno.ENOTDIR, path)

    def remove(self, path: str, *, recursive: bool, missing_ok: bool) -> None:
        """Remove a name; a link itself, not what it leads to."""
        try:
            spot = self.locate(path.rstrip("/") or "/", follow=False)
            node = spot.node or fail(errno.ENOENT, path)
        except FileNotFoundError:
            if missing_ok:
                return
            raise
        if node is self.root:
            fail(errno.EBUSY, path)
        if node.children and not recursive:
            fail(errno.ENOTEMPTY, path)
        spot.parent.drop(spot.name)

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        """Rename as `renameat2` does."""
        old, new = self.locate(source, follow=False), self.locate(target, follow=False)
        moved = old.node or fail(errno.ENOENT, source)
        if new.node is not None and not replace:
            fail(errno.EEXIST, target)
        if moved is new.node:
            return
        if moved is self.root:
            fail(errno.EBUSY, source)
        if f"{new.path}/".startswith(f"{old.path}/"):
            fail(errno.EINVAL, target)
        if new.node is not None:
            if moved.kind is FileKind.DIRECTORY and new.node.kind is not FileKind.DIRECTORY:
                fail(errno.ENOTDIR, target)
            if moved.kind is not FileKind.DIRECTORY and new.node.kind is FileKind.DIRECTORY:
                fail(errno.EISDIR, target)
            if new.node.children:
                fail(errno.ENOTEMPTY, target)
        old.parent.drop(old.name)
        new.parent.put(new.name, moved)

    def walk(self, path: str, depth: int, prune: frozenset[str] = frozenset()) -> Iterator[tuple[str, Node]]:
        """Yield path and node of everything below a directory, parents first."""
        level = [(path.rstrip("/"), self.directory(path))]
        while level and depth > 0:
            depth -= 1
            below: list[tuple[str, Node]] = []
            for above, directory in level:
                for name, child in directory.children.items():
                    yield f"{above}/{name}", child
                    if child.kind is FileKind.DIRECTORY and name not in prune:
                        below.append((f"{above}/{name}", child))
            level = below

    def copy(self) -> "Tree":
        """Return an independent tree: same bytes, same hard links, same times."""
        copies: dict[int, Node] = {}

        def twin(node: Node) -> Node:
            if (known := copies.get(id(node))) is None:
                known = copies[id(node)] = replace(node, children={})
                known.children = {name: twin(child) for name, child in node.children.items()}
            return known

        return Tree(twin(self.root))

    def size_bytes(self) -> int:
        """Bytes of all files, each one counted once."""
        nodes = {id(node): node for _, node in self.walk("/", 1 << 30)}
        return sum(node.size_bytes for node in nodes.values())


def info(path: str, node: Node) -> FileInfo:
    """Describe a node as found at a path."""
    return FileInfo(
        path=path,
        kind=node.kind,
        size_bytes=node.size_bytes,
        mode=node.mode,
        uid=0,
        gid=0,
        modified_ns=node.modified_ns,
        links=node.links,
        link_target=node.target if node.kind is FileKind.SYMLINK else None,
    )


def _above(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] or "/"


def _parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _join(trail: list[tuple[Node, str]], name: str = "") -> str:
    names = [part for _, part in trail[1:]]
    return "/" + "/".join([*names, name] if name else names)
