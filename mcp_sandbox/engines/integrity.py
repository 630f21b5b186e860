"""Whether all that a snapshot of the embedded engine is made of is there, and as it was.

Frozen layers are never written again. Each one gets a list of what is in it, with a digest of every file: behind the
answer, when nothing was frozen for a while, after whatever else the machine has to do. What was interrupted goes on
with the next server, or with whoever verifies. A merged layer takes over the digests of those that it was made of, so
that it does not bless what went wrong before. The list lies in the layer, and goes with it.
"""

import asyncio
import contextlib
import hashlib
import itertools
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import anyio
from anyio import to_thread

from mcp_sandbox.core.errors import CapacityError, NotFoundError, ProviderError, StateError
from mcp_sandbox.engines.launcher import Launcher
from mcp_sandbox.engines.layer_store import BEING_MADE, VOLUMES, LayerStore
from mcp_sandbox.hostfs.atomic import alocked

__all__ = ["Integrity", "inherit_contents"]

_LOG = logging.getLogger(__name__)
QUIET_S: Final = 5.0
CHECKED_S: Final = 60.0
"""Snapshots share layers: one that was just looked at is not read again."""
_LIST: Final = "contents"
_TRAILER_BYTES: Final = 67
_LARGEST_BYTES: Final = 256 << 20
"""Lists that are compared name by name; of larger ones that differ only that is said."""
_MOST_NAMED: Final = 20
_PIECE_BYTES: Final = 1 << 20


