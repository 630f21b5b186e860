"""Images of the embedded engine: root file systems under names, imported once, shared by sandboxes, never changed.

    base/image-<fingerprint>/{root,about.json}   the files, with the sandbox's ids; below the layers of its sandboxes
    images/<name>.json                           which content a name means
    images/.new-*                                being imported; nobody uses it

Content stays as long as a name, a sandbox or a snapshot means it: `LayerStore.collect` asks `named_bases`.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, StateError
from mcp_sandbox.core.image import Image, Recipe
from mcp_sandbox.engines.essentials import complete
from mcp_sandbox.engines.identity import Identity
from mcp_sandbox.hostfs.archives import readable, unpacked
from mcp_sandbox.hostfs.atomic import locked, write_atomically
from mcp_sandbox.hostfs.docker_archives import copy_layers, find_docker_archive
from mcp_sandbox.hostfs.tree_sources import copy_directory, copy_tar
from mcp_sandbox.hostfs.tree_writer import Bounds, TreeWriter, refusal

__all__ = ["Content", "ImageStore", "built_by", "check_name", "is_image", "look_of", "named_bases"]

SCHEMA: Final = 1
PREFIX: Final = "image-"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+~-]{0,199}\Z")
_OVERFLOW_ID: Final = 65_534
_OWN: Final = ("HOME", "USER", "LOGNAME", "SHELL")
"""Variables that an image has no say in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """An imported tree that may have a name or none."""

    base: str
    size_bytes: int
    notes: tuple[str, ...] = ()


def is_image(base: str) -> bool:
    """Whether a base is a whole root file system, and not the host's /usr below a generated one."""
    return base.startswith(PREFIX)


def named_bases(root: Path) -> set[str]:
    """Return the bases that names mean, in the store at `root`."""
    return {record["base"] for record in _records(root).values()}


