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
from mcp_sandbox.engines.runsc_engine import RunscEngine
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
            await _farewell(outer)
            await stop(engine, sandbox)
            return await stack(engine, state)
        return await copy(engine, outer, state)
    finally:
        await outer.aclose()


def _is_small(layer: Path) -> bool:
    """Whether copying a layer takes less time than starting gVisor anew. Blocks."""
    files, size = 0, 0
    stack = [layer]
    with contextlib.suppress(FileNotFoundError):
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


async def stop_softly(engine: RunscEngine, sandbox: SandboxId) -> None:
    """End a sandbox whatever runs in it; peers are told to connect again."""
    outer = await engine.connect(sandbox)
    if outer is not None:
        try:
            with contextlib.suppress(*_SILENT), anyio.fail_after(FAREWELL_S):
                inner = (await engine.reach(outer)).carrier
                try:
                    await inner.request(Type.SHUTDOWN, struct.pack("<I", GoingReason.RESTART))
                finally:
                    await inner.aclose()
            await _farewell(outer)
        finally:
            await outer.aclose()
    await stop(engine, sandbox)


async def _farewell(outer: LocalCarrier) -> None:
    """Let the bridges pass on the agent's last words, after which gVisor ends by itself."""
    with anyio.move_on_after(FAREWELL_S), contextlib.suppress(GuestRestarting, SandboxGoneError):
        while int.from_bytes((await outer.request(Type.LIVE, b"")).payload[:4], "little"):  # noqa: ASYNC110
            await anyio.sleep(0.005)  # nobody is told of the end of processes that are not commands