class Integrity:
    """Use as a context manager: leaving it ends what is under way.

    Args:
        store: Where layers are.
        launcher: Runs the guest agent's role `contents`.
    """

    def __init__(self, store: LayerStore, launcher: Launcher) -> None:
        self._store, self._launcher = store, launcher
        self._task: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._checked: dict[str, tuple[float, list[str]]] = {}

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what is under way."""
        if self._task is not None:
            self._task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(self._task, return_exceptions=True)

    def soon(self) -> None:
        """Have the layers of all snapshots listed, once nobody asked for that for some seconds."""
        self._asked_at = anyio.current_time()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._list_unlisted())

    async def _list_unlisted(self) -> None:
        asked_at = 0.0
        while asked_at != self._asked_at:
            asked_at = self._asked_at
            await anyio.sleep(QUIET_S)
            if asked_at != self._asked_at:
                continue
            with contextlib.suppress(CapacityError):  # somebody else is at it
                async with alocked(self._store.root / "contents.lock", wait_s=0):
                    for layer in await to_thread.run_sync(_unlisted, self._store):
                        try:
                            await _list(self._store, self._launcher, layer, behind=True)
                        except (ProviderError, OSError) as error:
                            _LOG.info("layer %s was not listed: %s", layer, error)

    async def faults(self, ref: str) -> list[str]:
        """Return what is missing of a snapshot, and what in it is not as it was when it was listed."""
        try:
            snapshot = self._store.load_snapshot(ref)
        except NotFoundError:
            return ["its list of layers is gone"]
        except (StateError, ValueError, KeyError, TypeError):
            return ["its list of layers cannot be read"]
        wanted = {f"layer {layer}": f"layers/{layer}/{volume}" for layer in snapshot.layers for volume in VOLUMES}
        wanted["what it stands on"] = f"base/{snapshot.base}/root"
        missing = [f"{what} is missing" for what, path in wanted.items() if not (self._store.root / path).is_dir()]
        found = missing or [fault for layer in snapshot.layers for fault in await self._faults_of(layer)]
        return [*dict.fromkeys(found)]

    async def _faults_of(self, layer: str) -> list[str]:
        checked_at, found = self._checked.get(layer, (float("-inf"), []))
        if anyio.current_time() - checked_at > CHECKED_S:
            found = [f"layer {layer}: {fault}" for fault in await self._compared(layer)]
            self._checked[layer] = (anyio.current_time(), found)
        return found

    async def _compared(self, layer: str) -> Sequence[str]:
        recorded = self._store.root / "layers" / layer / _LIST
        try:
            if not recorded.exists():
                await _list(self._store, self._launcher, layer)
                return []
            fresh = await _listed(self._store, self._launcher, layer)
        except (ProviderError, OSError) as error:
            return [f"it cannot be read ({error.why if isinstance(error, ProviderError) else error.strerror})"]
        try:
            return await to_thread.run_sync(_differences, recorded, fresh)
        finally:
            fresh.unlink()


async def inherit_contents(store: LayerStore, launcher: Launcher, layer: str, sources: Sequence[str]) -> None:
    """List a layer that was made of others, with the digests that they were listed with, if any was."""
    known = [f"layers/{source}/{_LIST}" for source in sources if (store.root / "layers" / source / _LIST).exists()]
    if known:
        await _list(store, launcher, layer, *known, behind=True)


async def _list(store: LayerStore, launcher: Launcher, layer: str, *known: str, behind: bool = False) -> None:
    (await _listed(store, launcher, layer, *known, behind=behind)).replace(store.root / "layers" / layer / _LIST)


async def _listed(store: LayerStore, launcher: Launcher, layer: str, *known: str, behind: bool = False) -> Path:
    """Return a fresh list of what is in a layer."""
    target = f"trash/{BEING_MADE}{_LIST}-{secrets.token_hex(6)}"
    try:
        await launcher.run("contents", "behind" if behind else "now", f"layers/{layer}", target, *known)
    except BaseException:
        (store.root / target).unlink(missing_ok=True)
        raise
    return store.root / target


def _unlisted(store: LayerStore) -> list[str]:
    layers: dict[str, None] = {}
    for ref in store.snapshots():
        with contextlib.suppress(NotFoundError, StateError):
            layers |= dict.fromkeys(store.load_snapshot(ref).layers)
    return [layer for layer in layers if not (store.root / "layers" / layer / _LIST).exists()]


# ------------------------------------------------------------------------------------------------ lists


class _Entry(NamedTuple):
    kind: bytes
    mode: bytes
    owner: tuple[bytes, bytes]
    modified: bytes
    content: tuple[bytes, ...]
    parent: bytes
    name: bytes


def _differences(recorded: Path, fresh: Path) -> list[str]:
    """Compare two lists. Blocks."""
    if not _is_sound(recorded):
        return ["the list of what is in it is damaged"]
    if _is_same(recorded, fresh):
        return []
    if max(recorded.stat().st_size, fresh.stat().st_size) > _LARGEST_BYTES:
        return ["not everything in it is as it was"]
    then, now = _parsed(recorded), _parsed(fresh)
    faults = [
        f"{_path(then if key in then else now, key)!r} {what}"
        for key in dict.fromkeys(itertools.chain(then, now))
        if (what := _difference(then.get(key), now.get(key)))
    ]
    more = [f"and {len(faults) - _MOST_NAMED} more"] if len(faults) > _MOST_NAMED else []
    return faults[:_MOST_NAMED] + more


def _is_sound(path: Path) -> bool:
    """Whether a list ends with its own digest."""
    left, digest = path.stat().st_size - _TRAILER_BYTES, hashlib.sha256()
    with path.open("rb") as file:
        while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
        return file.read() == b"z %s\0" % digest.hexdigest().encode()


def _is_same(one: Path, other: Path) -> bool:
    with one.open("rb") as left, other.open("rb") as right:
        while (piece := left.read(_PIECE_BYTES)) == right.read(_PIECE_BYTES):
            if not piece:
                return True
    return False


def _parsed(path: Path) -> dict[bytes, _Entry]:
    """Return the entries of a list, by a key that stands for the path: whole paths of deep trees would be too long."""
    directories = [b""]
    entries: dict[bytes, _Entry] = {}
    for record in _records(path):
        kind, parent, mode, uid, gid, size, modified, device, _, digest, name = record.split(b" ", 10)
        above = directories[int(parent)]
        key = hashlib.sha256(above + name).digest()
        entries[key] = _Entry(kind, mode, (uid, gid), modified, (size, device, digest), above, name)
        if kind == b"d":
            directories.append(key)
    return entries


def _records(path: Path) -> Iterator[bytes]:
    yield from path.read_bytes()[:-_TRAILER_BYTES].split(b"\0")[:-1]


def _difference(then: _Entry | None, now: _Entry | None) -> str:
    if then is None or now is None:
        return "is gone" if now is None else "was not there"
    names = {"kind": "kind", "content": "content", "mode": "mode", "owner": "owner", "modified": "time"}
    changed = [word for field, word in names.items() if getattr(then, field) != getattr(now, field)]
    return f"differs: {', '.join(changed)}" if changed else ""


def _path(entries: dict[bytes, _Entry], key: bytes) -> str:
    """Return a path as the sandbox shows it."""
    names: list[str] = []
    while key:
        entry = entries[key]
        names.append(os.fsdecode(entry.name))
        key = entry.parent
    target = VOLUMES[names.pop()]
    return f"{target.rstrip('/')}/{'/'.join(reversed(names))}" if names else target
