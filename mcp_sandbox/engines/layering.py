"""Snapshots of the embedded engine: freeze the top layer, or copy it while the processes stand still.

Whoever calls holds the sandbox's lock.
"""

import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio

from mcp_sandbox.core.errors import ProviderError, SandboxGoneError
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.engines.carrier import GuestCarrier, GuestRestarting
from mcp_sandbox.engines.embedded import EmbeddedEngine
from mcp_sandbox.engines.init_process import kill_init, wait_dead
from mcp_sandbox.engines.layer_store import EngineState, StoredSnapshot
from mcp_sandbox.engines.squashing import DEPTH, squash
from mcp_sandbox.guest.wire import Type
from mcp_sandbox.hostfs.atomic import alocked

__all__ = [
    "Captured", "Frozen", "capture", "copy", "destroy", "freeze", "keep_shallow", "restore_layers", "stack",
    "stop",
]  # fmt: skip

ANSWER_S: Final = 5.0
"""How long an init may take to say that it ends; it is killed then."""
DEPTH_MAX: Final = 400
"""overlayfs takes 500 lowers."""


End = Callable[[Any, SandboxId], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Frozen layers that make up a sandbox as it was; nobody names them yet."""

    layers: StoredSnapshot
    own: str | None
    """The layer that is new; `None` if nothing was."""
    paused_s: float
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A snapshot that was taken."""

    ref: str
    size_bytes: int | None
    """`None` is not counted yet."""
    paused_s: float
    method: str


async def freeze(engine: EmbeddedEngine, sandbox: SandboxId) -> Frozen:
    """Make a snapshot of the sandbox as it is now."""
    captured = await capture(engine, sandbox)
    ref = engine.store.add_snapshot(captured.layers)
    engine.integrity.soon()
    size = None if captured.own else 0
    return Frozen(ref=ref, size_bytes=size, paused_s=captured.paused_s, method=captured.method)


async def keep_shallow(engine: EmbeddedEngine, sandbox: SandboxId) -> None:
    """Wait for merging where it did not keep up in the background. Whoever calls does not hold the sandbox's lock."""
    if len(engine.store.load(sandbox).layers) >= DEPTH_MAX // 2:
        await squash(engine.store, engine.launcher, engine.marks)


async def capture(engine: EmbeddedEngine, sandbox: SandboxId) -> Captured:
    """Freeze the sandbox as it is now. Name the layers soon: else they are taken for leftovers."""
    state = engine.store.load(sandbox)
    carrier = await engine.connect(sandbox)
    if carrier is None:
        await wait_dead(engine.store.directory(sandbox))  # its last commands may be dying
        return await stack(engine, state)
    try:
        if await _quiesce(engine, carrier, sandbox):
            return await stack(engine, state)
        return await copy(engine, carrier, state)
    finally:
        await carrier.aclose()


async def _quiesce(engine: EmbeddedEngine, carrier: GuestCarrier, sandbox: SandboxId) -> bool:
    """End init if nothing runs; peers are told to connect again. Returns whether nothing writes any more.

    Init itself takes longer to be gone: the kernel forgets every file that was in use, at some microseconds each.
    """
    try:
        await carrier.request(Type.QUIESCE, b"")
    except OSError:
        return False
    except (GuestRestarting, SandboxGoneError):  # somebody else ended it, and what it ran may be dying
        await wait_dead(engine.store.directory(sandbox))
    return True


async def stack(engine: EmbeddedEngine, state: EngineState) -> Captured:
    """Freeze the top as it is, in constant time: nothing writes to it any more."""
    store = engine.store
    layers = state.layers if store.is_empty(state.top, state.layers) else (*state.layers, state.top)
    if len(layers) > DEPTH_MAX:
        raise ProviderError(
            "Snapshot not taken", why=f"the sandbox has {DEPTH_MAX} layers already",
            fix="Create a new sandbox from its last snapshot's files",
        )  # fmt: skip
    if len(layers) > DEPTH:
        engine.sweep()
    if layers != state.layers:  # before anybody names the old top: it is never written again then
        store.save(replace(state, layers=layers, top=store.new_layer(layers)))
    return Captured(
        layers=StoredSnapshot(base=state.base, layers=layers, project=state.project, denied=state.denied),
        own=state.top if layers != state.layers else None, paused_s=0.0, method="layer frozen; nothing was running",
    )  # fmt: skip


async def copy(engine: EmbeddedEngine, carrier: GuestCarrier, state: EngineState) -> Captured:
    """Copy the top while every process stands still."""
    layer = secrets.token_hex(6)
    began = time.monotonic()
    await carrier.request(Type.FREEZE, b"")
    try:
        await engine.launcher.run("copy", f"layers/{state.top}", f"layers/{layer}")
    finally:
        with anyio.move_on_after(5, shield=True), contextlib.suppress(SandboxGoneError):
            await carrier.request(Type.THAW, b"")
    paused = time.monotonic() - began
    return Captured(
        layers=StoredSnapshot(
            base=state.base, layers=(*state.layers, layer), project=state.project, denied=state.denied
        ),
        own=layer, paused_s=paused, method="copied while everything stood still",
    )  # fmt: skip


async def stop(engine: EmbeddedEngine, sandbox: SandboxId) -> None:
    """End every process of a sandbox, whether or not its init answers."""
    answered = False
    with anyio.move_on_after(ANSWER_S), contextlib.suppress(ProviderError):
        carrier = await engine.connect(sandbox)
        if carrier is not None:
            try:
                with contextlib.suppress(GuestRestarting, SandboxGoneError):
                    await carrier.request(Type.SHUTDOWN, b"")
            finally:
                await carrier.aclose()
        answered = True
    if not answered:
        kill_init(engine.store.directory(sandbox))
    await wait_dead(engine.store.directory(sandbox))


async def destroy(engine: EmbeddedEngine, sandbox: SandboxId) -> bool:
    """End a sandbox and take its files out of use; return whether there was one. Takes its lock."""
    store = engine.store
    try:
        async with alocked(store.lock(sandbox), what="Sandbox"):
            await stop(engine, sandbox)
            engine.limiting.release(sandbox)
            store.discard(store.directory(sandbox))
    except FileNotFoundError:
        return False
    return True


async def restore_layers(engine: EmbeddedEngine, sandbox: SandboxId, ref: str, end: End = stop) -> None:
    """Put a snapshot's layers below a new top, by one write of the state; `end` ends what runs before."""
    store = engine.store
    async with alocked(store.structure_lock(), shared=True):
        snapshot = store.load_snapshot(ref)
        await end(engine, sandbox)
        state = store.load(sandbox)
        store.save(
            replace(
                state,
                base=snapshot.base,
                layers=snapshot.layers,
                top=store.new_layer(snapshot.layers),
                memory=snapshot.memory,
            )
        )
    engine.sweep()
