"""Snapshots of gVisor sandboxes: their files as frozen layers, and what runs as gVisor writes it.

Whoever calls holds the sandbox's lock.
"""

import contextlib
import os
import struct
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from mcp_sandbox.core.errors import ProviderUnavailableError, SandboxGoneError
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.engines.carrier import GuestRestarting
from mcp_sandbox.engines.init_process import wait_dead
from mcp_sandbox.engines.layering import Captured, copy, stack, stop
from mcp_sandbox.engines.local_carrier import LocalCarrier
from mcp_sandbox.engines.runsc_engine import Inside, RunscEngine
from mcp_sandbox.guest.wire import GoingReason, Type

__all__ = ["capture_files", "stop_softly"]

FAREWELL_S: Final = 2.0
_SILENT: Final = (GuestRestarting, SandboxGoneError, ProviderUnavailableError, TimeoutError)
SMALL_FILES: Final = 1000
SMALL_BYTES: Final = 16 << 20


async def capture_files(engine: RunscEngine, sandbox: SandboxId) -> Captured:
    """Freeze the files as they are now. Name the layers soon: else they are taken for leftovers."""
    state = engine.store.load(sandbox)
    outer = await engine.connect(sandbox)
    if outer is None:
        await wait_dead(engine.store.directory(sandbox))
        return await stack(engine, state)
    try:
        if await anyio.to_thread.run_sync(_is_small, engine.store.root / "layers" / state.top):
            return await copy(engine, outer, state)
        if await _quiesce(engine, outer):
            await stop(engine, sandbox)
            return await stack(engine, state)
        return await copy(engine, outer, state)
    finally:
        await outer.aclose()


def _is_small(layer: Path) -> bool:
    """Whether copying a layer surely takes less time than starting gVisor anew. Blocks."""
    files, size = 0, 0
    stack = [layer]
    with contextlib.suppress(FileNotFoundError, PermissionError):
        while stack:
            with os.scandir(stack.pop()) as entries:
                for entry in entries:
                    files += 1
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(Path(entry.path))
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if files > SMALL_FILES or size > SMALL_BYTES:
                        return False
        return True
    return False  # gone, or closed to us


async def _quiesce(engine: RunscEngine, outer: LocalCarrier) -> bool:
    """End the agent inside if nothing runs; peers are told to connect again. Returns whether nothing writes now."""
    try:
        inner = (await engine.reach(outer)).carrier
    except SandboxGoneError:
        return True
    except ProviderUnavailableError:
        return False
    try:
        await inner.request(Type.QUIESCE, b"")
    except OSError:
        return False
    except (GuestRestarting, SandboxGoneError):
        return True
    finally:
        await inner.aclose()
    return True


async def stop_softly(engine: RunscEngine, sandbox: SandboxId, inside: Inside | None = None) -> None:
    """End a sandbox whatever runs in it; peers are told to connect again.

    Args:
        engine: Whose it is.
        sandbox: Which one.
        inside: A connection to the agent inside, if there is one.
    """
    outer = await engine.connect(sandbox)
    if outer is not None:
        try:
            with contextlib.suppress(*_SILENT), anyio.fail_after(FAREWELL_S):
                known = inside is not None and not inside.carrier.closed
                inner = (inside if inside is not None and known else await engine.reach(outer)).carrier
                try:
                    await inner.request(Type.SHUTDOWN, struct.pack("<I", GoingReason.RESTART))  # the others know then
                    while known and not inner.closed:  # noqa: ASYNC110
                        await anyio.sleep(0.002)
                finally:
                    if not known:
                        await inner.aclose()
        finally:
            await outer.aclose()
    await stop(engine, sandbox)
