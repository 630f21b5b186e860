"""The file that one portable snapshot is: chunks named by their digest, a manifest, the record.

An uncompressed tar, so that anybody can look into it, of members in this order: `mcp-sandbox-snapshot` (the version),
`chunks/<SHA-256 of the content>` (each one zstd frame), `manifest.json.zst`, `snapshot.json`. A header that is not
byte for byte what we would have written is refused, so nothing of what tar can say besides reaches anybody.
"""

import hashlib
import importlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final, cast

from mcp_sandbox.core.capability import Facet
from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.core.snapshot import NativeContent, Snapshot
from mcp_sandbox.store.encoding import pairs
from mcp_sandbox.store.identity import ID_PATTERN
from mcp_sandbox.store.manifest import (
    CHUNK_BYTES,
    Entry,
    Manifest,
    damaged,
    decode_manifest,
    encode_manifest,
    pieces,
)

__all__ = ["Archive", "ArchiveWriter"]

_VERSION: Final = b"1\n"
_MARK, _MANIFEST, _RECORD = "mcp-sandbox-snapshot", "manifest.json.zst", "snapshot.json"
_CHUNK: Final = re.compile(r"chunks/([0-9a-f]{64})\Z")
_BLOCK: Final = 512
_END: Final = bytes(2 * _BLOCK)
_LEVEL: Final = 3
_COMPRESSED_MOST: Final = CHUNK_BYTES + (64 << 10)
_MANIFEST_MOST: Final = 512 << 20
_RECORD_MOST: Final = 64 << 10
_TEXT_MOST: Final = 1000
_DENIED_MOST: Final = 1000
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z\Z")
_NAME: Final = re.compile(r"[a-z0-9_.-]{1,64}\Z")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}\Z")
_PREFIX: Final = re.compile(r"[0-9a-f]{64}\Z")


def _zstd() -> Any:
    """Import what compresses: in the standard library from Python 3.14 on, and the same from PyPI before."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ConfigError(
        "No portable snapshot",
        why="the package backports.zstd is not installed",
        fix="Run `pip install backports.zstd`",
    )


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


class ArchiveWriter:
    """Writes one archive from its beginning to its end.

    Args:
        file: What to write to, from where it stands.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._compress = _zstd().compress
        self._written: set[str] = set()
        self._member(_MARK, _VERSION)

    def chunk(self, data: bytes) -> str | None:
        """Add a piece of a file unless it is there already; return its digest, `None` for zeros alone."""
        if data.count(0) == len(data):
            return None
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._written:
            self._written.add(digest)
            self._member(f"chunks/{digest}", self._compress(data, level=_LEVEL))
        return digest

    def finish(self, manifest: Manifest, snapshot: Snapshot) -> None:
        """Add what says how the chunks belong together, and for which snapshot."""
        encoded = encode_manifest(manifest)
        decode_manifest(encoded)  # what would be refused later is not written
        self._member(_MANIFEST, self._compress(encoded, level=_LEVEL))
        record = {
            "id": snapshot.id,
            "manifest": hashlib.sha256(encoded).hexdigest(),
            "manifest_bytes": len(encoded),
            "snapshot": json.loads(snapshot.canonical()),
        }
        self._member(_RECORD, json.dumps(record, sort_keys=True, separators=(",", ":")).encode())
        self._file.write(_END)

    def _member(self, name: str, data: bytes) -> None:
        self._file.write(_header(name, len(data)) + data + bytes(-len(data) % _BLOCK))


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    size: int


