"""What runs in a gVisor sandbox, written down while it stands still for a moment, with the files of that moment."""

import json
import secrets
import time
from typing import Final

import anyio
import anyio.to_thread

from mcp_sandbox.core.errors import NotFoundError, ProviderError, StateError, UnsupportedError
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.engines.layer_store import StoredSnapshot
from mcp_sandbox.engines.layering import Captured
from mcp_sandbox.engines.local_carrier import LocalCarrier
from mcp_sandbox.engines.runsc_capture import capture_files
from mcp_sandbox.engines.runsc_engine import Inside, RunscEngine
from mcp_sandbox.engines.runsc_plan import CONTAINER, FACTS, IMAGES
from mcp_sandbox.engines.runsc_spool import spool_files
from mcp_sandbox.guest.wire import Type

__all__ = ["capture_all", "require_readable"]

GATHERED_S: Final = 5.0
_CHECKPOINT: Final = ("checkpoint", "--leave-running", "--compression=none", "--exclude-committed-zero-pages")
"""Compressing takes longer than all the rest, here and in a restore."""
_DELETED: Final = "deleted and invalidated dentries"


async def capture_all(engine: RunscEngine, sandbox: SandboxId, outer: LocalCarrier, inside: Inside) -> Captured:
    """Capture files, memory and processes; those that run go on. Whoever calls holds the sandbox's lock.

    Raises:
        UnsupportedError: gVisor cannot write down what some process holds, or another server does not let go.
    """
    reply = await inside.carrier.request(Type.LIVE, b"")
    if not int.from_bytes(reply.payload[:4], "little"):
        return await capture_files(engine, sandbox)
    state = engine.store.load(sandbox)
    memory, layer = secrets.token_hex(6), secrets.token_hex(6)
    await _gather(inside)
    waiting = secrets.randbits(31) | 1
    await inside.stream.park(waiting)
    began = time.monotonic()
    try:
        async with engine.standstill(outer, sandbox):
            await engine.run(outer, *_CHECKPOINT, f"--image-path={IMAGES}/{memory}", CONTAINER)
            await engine.launcher.run("copy", f"layers/{state.top}", f"layers/{layer}")
    except ProviderError as error:
        if _DELETED in error.why:
            raise UnsupportedError(
                "Memory not captured", why="a process has a file open that was deleted, which gVisor cannot write down",
                fix="End that process, or capture files only",
            ) from error  # fmt: skip
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await engine.plug(outer, inside.stream, waiting)
    paused_s = time.monotonic() - began
    await anyio.to_thread.run_sync(_keep, engine, sandbox, memory)
    return Captured(
        layers=StoredSnapshot(
            base=state.base, layers=(*state.layers, layer), project=state.project, denied=state.denied, memory=memory
        ),
        own=layer, paused_s=paused_s, method="memory and files written while everything stood still",
    )  # fmt: skip


async def _gather(inside: Inside) -> None:
    """Have every other connection let go of its stream."""
    with anyio.move_on_after(GATHERED_S):
        while int.from_bytes((await inside.carrier.request(Type.GATHER, b"")).payload[:4], "little"):  # noqa: ASYNC110
            await anyio.sleep(0.02)
        return
    raise UnsupportedError(
        "Memory not captured", why="another server or command uses this sandbox and does not let go of it",
        fix="Try again when it has ended, or capture files only",
    )  # fmt: skip


def _keep(engine: RunscEngine, sandbox: SandboxId, memory: str) -> None:
    """Take what gVisor wrote out of the sandbox's reach. Blocks."""
    directory = engine.store.directory(sandbox)
    kept = engine.store.root / "memory" / memory
    facts = {"runsc": engine.runsc.version, "spool": spool_files(directory / "spool")}
    (directory / "images" / memory).rename(kept)
    (kept / FACTS).write_text(json.dumps(facts), "utf-8")


def require_readable(engine: RunscEngine, snapshot: StoredSnapshot) -> None:
    """Refuse a snapshot whose memory this runsc cannot read, before anything is touched.

    Raises:
        NotFoundError: It is not there any more.
        StateError: Another version of runsc wrote it.
    """
    if snapshot.memory is None:
        return
    try:
        facts = json.loads((engine.store.root / "memory" / snapshot.memory / FACTS).read_bytes())
    except (OSError, ValueError) as error:
        raise NotFoundError(
            "Snapshot not restored", why="the memory that it holds is not there any more", fix="Use another snapshot"
        ) from error
    if facts["runsc"] != engine.runsc.version:
        raise StateError(
            "Snapshot not restored",
            why=f"its memory was written by runsc {facts['runsc']}, and this one is {engine.runsc.version}",
            fix="Name that version with MCP_SANDBOX_RUNSC and start the server again; or restore chosen paths of it",
        )
