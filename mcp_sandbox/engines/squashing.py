"""Layers that become one, so that no stack grows deep and nothing stays that nobody can see.

A run of layers is merged into a new one (files are linked, not copied), and every sandbox and snapshot whose stack has
the whole run gets the new one in its place, each by one write: a kill at any point leaves the old stack or the new one,
and both show the same, but for the number of links of a file, which counts the layers that share it. No layer is
changed. Those that nobody names or has mounted any more are collected later.
"""

import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from anyio import to_thread

from mcp_sandbox.core.errors import CapacityError, NotFoundError, ProviderError, StateError
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.engines.init_process import init_pid
from mcp_sandbox.engines.integrity import inherit_contents
from mcp_sandbox.engines.launcher import Launcher
from mcp_sandbox.engines.layer_store import LayerStore
from mcp_sandbox.hostfs.atomic import alocked

__all__ = ["DEPTH", "squash"]

DEPTH: Final = 32
"""Layers that a stack may have before the lowest ones are merged."""
_LOG = logging.getLogger(__name__)
_MOST_RUNS: Final = 1000
_BUSY_S: Final = 5.0

_Stack = tuple[str, ...]


async def squash(store: LayerStore, launcher: Launcher, marks: str) -> None:
    """Merge whatever can be merged, unless another process is at it.

    Args:
        store: What to work on.
        launcher: Runs the guest agent's role `merge`.
        marks: What the names of overlayfs's extended attributes begin with.
    """
    with contextlib.suppress(CapacityError, StateError):  # what cannot be read may hold a part of any run
        async with alocked(store.root / "squash.lock", wait_s=0):
            done: set[_Stack] = set()
            for _ in range(_MOST_RUNS):
                run = await to_thread.run_sync(_next_run, store, done)
                if run is None:
                    break
                done.add(run)
                try:
                    await _replace(store, run, await _merged(store, launcher, marks, run))
                except (ProviderError, OSError) as error:
                    _LOG.warning("%d layers were not merged: %s", len(run), error)


def _stacks(store: LayerStore) -> list[_Stack]:
    """Return the frozen layers of everything that has some; of what is damaged nobody knows, and it keeps them."""
    stacks: list[_Stack] = []
    for sandbox in store.sandboxes():
        with contextlib.suppress(NotFoundError, StateError):
            state = store.load(sandbox)
            stacks += [state.layers, state.start]
    for ref in store.snapshots():
        with contextlib.suppress(NotFoundError, StateError):
            stacks.append(store.known.get(ref).layers)
    return stacks


def _next_run(store: LayerStore, done: set[_Stack]) -> _Stack | None:
    stacks = _stacks(store)
    runs = [stack[:DEPTH] for stack in stacks if len(stack) > DEPTH] + _inseparable(stacks)
    return next((run for run in runs if run not in done), None)


def _inseparable(stacks: Sequence[_Stack]) -> list[_Stack]:
    """Return runs that no stack holds a part of: what one of their layers hides in another can never be seen again."""
    above: dict[str, set[str | None]] = {}
    below: dict[str, set[str | None]] = {}
    for stack in stacks:
        for lower, upper in zip((None, *stack), (*stack, None), strict=True):
            if lower is not None:
                above.setdefault(lower, set()).add(upper)
            if upper is not None:
                below.setdefault(upper, set()).add(lower)
    follows = {
        lower: upper
        for lower, uppers in above.items()
        if len(uppers) == 1 and (upper := next(iter(uppers))) is not None and below[upper] == {lower}
    }
    runs: list[_Stack] = []
    for first in follows.keys() - follows.values():
        run = [first]
        while run[-1] in follows:
            run.append(follows[run[-1]])
        runs.append(tuple(run))
    return sorted(runs)


async def _merged(store: LayerStore, launcher: Launcher, marks: str, run: _Stack) -> str:
    """Make the layer that shows what a run shows."""
    name = secrets.token_hex(6)
    layers = [f"layers/{layer}" for layer in reversed(run)]
    async with alocked(store.structure_lock(), shared=True):
        await launcher.run("merge", marks, f"layers/{name}", *layers)
        await inherit_contents(store, launcher, name, run)
    return name


async def _replace(store: LayerStore, run: _Stack, merged: str) -> None:
    """Put a layer in the place of a run, wherever it is."""
    refs, sandboxes = await to_thread.run_sync(_holders, store, run)
    # Not found: it is gone. Damaged or busy: it keeps its stack, which is as good.
    for ref in refs:
        with contextlib.suppress(NotFoundError, StateError, CapacityError):
            await to_thread.run_sync(store.snapshot_size_bytes, ref)  # later nobody can tell what was its own
            async with _changing(store, merged):
                snapshot = store.load_snapshot(ref)
                store.save_snapshot(ref, replace(snapshot, layers=_replaced(snapshot.layers, run, merged)))
    for sandbox in sandboxes:
        with contextlib.suppress(NotFoundError, StateError, FileNotFoundError, CapacityError):
            await _replace_in_sandbox(store, sandbox, run, merged)


@asynccontextmanager
async def _changing(store: LayerStore, merged: str) -> AsyncGenerator[None]:
    """Keep everybody from taking layers into use and from collecting them.

    Raises:
        NotFoundError: The merged layer was collected: it took too long until somebody named it.
    """
    async with alocked(store.structure_lock()):
        if not (store.root / "layers" / merged).is_dir():
            raise NotFoundError("Layers not merged", why="the merged one was collected", fix="It is tried again")
        yield


def _holders(store: LayerStore, run: _Stack) -> tuple[list[str], list[SandboxId]]:
    """Return the snapshots and the sandboxes whose stacks have a run."""
    refs: list[str] = []
    sandboxes: list[SandboxId] = []
    for ref in store.snapshots():
        with contextlib.suppress(NotFoundError, StateError):
            refs += [ref] * _has(store.known.get(ref).layers, run)
    for sandbox in store.sandboxes():
        with contextlib.suppress(NotFoundError, StateError):
            state = store.load(sandbox)
            sandboxes += [sandbox] * (_has(state.layers, run) or _has(state.start, run))
    return refs, sandboxes


async def _replace_in_sandbox(store: LayerStore, sandbox: SandboxId, run: _Stack, merged: str) -> None:
    async with alocked(store.lock(sandbox), wait_s=_BUSY_S), _changing(store, merged):
        state = store.load(sandbox)
        layers, start = (_replaced(stack, run, merged) for stack in (state.layers, state.start))
        mounted = dict.fromkeys((*state.mounted, *state.layers)) if init_pid(store.directory(sandbox)) else ()
        store.save(replace(state, layers=layers, start=start, mounted=tuple(mounted)))


def _replaced(stack: _Stack, run: _Stack, merged: str) -> _Stack:
    for at in range(len(stack) - len(run) + 1):
        if stack[at : at + len(run)] == run:
            return (*stack[:at], merged, *stack[at + len(run) :])
    return stack


def _has(stack: _Stack, run: _Stack) -> bool:
    return _replaced(stack, run, "") != stack
