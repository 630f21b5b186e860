"""What the embedded engine keeps on disk: sandboxes, layers, bases and snapshots, each changed by one rename.

    base/<fingerprint>/{root,usr}      generated, shared, never changed; `image_store` adds whole root file systems
    memory/<id>/                       what ran, as gVisor writes it; `runsc_memory` makes and reads it
    layers/<id>/{root,usr,workspace}   the top one of a sandbox is written; one that a snapshot names never is again
    sandboxes/<id>/                    state.json, lock, agent.sock, init.json, spool/, work-*/
    snapshots/<ref>.{json,size}        which layers a snapshot is made of, and how large its own is
    trash/                             removed at leisure

A snapshot freezes the top layer by naming it and giving the sandbox a new one: one atomic write of `state.json`.
"""

import contextlib
import errno
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mcp_sandbox.core.errors import NotFoundError, SandboxGoneError, StateError
from mcp_sandbox.core.sandbox import Limits, SandboxId
from mcp_sandbox.engines.identity import Identity
from mcp_sandbox.engines.image_store import named_bases
from mcp_sandbox.engines.init_process import init_lives
from mcp_sandbox.engines.known_snapshots import KnownSnapshots
from mcp_sandbox.engines.layer_directories import VOLUMES, LayerDirectories
from mcp_sandbox.hostfs.atomic import locked, write_atomically

__all__ = ["BEING_MADE", "SPARE", "VOLUMES", "EngineState", "LayerStore", "StoredSnapshot", "damaged", "destroyed"]

