"""What the trees of a portable snapshot hold: every path with its look, files as lists of chunks.

A manifest may come from anybody. Whatever is not exactly what we would have written is refused, with the path named.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from mcp_sandbox.core.attributes import checked_attributes
from mcp_sandbox.core.errors import SnapshotCorruptError

__all__ = [
    "CHUNK_BYTES",
    "MOST_BYTES",
    "Entry",
    "Manifest",
    "Tree",
    "damaged",
    "decode_manifest",
    "encode_manifest",
    "pieces",
    "sorted_entries",
]

CHUNK_BYTES: Final = 1 << 20
MOST_BYTES: Final = 16 << 30
"""Of all files together, as they are when they are unpacked."""
MOST_ENTRIES: Final = 2_000_000
MOST_TREES: Final = 64
SCHEMA: Final = 2
"""What versions knew before there were extended attributes is still written as 1: they read it."""
_WITHOUT_ATTRIBUTES: Final = 1
_PATH_BYTES: Final = 4095
_NAME_BYTES: Final = 255
_MOST_LEFT_OUT: Final = 10_000
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_KERNEL_TREES: Final = ("/proc", "/sys", "/dev")
_ON_FILES: Final = 0o1777
"""Bits of a file's mode that are carried; the others would give its owner's rights to whoever runs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One path. Of extended attributes those of programs (`user.*`) are carried."""

    path: str
    """Relative to its tree; empty is the directory itself."""
    kind: str
    """`d`, `f`, `l` (symbolic link), `h` (another name of a file), `p` (FIFO)."""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    modified_ns: int = 0
    size_bytes: int = 0
    target: str = ""
    """What a symbolic link says; for `h` the path that came first."""
    chunks: tuple[str | None, ...] = ()
    """Digests, one per `CHUNK_BYTES` of a file; `None` is a hole."""
    attributes: tuple[tuple[str, bytes], ...] = ()
    """Names and values, sorted; of files and directories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A directory of the sandbox with everything in it, sorted by path."""

    root: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that a portable snapshot says about files."""

    trees: tuple[Tree, ...]
    left_out: tuple[str, ...] = ()
    """Paths that changed in the sandbox and are not carried."""

    def chunks(self) -> Iterable[str]:
        """Yield the digests of all chunks, in the order in which they are needed."""
        for tree in self.trees:
            for entry in tree.entries:
                yield from (digest for digest in entry.chunks if digest is not None)


