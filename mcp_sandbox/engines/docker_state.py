"""What we remember of containers on this side: variables and limits, which labels would show to whoever looks.

owner                 names this state directory; a label of everything that is made for it
sandboxes/<id>.json   written when a container is ready: one without was never finished. It names the container, so that
                      one write gives a sandbox another one: what a restore replaces, what was started ahead
snapshots/<ref>       times of files, which an image knows in whole seconds only
starts/<id>           the project that was copied into a sandbox, as a tar archive: what it is compared with
locks/<id>            held by whoever replaces or destroys it
"""

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from mcp_sandbox.core.errors import NotFoundError, StateError
from mcp_sandbox.core.sandbox import Limits, SandboxId
from mcp_sandbox.hostfs.atomic import UNFINISHED, write_atomically, write_once

__all__ = ["ContainerState", "ContainerStates"]

SCHEMA: Final = 1
_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """One sandbox."""

    id: str
    created_at: str
    image: str
    """As it was asked for."""
    image_id: str
    """The engine's own name for its content."""
    uid: int
    gid: int
    user: str
    home: str
    env: dict[str, str]
    """Of every command: ours, the image's, the sandbox's."""
    limits: Limits
    workspace: str
    """The mode of its workspace."""
    start_image: str = ""
    """What it started from, as the engine names it; empty in records of old: the image that it has now."""
    start_project: bool = False
    """Whether a project was copied into it then; for a fork, into its source."""
    runtime: str = ""
    """That it runs on, as the engine names it; empty is the engine's default."""
    found_runtime: str = ""
    """What it was found to run on."""
    engine_id: str = ""
    """Of the engine that has it; empty if that has none."""
    container: str = ""
    """The engine's own name for it."""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    """Of the sandbox; those of a container never change."""
    schema: int = SCHEMA


class ContainerStates:
    """All of one state directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        for name in ("sandboxes", "snapshots", "starts", "locks"):
            (root / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        root.chmod(0o700)
        write_once(root / "owner", secrets.token_hex(10).encode())
        self.owner = (root / "owner").read_text("ascii")

    def add(self, state: ContainerState) -> None:
        """Write the state of a new sandbox.

        Raises:
            StateError: There is one with this id.
        """
        if not write_once(self._path(state.id), json.dumps(asdict(state)).encode(), durable=False):
            raise StateError(
                f"Sandbox {state.id!r} not created", why="there is one with this id", fix="Choose another id"
            )

    def rename(self, blank: SandboxId, state: ContainerState) -> None:
        """Make a blank sandbox the one that `state` describes; whoever is killed in between leaves both.

        Raises:
            StateError: There is one with this id; the other is as it was.
        """
        self.add(state)
        self.forget(blank)

    def stamp(self, sandbox: str) -> tuple[int, int]:
        """Return what is another one after every write; zeros if nothing is remembered."""
        try:
            found = self._path(sandbox).stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    def times(self, ref: str) -> Path:
        """Return the file that belongs to a snapshot's image."""
        return self._root / "snapshots" / ref

    def start_images(self) -> "set[str]":
        """Return what sandboxes started from, whatever they stand on now. Blocks."""
        return {state.start_image for state in self.all()}

    def start(self, sandbox: str) -> Path:
        """Return the file with the project that a sandbox started with."""
        return self._root / "starts" / self._path(sandbox).stem

    def keep_start(self, sandbox: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield an archive's pieces; once the last one was taken, all of them are kept as a sandbox's start. Blocks."""
        path = self.start(sandbox)
        beside = path.with_name(f"{UNFINISHED}{path.name}-{secrets.token_hex(8)}")
        try:
            with beside.open("xb") as file:
                for piece in pieces:
                    file.write(piece)
                    yield piece
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    def share_start(self, sandbox: str, copy: str) -> None:
        """Let a fork start with what its source did. Blocks."""
        self.start(copy).unlink(missing_ok=True)
        self.start(copy).hardlink_to(self.start(sandbox))

    def stray_starts(self, before: float) -> "list[Path]":
        """Return the files of starts that were not written since then, and belong to no sandbox. Blocks."""
        found: list[Path] = []
        for path in (self._root / "starts").iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before and not (self._root / "sandboxes" / f"{path.name}.json").exists():
                    found.append(path)
        return found

    def lock(self, sandbox: str) -> Path:
        """Return the lock file of a sandbox."""
        return self._root / "locks" / self._path(sandbox).stem

    def all(self) -> "list[ContainerState]":
        """Return every state that can be read. Blocks."""
        found: list[ContainerState] = []
        for name in self.names():
            with suppress(NotFoundError, StateError):
                found.append(self.load(name))
        return found

    def save(self, state: ContainerState) -> None:
        """Write the state of a sandbox, in place of an older one."""
        write_atomically(self._path(state.id), json.dumps(asdict(state)).encode(), durable=False)

    def load(self, sandbox: SandboxId) -> ContainerState:
        """Return the state of a sandbox.

        Raises:
            NotFoundError: There is none: it was never finished, or belongs to another state directory.
            StateError: It is damaged.
        """
        path = self._path(sandbox)
        try:
            fields: dict[str, Any] = json.loads(path.read_bytes())
            fields["limits"] = Limits(**fields["limits"])
            return ContainerState(**fields)
        except FileNotFoundError:
            raise NotFoundError(
                f"No sandbox {sandbox!r}", why="provider 'docker' has no record of it", fix="Create another one"
            ) from None
        except (ValueError, TypeError, KeyError) as error:
            raise StateError(
                f"Sandbox {sandbox!r} cannot be used", why=f"its record is damaged ({error})", fix="Destroy it"
            ) from error

    def has(self, sandbox: str) -> bool:
        """Whether a sandbox was finished."""
        return bool(_ID.fullmatch(sandbox)) and self._path(sandbox).exists()

    def forget(self, sandbox: str) -> None:
        """Remove what is remembered of a sandbox. No-op if that is nothing."""
        self._path(sandbox).unlink(missing_ok=True)
        self.start(sandbox).unlink(missing_ok=True)
        self.lock(sandbox).unlink(missing_ok=True)

    def names(self) -> "list[SandboxId]":
        """Return every sandbox that was finished."""
        return [SandboxId(path.stem) for path in sorted((self._root / "sandboxes").glob("*.json"))]

    def runtimes(self) -> "dict[str, str]":
        """Return what each sandbox was found to run on."""
        found: dict[str, str] = {}
        for name in self.names():
            with suppress(NotFoundError, StateError):
                found[name] = self.load(name).found_runtime
        return found

    def _path(self, sandbox: str) -> Path:
        if not _ID.fullmatch(sandbox):
            raise NotFoundError(f"No sandbox {sandbox!r}", why="no id looks like that", fix="Correct it")
        return self._root / "sandboxes" / f"{sandbox}.json"
