"""What killed servers left in the embedded engine, told from what live ones use or are just making.

A sandbox is in use while its init lives, which ends with its last connection; init is known by its number, its start
time and the boot. What is new may be under way; what is remembered elsewhere stays in any case.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from anyio import to_thread

from mcp_sandbox.core.errors import NotFoundError, ProviderError, StateError
from mcp_sandbox.core.leftovers import EXPIRES, Leftover, Remembered
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.engines.embedded import EmbeddedEngine
from mcp_sandbox.engines.init_process import init_pid
from mcp_sandbox.engines.layer_store import SETTLED_S, LayerStore
from mcp_sandbox.engines.layering import destroy
from mcp_sandbox.engines.selftest import CANARY
from mcp_sandbox.hostfs.atomic import locked, sweep_unfinished

__all__ = ["collect_leftovers"]

NAMING_S: Final = 600.0
"""How long it may take until a snapshot that was just taken is remembered."""


async def collect_leftovers(
    engine: EmbeddedEngine, remembered: Remembered, *, kept_s: float, now: float, dry_run: bool
) -> Sequence[Leftover]:
    """Remove what nobody remembers and nobody uses; return it. Arguments are those of `Provider.collect`."""
    store = engine.store
    found: list[Leftover] = []
    for directory in await to_thread.run_sync(lambda: sorted((store.root / "sandboxes").iterdir())):
        sandbox = SandboxId(directory.name)
        why = await to_thread.run_sync(_why_unused, store, sandbox, kept_s, now)
        if not why or remembered.sandbox(sandbox):
            continue
        found.append(Leftover(kind="sandbox", name=sandbox, why=why))
        if not dry_run:
            with contextlib.suppress(ProviderError):  # next time
                await destroy(engine, sandbox)
    found += await to_thread.run_sync(lambda: [*_snapshots(store, remembered, max(kept_s, NAMING_S), now, dry_run)])
    found += await to_thread.run_sync(lambda: [*_layers(store, engine.bases.built or "", now)])
    found += await to_thread.run_sync(lambda: [*_files(store, now, dry_run)])
    if not dry_run:
        for path in await to_thread.run_sync(lambda: store.collect(engine.bases.built or "", now=now)):
            with contextlib.suppress(ProviderError):
                await engine.launcher.run("remove", path)
    return found


def _why_unused(store: LayerStore, sandbox: SandboxId, kept_s: float, now: float) -> str:
    """Return why nobody needs a sandbox that is not remembered, empty if somebody may."""
    directory = store.directory(sandbox)
    age_s = _age_s(directory, now)
    if age_s < SETTLED_S or init_pid(directory) is not None:
        return ""
    try:
        state = store.load(sandbox)
    except NotFoundError:
        return "it was never finished"
    except StateError:
        return "" if age_s < kept_s else "its state is damaged"
    if EXPIRES in state.labels or not sandbox.startswith("sb_"):
        return "it was made for a passing purpose, by a process that is dead"
    return "" if age_s < kept_s else "no record names it"


def _snapshots(
    store: LayerStore, remembered: Remembered, kept_s: float, now: float, dry_run: bool
) -> Iterator[Leftover]:
    with locked(store.structure_lock()):
        for ref in store.snapshots():
            if _age_s(store.root / "snapshots" / f"{ref}.json", now) < kept_s or remembered.snapshot(ref):
                continue
            yield Leftover(kind="snapshot", name=ref, why="no record names it")
            if not dry_run:
                store.remove_snapshot(ref)


def _layers(store: LayerStore, base: str, now: float) -> Iterator[Leftover]:
    with contextlib.suppress(StateError), locked(store.structure_lock()):
        for path in store.unnamed(base, now=now):
            yield Leftover(kind="layer", name=f"{path.parent.name}/{path.name}", why="no sandbox or snapshot names it")


def _files(store: LayerStore, now: float, dry_run: bool) -> Iterator[Leftover]:
    """Yield canaries of a self-test that was killed; remove those and every file that was never finished."""
    for path in store.root.glob(f"{CANARY}*"):
        if _age_s(path, now) > NAMING_S:
            yield Leftover(kind="file", name=path.name, why="a self-test was killed")
            if not dry_run:
                path.unlink(missing_ok=True)
    if not dry_run:
        for directory in (store.root, store.root / "snapshots", *(store.root / "sandboxes").iterdir()):
            sweep_unfinished(directory)


def _age_s(path: Path, now: float) -> float:
    """Return how long ago a file, or what is directly in a directory, was last changed."""
    try:
        inside = [entry.lstat().st_mtime for entry in path.iterdir()] if path.is_dir() else []
        return now - max([path.lstat().st_mtime, *inside])
    except OSError:
        return 0.0