SPARE: Final = "spare-"
"""What the names of sandboxes begin with that nobody has asked for yet."""
SCHEMA: Final = 1
BEING_MADE: Final = "base-"
"""Begins the names in the trash of what is made there and then renamed away; after a crash it goes with the rest."""
BEING_MADE_S: Final = 3600.0
SETTLED_S: Final = 60.0
"""A layer younger than this may not be named yet by the state that it was made for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """What a sandbox is made of."""

    id: str
    created_at: str
    base: str
    layers: tuple[str, ...]
    """Frozen, from the bottom up."""
    top: str
    """The layer that is written."""
    project: str | None
    """Real path of the directory below the workspace."""
    limits: Limits
    env: dict[str, str]
    labels: dict[str, str]
    start: tuple[str, ...] = ()
    """The layers of what it is compared with: none, or those of the snapshot that it or its source was made from."""
    mounted: tuple[str, ...] = ()
    """Layers that its init may have mounted though they are not its own any more."""
    best_effort: bool = False
    """Whether limits that cannot be enforced were accepted."""
    denied: tuple[str, ...] = ()
    """What of the project is not to be seen: globs relative to it."""
    memory: str | None = None  # the processes that it starts with, once
    schema: int = SCHEMA

    def encoded(self) -> bytes:
        """Return what is written of it."""
        plain = {name: getattr(self, name) for name in EngineState.__dataclass_fields__}
        return json.dumps({**plain, "limits": asdict(self.limits)}).encode()

    def as_started(self) -> "StoredSnapshot":
        """Return the state that it started as."""
        return StoredSnapshot(base=self.base, layers=self.start, project=self.project, denied=self.denied)

    def as_it_is(self) -> "StoredSnapshot":
        """Return the state that it has now; its top goes on changing."""
        layers = (*self.layers, self.top)
        return StoredSnapshot(base=self.base, layers=layers, project=self.project, denied=self.denied)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """Which layers a snapshot is made of."""

    base: str
    layers: tuple[str, ...]
    project: str | None
    memory: str | None = None
    denied: tuple[str, ...] = ()
    schema: int = SCHEMA


class LayerStore:
    """All paths that it hands out are relative to `root`, which is also the launcher's directory."""

    def __init__(self, root: Path, identity: Identity) -> None:
        self.root = root
        self._directories = LayerDirectories(str(root), identity)
        for name in ("base", "layers", "memory", "sandboxes", "snapshots", "trash"):
            (root / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        root.chmod(0o700)
        self.known = KnownSnapshots(self, root / "snapshots")

    # ------------------------------------------------------------------------------------------ sandboxes

    def directory(self, sandbox: SandboxId) -> Path:
        """Return a sandbox's directory."""
        return Path(f"{self.root}/sandboxes/{sandbox}")

    def add(self, state: EngineState) -> None:
        """Make a sandbox's directory and state.

        Raises:
            StateError: There is one with this id.
        """
        directory = self.directory(SandboxId(state.id))
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            raise _taken(state.id) from None
        self._directories.make(f"{directory}/spool")
        self.save(state)

    def save(self, state: EngineState) -> None:
        """Replace a sandbox's state."""
        path = self.directory(SandboxId(state.id)) / "state.json"
        try:
            write_atomically(path, state.encoded(), durable=False)
        except FileNotFoundError:
            raise destroyed(state.id) from None

    def load(self, sandbox: SandboxId) -> EngineState:
        """Return a sandbox's state.

        Raises:
            NotFoundError: There is none.
        """
        try:
            fields: dict[str, Any] = json.loads((self.directory(sandbox) / "state.json").read_bytes())
            for name in ("layers", "start", "mounted", "denied"):
                fields[name] = tuple(fields.get(name, ()))
            fields["limits"] = Limits(**fields["limits"])
            return EngineState(**fields)
        except FileNotFoundError:
            raise NotFoundError(
                f"No sandbox {sandbox}", why="the embedded engine has no files of it", fix="List the sandboxes"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(f"Sandbox {sandbox}", error) from error

    def adopt(self, spare: SandboxId, state: EngineState) -> None:
        """Make a spare the sandbox that `state` describes, in one step.

        Raises:
            StateError: There is one with this id.
        """
        path = self.directory(spare) / "state.json"
        write_atomically(path, state.encoded(), durable=False)
        try:
            self.directory(spare).rename(self.directory(SandboxId(state.id)))
        except FileExistsError:
            raise _taken(state.id) from None
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                raise _taken(state.id) from None
            raise

    def sandboxes(self) -> list[SandboxId]:
        """Return the ids of all sandboxes."""
        return [name for name in self._named() if not name.startswith(SPARE)]

    def _named(self) -> list[SandboxId]:
        return [SandboxId(path.parent.name) for path in (self.root / "sandboxes").glob("*/state.json")]

    def lock(self, sandbox: SandboxId) -> Path:
        """Return the lock file that start, snapshot, restore and destroy hold."""
        return self.directory(sandbox) / "lock"

    # ------------------------------------------------------------------------------------------ layers

    def new_layer(self, above: Sequence[str] = ()) -> str:
        """Make an empty layer on top of others; return its id."""
        return self._directories.new_layer(above)

    def is_empty(self, layer: str, above: Sequence[str] = ()) -> bool:
        """Whether a layer says nothing that those below it do not say."""
        return self._directories.is_empty(layer, above)

    def work_directories(self, sandbox: SandboxId) -> Mapping[str, str]:
        """Make fresh work directories by volume; discard those of the last run."""
        directory = f"{self.root}/sandboxes/{sandbox}"
        for old in [name for name in os.listdir(directory) if name.startswith("work-")]:  # noqa: PTH208
            self.discard(Path(directory, old))
        return self._directories.work(sandbox)

    def lowers(self, state: EngineState, volume: str) -> list[str]:
        """Return the frozen layers of a volume that hold anything, from the top down."""
        return self._directories.lowers(state.layers, volume)

    def size_bytes(self, layer: str) -> int:
        """Return the bytes that a layer's files take on the disk."""
        total = 0
        stack = [str(self.root / "layers" / layer)]
        while stack:
            with contextlib.suppress(OSError), os.scandir(stack.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        return total

    # ------------------------------------------------------------------------------------------ snapshots

    def add_snapshot(self, snapshot: StoredSnapshot) -> str:
        """Record a snapshot; return its reference."""
        ref = secrets.token_hex(8)
        self.save_snapshot(ref, snapshot)
        return ref

    def save_snapshot(self, ref: str, snapshot: StoredSnapshot) -> None:
        """Replace the record of a snapshot, unsynced as its layers are; whoever calls sees that it stays meanwhile."""
        path = self.root / "snapshots" / f"{ref}.json"
        write_atomically(path, json.dumps(asdict(snapshot)).encode(), durable=False)

    def snapshots(self) -> list[str]:
        """Return the references of all snapshots."""
        return [name[:-5] for name in os.listdir(self.root / "snapshots") if name.endswith(".json")]  # noqa: PTH208

    def load_snapshot(self, ref: str) -> StoredSnapshot:
        """Return a snapshot's layers.

        Raises:
            NotFoundError: It was deleted.
        """
        try:
            fields: dict[str, Any] = json.loads((self.root / "snapshots" / f"{Path(ref).name}.json").read_bytes())
            for name in ("layers", "denied"):
                fields[name] = tuple(fields.get(name, ()))
            return StoredSnapshot(**fields)
        except FileNotFoundError:
            raise NotFoundError(
                "No such snapshot content", why=f"{ref!r} was deleted from the embedded engine", fix="List snapshots"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise damaged("Snapshot content", error) from error

    def snapshot_size_bytes(self, ref: str) -> int:
        """Return the bytes that a snapshot's own layer takes, counted once. Blocks, longer for many files.

        Raises:
            NotFoundError: It was deleted.
        """
        counted = self.root / "snapshots" / f"{Path(ref).name}.size"
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(counted.read_bytes())
        layers = self.load_snapshot(ref).layers
        size = self.size_bytes(layers[-1]) if layers else 0
        write_atomically(counted, str(size).encode(), durable=False)
        return size

    def remove_snapshot(self, ref: str) -> None:
        """Forget a snapshot; its layers go when nobody else names them."""
        for kind in ("json", "size"):
            (self.root / "snapshots" / f"{Path(ref).name}.{kind}").unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------ removal

    def discard(self, path: Path) -> None:
        """Take a tree out of use at once; `collect` removes it."""
        with contextlib.suppress(FileNotFoundError):
            path.rename(self.root / "trash" / f"{path.name}-{secrets.token_hex(4)}")

    def structure_lock(self) -> Path:
        """Return the lock file to hold while a snapshot's layers are given to a sandbox."""
        return self.root / "structure.lock"

    def collect(self, base: str, *, now: float | None = None) -> list[str]:
        """Discard layers and bases that no sandbox and no snapshot names; return what is in the trash. Blocks.

        Nothing is discarded while anything is damaged: it may name what would go.

        Args:
            base: The one that new sandboxes get; it stays in any case.
            now: The time, if it is not the present.
        """
        with contextlib.suppress(StateError), locked(self.structure_lock()):
            for path in (self.root / "sandboxes").glob(f"{SPARE}*"):
                if not init_lives(path) and _is_settled(path, now, SETTLED_S):
                    self.discard(path)  # whose server was killed
            for path in self.unnamed(base, now=now):
                self.discard(path)
        return [f"trash/{path.name}" for path in (self.root / "trash").iterdir() if not _is_being_made(path, now)]

    def unnamed(self, base: str, *, now: float | None = None) -> list[Path]:
        """Return the layers and bases that `collect` would discard; hold the structure lock.

        Raises:
            StateError: The state of a sandbox or a snapshot cannot be read.
        """
        layers: set[str] = set()
        memory: set[str | None] = set()
        bases = {base, *named_bases(self.root)}
        for sandbox in self._named():
            with contextlib.suppress(NotFoundError):
                state = self.load(sandbox)
                layers |= {*state.layers, state.top, *state.start, *state.mounted}
                bases.add(state.base)
                memory.add(state.memory)
        for ref in self.snapshots():
            with contextlib.suppress(NotFoundError):
                snapshot = self.known.get(ref)
                layers.update(snapshot.layers)
                bases.add(snapshot.base)
                memory.add(snapshot.memory)
        return [
            path
            for kind, used in (("layers", layers), ("base", bases), ("memory", memory))
            for path in (self.root / kind).iterdir()
            if path.name not in used and _is_settled(path, now, SETTLED_S)
        ]


def _is_being_made(path: Path, now: float | None) -> bool:
    return path.name.startswith(BEING_MADE) and not _is_settled(path, now, BEING_MADE_S)


def _is_settled(path: Path, now: float | None, seconds: float) -> bool:
    try:
        age_s = (time.time() if now is None else now) - path.stat().st_ctime
        return age_s > seconds
    except FileNotFoundError:
        return False


def _taken(sandbox: str) -> StateError:
    return StateError("Sandbox not created", why=f"there is one with the id {sandbox}", fix="Choose a fresh id")


def damaged(what: str, error: Exception) -> StateError:
    """Return the error for state on the disk that makes no sense."""
    return StateError(
        f"{what} cannot be used", why=f"its state on the disk is damaged, or of a newer version ({error!r})",
        fix="Upgrade mcp-sandbox if it is newer; else destroy it, and go on from a snapshot",
    )  # fmt: skip


def destroyed(sandbox: str) -> SandboxGoneError:
    """Return the error for whoever still used a sandbox."""
    return SandboxGoneError(f"Sandbox {sandbox} is gone", why="it was destroyed meanwhile", fix="Create another one")