class ImageStore:
    """Every method blocks.

    Args:
        root: The engine's store.
        identity: Whose ids the files get.
        bounds: How large an image may be.
    """

    def __init__(self, root: Path, identity: Identity, bounds: Bounds | None = None) -> None:
        self.root = root
        self._images = root / "images"
        self._identity = identity
        self._bounds = bounds or Bounds()

    # ------------------------------------------------------------------------------------------ names

    def list(self) -> "list[Image]":
        """Return all images, by name."""
        return [_image(name, record) for name, record in sorted(_records(self.root).items())]

    def base_of(self, name: str) -> str:
        """Return the base that a name means.

        Raises:
            InvalidRequestError: None.
        """
        records = _records(self.root)
        if name not in records or not self._is_there(records[name]["base"]):
            raise InvalidRequestError(
                f"No image {name[:80]!r}",
                why=f"each provider has its own, and this one has {', '.join(sorted(records)) or 'none'}",
                fix="Use one of them, or have the operator add it: `mcp-sandbox image --help`",
            )  # fmt: skip
        return records[name]["base"]

    def made_by(self, made_by: Mapping[str, Any]) -> Content | None:
        """Return what was made before in the same way."""
        for record in _records(self.root).values():
            if record["made_by"] == made_by and self._is_there(record["base"]):
                return Content(base=record["base"], size_bytes=record["size_bytes"], notes=("it was there already",))
        return None

    def name(self, name: str, content: Content, *, origin: str, made_by: Mapping[str, Any]) -> Image:
        """Let a name mean this content from now on."""
        record: dict[str, Any] = {
            "schema": SCHEMA, "base": content.base, "created_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "size_bytes": content.size_bytes, "origin": origin, "made_by": made_by,
        }  # fmt: skip
        self._images.mkdir(exist_ok=True, mode=0o700)
        write_atomically(self._images / f"{check_name(name)}.json", json.dumps(record).encode())
        return _image(name, record, content.notes)

    def remove(self, name: str) -> None:
        """Forget a name. Sandboxes and snapshots that started from it keep the content.

        Raises:
            NotFoundError: There is none.
        """
        try:
            (self._images / f"{check_name(name)}.json").unlink()
        except FileNotFoundError:
            raise NotFoundError(f"No image {name!r}", why="it was removed, or never added", fix="List them") from None

    def environment(self, base: str) -> Mapping[str, str]:
        """Return the variables that programs of an image expect."""
        if not is_image(base):
            return {}
        about = json.loads((self.root / "base" / base / "about.json").read_bytes())
        return {name: value for name, value in about["env"].items() if name not in _OWN}

    def _is_there(self, base: str) -> bool:
        return (self.root / "base" / base).is_dir()

    # ------------------------------------------------------------------------------------------ content

    def require_foreign(self, source: Path) -> None:
        """Refuse a directory that holds the store: a copy of it would hold itself.

        Raises:
            InvalidRequestError: It does.
        """
        if self.root.resolve().is_relative_to(source.resolve()):
            raise refusal("the directory holds the state of mcp-sandbox itself")

    def add(self, source: Path, finish: Callable[[TreeWriter], None] = complete) -> Content:
        """Copy a directory or an archive into the store; whole, or not at all.

        Args:
            source: What to copy.
            finish: Adds what a sandbox needs.

        Raises:
            InvalidRequestError: It cannot be read, or holds what has no place in a sandbox's root.
        """
        self.require_foreign(source)
        if source.is_dir():
            return self._add(lambda writer, left, _: self._pour_directory(source, writer, left), finish)
        with readable(source.name), source.open("rb") as file:
            return self._add(lambda writer, left, scratch: self._pour_archive(file, writer, left, scratch), finish)

    def _pour_directory(self, source: Path, writer: TreeWriter, left: Counter[str]) -> Mapping[str, str]:
        copy_directory(source, writer, left)
        return {}

    def _pour_archive(
        self, file: Any, writer: TreeWriter, left: Counter[str], scratch: Path
    ) -> Mapping[str, str]:  # fmt: skip
        with unpacked(file, scratch, self._bounds) as plain:
            image = find_docker_archive(plain)
            if image is None:
                copy_tar(plain, writer, left)
                return {}
            copy_layers(plain, image, writer, left, scratch, self._bounds)
            return image.env

    def _add(
        self,
        pour: Callable[[TreeWriter, Counter[str], Path], Mapping[str, str]],
        finish: Callable[[TreeWriter], None],
    ) -> Content:
        """Build a tree beside, and put it in place. `pour` gets a place for temporary files, and returns variables."""
        left_out: Counter[str] = Counter()
        with self.beside() as fresh:
            (fresh / "root").mkdir()
            owner = _owners(self._identity, left_out)
            with readable("its content"), TreeWriter(fresh / "root", owner=owner, bounds=self._bounds) as writer:
                env = pour(writer, left_out, fresh)
                if not any((fresh / "root").iterdir()):
                    raise refusal("there is nothing in it", "Give a directory or an archive of a root file system")
                finish(writer)
                written = writer.finish()
            about = json.dumps({"schema": SCHEMA, "env": dict(env)}, sort_keys=True)
            (fresh / "about.json").write_text(about, "utf-8")
            base = f"{PREFIX}{hashlib.sha256(f'{written.digest} {about}'.encode()).hexdigest()[:24]}"
            _sync_file_system(fresh)
            with locked(self.root / "structure.lock"):
                if not self._is_there(base):
                    fresh.rename(self.root / "base" / base)
                os.utime(self.root / "base" / base)  # it has no name yet, and `collect` spares what is new
        notes = tuple(f"{count} {what} left out" for what, count in sorted(left_out.items()))
        return Content(base=base, size_bytes=written.size_bytes, notes=notes)

    @contextlib.contextmanager
    def beside(self) -> Generator[Path]:
        """Yield a fresh directory of ours that is gone afterwards, unless it was put in place."""
        self._images.mkdir(exist_ok=True, mode=0o700)
        fresh = self._images / f".new-{secrets.token_hex(6)}"
        with locked(self.root / "structure.lock"):
            self._sweep()
            fresh.mkdir(mode=0o700)
            descriptor = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # tells `_sweep` that somebody is at it
        try:
            yield fresh
        finally:
            self._discard(fresh)
            os.close(descriptor)

    def _sweep(self) -> None:
        """Discard what killed importers left behind."""
        for left in self._images.glob(".new-*/"):
            with contextlib.suppress(OSError):
                descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._discard(left)
                finally:
                    os.close(descriptor)

    def _discard(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.rename(self.root / "trash" / f"{path.name.lstrip('.')}-{secrets.token_hex(4)}")


def check_name(name: str) -> str:
    """Return a name that an image can have.

    Raises:
        InvalidRequestError: It is none.
    """
    if not _NAME.match(name):
        raise InvalidRequestError(
            f"No image can be called {name[:80]!r}",
            why="a name has up to 200 letters, digits and `. _ : + ~ -`, and begins with one of the first two",
            fix="Choose another name",
        )
    return name


def _owners(identity: Identity, left_out: Counter[str]) -> Callable[[int, int], tuple[int, int]]:
    if not identity.is_range:
        return lambda uid, gid: (identity.start, identity.gid)

    def owner(uid: int, gid: int) -> tuple[int, int]:
        if not (0 <= uid < identity.count and 0 <= gid < identity.count):
            left_out[f"owners beyond {identity.count - 1:,}"] += 1
            uid = uid if 0 <= uid < identity.count else _OVERFLOW_ID
            gid = gid if 0 <= gid < identity.count else _OVERFLOW_ID
        return identity.start + uid, identity.gid + gid

    return owner


def _records(root: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in (root / "images").glob("*.json"):
        name = path.name.removesuffix(".json")
        with contextlib.suppress(FileNotFoundError):
            found[name] = _read(name, path.read_bytes())
    return found


def _read(name: str, text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text)
        if record["schema"] <= SCHEMA and record["base"].startswith(PREFIX):
            return cast("dict[str, Any]", record)
        why = f"a newer mcp-sandbox wrote it (schema {record['schema']}, this version knows {SCHEMA})"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"it is damaged ({error})"
    raise StateError(
        f"Image {name!r} not read", why=why, fix=f"Upgrade mcp-sandbox, or: mcp-sandbox image rm {name}"
    )  # fmt: skip


def _image(name: str, record: Mapping[str, Any], notes: tuple[str, ...] = ()) -> Image:
    return Image(
        name=name, created_at=record["created_at"], size_bytes=record["size_bytes"], origin=record["origin"],
        content=record["base"], notes=notes,
    )  # fmt: skip


def built_by(recipe: Recipe, tool: str) -> dict[str, Any]:
    """Return what makes two builds the same."""
    return {**asdict(recipe), "packages": list(recipe.packages), "tool": tool}


def look_of(source: Path) -> dict[str, Any]:
    """Return what of a file or directory changes when somebody writes to it. Blocks."""
    seen = hashlib.sha256()
    stack = [str(source)]
    device = source.stat().st_dev
    while stack:
        path = stack.pop()
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            seen.update(
                repr((path, found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)).encode()
            )
            if stat.S_ISDIR(found.st_mode) and found.st_dev == device:
                stack += sorted(entry.path for entry in os.scandir(path))
    return {"source": str(source), "look": seen.hexdigest()}


def _sync_file_system(directory: Path) -> None:
    """Have the disk hold all that was written, before a name says that it is whole (man 2 syncfs)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            os.sync()
    finally:
        os.close(descriptor)