def damaged(what: str, why: str) -> SnapshotCorruptError:
    """Return the refusal of an archive, or of a part of it."""
    return SnapshotCorruptError(
        f"Snapshot archive refused ({what})", why=why, fix="Export it again, or use another one"
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the one form that a manifest has."""
    trees = [{"root": tree.root, "entries": [_plain(entry) for entry in tree.entries]} for tree in manifest.trees]
    has_attributes = any(entry.attributes for tree in manifest.trees for entry in tree.entries)
    schema = SCHEMA if has_attributes else _WITHOUT_ATTRIBUTES
    whole = {"schema": schema, "trees": trees, "left_out": list(manifest.left_out)}
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


def _plain(entry: Entry) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "path": entry.path, "kind": entry.kind, "mode": entry.mode, "uid": entry.uid, "gid": entry.gid,
        "modified_ns": entry.modified_ns,
    }  # fmt: skip
    if entry.kind == "f":
        plain |= {"size_bytes": entry.size_bytes, "chunks": list(entry.chunks)}
    if entry.kind in "lh":
        plain["target"] = entry.target
    if entry.attributes:
        plain["attributes"] = {name: base64.b64encode(value).decode() for name, value in entry.attributes}
    return plain


def decode_manifest(data: bytes) -> Manifest:
    """Return a manifest that was checked to the last path.

    Raises:
        SnapshotCorruptError: It is not one that we would have written; the path is named.
    """
    try:
        raw = cast("dict[str, Any]", json.loads(data))
        if raw["schema"] not in (SCHEMA, _WITHOUT_ATTRIBUTES):
            raise damaged("manifest", f"it has schema {raw['schema']!r}, and this version knows {SCHEMA}")
        trees = tuple(
            Tree(root=str(tree["root"]), entries=tuple(_entry(each) for each in tree["entries"]))
            for tree in raw["trees"]
        )
        manifest = Manifest(trees=trees, left_out=tuple(str(path) for path in raw["left_out"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged("manifest", "it cannot be read") from error
    if encode_manifest(manifest) != data:
        raise damaged("manifest", "it is not in the form that we write")
    _check_trees(manifest)
    return manifest


def _entry(raw: Mapping[str, Any]) -> Entry:
    numbers = {name: raw.get(name, 0) for name in ("mode", "uid", "gid", "modified_ns", "size_bytes")}
    texts = {"path": raw["path"], "kind": raw["kind"], "target": raw.get("target", "")}
    if any(type(number) is not int for number in numbers.values()) or any(type(t) is not str for t in texts.values()):
        raise TypeError("a field of the wrong type")
    values = cast("dict[str, str]", raw.get("attributes", {}))
    attributes = checked_attributes({name: base64.b64decode(value, validate=True) for name, value in values.items()})
    return Entry(**texts, **numbers, chunks=tuple(raw.get("chunks", ())), attributes=tuple(attributes.items()))


def _check_trees(manifest: Manifest) -> None:
    roots = [tree.root for tree in manifest.trees]
    if len(roots) > MOST_TREES or len(manifest.left_out) > _MOST_LEFT_OUT:
        raise damaged("manifest", "it has too many trees")
    for root in roots:
        if not _is_absolute(root) or any(_lies_in(root, tree) for tree in _KERNEL_TREES):
            raise damaged(repr(root), "it is no directory that can be carried")
        if sum(_lies_in(root, other) for other in roots) != 1:
            raise damaged(repr(root), "it is there twice, or inside of another one")
    total = entries = 0
    for tree in manifest.trees:
        _check_tree(tree)
        entries += len(tree.entries)
        total += sum(entry.size_bytes for entry in tree.entries)
    if entries > MOST_ENTRIES or total > MOST_BYTES:
        raise damaged("manifest", f"it has {entries:,} paths and {total:,} bytes; too many")


def _lies_in(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory}/")


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and _is_relative(path[1:])


def _is_relative(path: str) -> bool:
    raw = path.encode("utf-8", "surrogateescape")
    names = path.split("/")
    return 0 < len(raw) <= _PATH_BYTES and b"\0" not in raw and all(map(_is_name, names))


def _is_name(name: str) -> bool:
    return name not in ("", ".", "..") and len(name.encode("utf-8", "surrogateescape")) <= _NAME_BYTES


def _check_tree(tree: Tree) -> None:
    directories: set[str] = set()
    files: set[str] = set()
    before: bytes | None = None
    for entry in tree.entries:
        shown = repr(f"{tree.root}/{entry.path}")
        try:
            key = _key(entry.path)
            why = _fault(entry, directories, files)
        except UnicodeEncodeError:
            raise damaged(shown, "its name cannot be one of a file") from None
        if before is not None and key <= before:
            why = "it is there twice, or out of order"
        if why:
            raise damaged(shown, why)
        before = key
        if entry.kind == "d":
            directories.add(entry.path)
        elif entry.kind == "f":
            files.add(entry.path)
    if not tree.entries or tree.entries[0].path:
        raise damaged(repr(tree.root), "it says nothing of the directory itself")


def _key(path: str) -> bytes:
    """Return what entries are sorted by: parents stand before their children, wherever the names sort."""
    return path.encode("utf-8", "surrogateescape").replace(b"/", b"\0")


def sorted_entries(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return entries in the order of a manifest."""
    return tuple(sorted(entries, key=lambda entry: _key(entry.path)))


def _fault(entry: Entry, directories: set[str], files: set[str]) -> str:
    """Return what is wrong with an entry, empty if nothing is."""
    parent, _, name = entry.path.rpartition("/")
    if entry.path and (not _is_relative(entry.path) or not name):
        return "its name leads elsewhere"
    if entry.path and parent not in directories:
        return "it lies in something that is no directory here"
    if entry.kind not in ("d", "f", "l", "h", "p") or (not entry.path and entry.kind != "d"):
        return f"it is of kind {entry.kind!r}; only directories, files, links and FIFOs are carried"
    if not 0 <= entry.mode <= 0o7777 or (entry.kind != "d" and entry.mode & ~_ON_FILES):
        return f"its mode {entry.mode:o} is not carried (set-user-id, or no mode)"
    if not (0 <= entry.uid < 1 << 32 and 0 <= entry.gid < 1 << 32 and abs(entry.modified_ns) < 1 << 63):
        return "its owner or time is out of range"
    if entry.attributes and entry.kind not in "df":
        return "it has extended attributes, which only files and directories have"
    if entry.kind == "h" and entry.target not in files:
        return f"it is another name of {entry.target!r}, which is no file before it"
    if entry.kind == "l" and not 0 < len(entry.target.encode("utf-8", "surrogateescape")) <= _PATH_BYTES:
        return "it is a link without a target"
    if entry.kind == "l" and "\0" in entry.target:
        return "it is a link to no path"
    return _content_fault(entry) if entry.kind == "f" else ""


def _content_fault(entry: Entry) -> str:
    if not 0 <= entry.size_bytes <= MOST_BYTES:
        return f"it has {entry.size_bytes:,} bytes, and {MOST_BYTES:,} is the most"
    if len(entry.chunks) != -(-entry.size_bytes // CHUNK_BYTES):
        return "its chunks do not make up its size"
    if any(digest is not None and not _DIGEST.match(digest) for digest in entry.chunks):
        return "a chunk of it has no digest"
    return ""


def pieces(entry: Entry) -> Sequence[tuple[str | None, int]]:
    """Return the chunks of a file with the size of each."""
    last = entry.size_bytes - CHUNK_BYTES * (len(entry.chunks) - 1)
    return [(digest, last if at == len(entry.chunks) - 1 else CHUNK_BYTES) for at, digest in enumerate(entry.chunks)]