class Archive:
    """One archive whose structure was checked; its methods block.

    Args:
        file: Can seek, stays open, and is not changed by anybody meanwhile.

    Raises:
        SnapshotCorruptError: Names the member or the path that is not as it must be.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._zstd = _zstd()
        self._chunks: dict[str, _Place] = {}
        self._read()

    def content(self, entry: Entry) -> Iterator[bytes]:
        """Yield the content of a file, every piece checked against its digest."""
        for digest, size in pieces(entry):
            yield bytes(size) if digest is None else self._chunk(digest, size)

    def check_contents(self) -> None:
        """Read every chunk.

        Raises:
            SnapshotCorruptError: One is not what its digest says; names it.
        """
        checked: dict[str, int] = {}
        for tree in self.manifest.trees:
            for entry in tree.entries:
                for digest, size in pieces(entry):
                    if digest is not None and checked.get(digest) != size:
                        self._chunk(digest, size)
                        checked[digest] = size

    def _chunk(self, digest: str, size: int) -> bytes:
        place = self._chunks[digest]
        self._file.seek(place.offset)
        data = self._decompressed(f"chunks/{digest}", self._file.read(place.size), size)
        if hashlib.sha256(data).hexdigest() != digest:
            raise damaged(f"chunks/{digest}", "its content is not what its name says")
        return data

    def _decompressed(self, name: str, data: bytes, size: int) -> bytes:
        """Return exactly `size` bytes, and never hold more."""
        reader = self._zstd.ZstdDecompressor()
        try:
            found = cast("bytes", reader.decompress(data, max_length=size + 1))
        except (self._zstd.ZstdError, EOFError) as error:
            raise damaged(name, "it cannot be decompressed") from error
        if len(found) != size or not reader.eof or reader.unused_data:
            raise damaged(name, f"it does not hold the {size:,} bytes that it should")
        return found

    def _read(self) -> None:
        if self._take(_MARK, len(_VERSION)) != _VERSION:
            raise damaged(_MARK, "it is of a version that this one does not know")
        name, size = self._next()
        while match := _CHUNK.match(name):
            if match[1] in self._chunks or not 0 < size <= _COMPRESSED_MOST:
                raise damaged(name, "it is there twice, or too large")
            self._chunks[match[1]] = _Place(self._file.tell(), size)
            self._skip(name, size)
            name, size = self._next()
        packed = self._body(name, size, _MANIFEST, _MANIFEST_MOST)
        name, size = self._next()
        record = _record(self._body(name, size, _RECORD, _RECORD_MOST))
        if self._file.read(len(_END) + 1) != _END:
            raise damaged("end", "something comes behind it, or it was cut short")
        encoded = self._decompressed(_MANIFEST, packed, record.manifest_bytes)
        if hashlib.sha256(encoded).hexdigest() != record.manifest:
            raise damaged(_MANIFEST, "its content is not what the record says")
        self.snapshot = record.snapshot
        self.manifest = decode_manifest(encoded)
        needed = set(self.manifest.chunks())
        if lost := sorted(needed - self._chunks.keys()):
            raise damaged(f"chunks/{lost[0]}", "it is missing")
        if more := sorted(self._chunks.keys() - needed):
            raise damaged(f"chunks/{more[0]}", "nothing needs it")

    def _next(self) -> tuple[str, int]:
        """Read one header, which must be what we would have written; return name and size."""
        block = self._file.read(_BLOCK)
        try:
            name = block[:100].rstrip(b"\0").decode("ascii")
            size = int(block[124:135], 8)
            known = name in (_MARK, _MANIFEST, _RECORD) or _CHUNK.match(name)
            if known and block == _header(name, size):
                return name, size
        except (ValueError, UnicodeDecodeError):
            pass
        raise damaged(f"at byte {self._file.tell() - len(block):,}", "it is no snapshot archive, or was cut short")

    def _take(self, wanted: str, most: int) -> bytes:
        name, size = self._next()
        return self._body(name, size, wanted, most)

    def _body(self, name: str, size: int, wanted: str, most: int) -> bytes:
        if name != wanted or size > most:
            raise damaged(name, f"{wanted} of at most {most:,} bytes was to come")
        data = self._file.read(size)
        padding = self._file.read(-size % _BLOCK)
        if len(data) != size or len(padding) != -size % _BLOCK or any(padding):
            raise damaged(name, "it was cut short")
        return data

    def _skip(self, name: str, size: int) -> None:
        self._file.seek(size, 1)
        padding = self._file.read(-size % _BLOCK)
        if len(padding) != -size % _BLOCK or any(padding):
            raise damaged(name, "it was cut short")


@dataclass(frozen=True, slots=True)
class _Record:
    snapshot: Snapshot
    manifest: str
    manifest_bytes: int


def _record(data: bytes) -> _Record:
    try:
        raw = cast("dict[str, Any]", json.loads(data))
        snapshot = _snapshot(raw["snapshot"])
        record = _Record(snapshot, str(raw["manifest"]), int(raw["manifest_bytes"]))
        if raw.keys() != {"id", "manifest", "manifest_bytes", "snapshot"} or raw["snapshot"] != json.loads(
            snapshot.canonical()
        ):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(_RECORD, "it cannot be read") from error
    if snapshot.id != raw["id"]:
        raise damaged(_RECORD, f"its id does not fit its content, whose digest is {snapshot.id[:12]}")
    if not 0 <= record.manifest_bytes <= _MANIFEST_MOST:
        raise damaged(_MANIFEST, f"it is said to have {record.manifest_bytes:,} bytes")
    return record


def _snapshot(raw: Mapping[str, Any]) -> Snapshot:
    native: dict[str, Any] = {**raw["native"]}
    native["holds"] = frozenset(Facet(facet) for facet in native["holds"])
    denied = tuple(raw.get("denied", ()))[:_DENIED_MOST]
    whole: dict[str, Any] = {**raw, "native": NativeContent(**native), "env": pairs(raw.get("env", ()))}
    whole["denied"] = denied
    snapshot = Snapshot(**whole)
    texts = (snapshot.note, snapshot.cwd, snapshot.image, snapshot.native.ref, snapshot.native.method, *denied)
    numbers = (snapshot.native.paused_s, snapshot.native.size_bytes or 0)
    if (
        any(type(text) is not str or len(text) > _TEXT_MOST for text in texts)
        or any(type(number) not in (int, float) for number in numbers)
        or any(not _VARIABLE.match(name) or "\0" in value for name, value in snapshot.env)
        or not ID_PATTERN.match(snapshot.sandbox)
        or not _TIME.match(snapshot.created_at)
        or not _NAME.match(snapshot.native.provider)
        or not (snapshot.parent is None or _PREFIX.match(snapshot.parent))
    ):
        raise ValueError
    return snapshot
