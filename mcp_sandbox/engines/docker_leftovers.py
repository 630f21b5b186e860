"""What killed servers left on a container engine, told from what live ones use or are just making.

A container that runs is in use: it stops by itself soon after its last connection. One without a state of ours was
never finished. Containers of other state directories are not looked at.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from anyio import to_thread

from mcp_sandbox.core.errors import CapacityError, NotFoundError, ProviderError, StateError
from mcp_sandbox.core.leftovers import EXPIRES, Leftover, Remembered
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.engines.docker_engine import DockerEngine, Found
from mcp_sandbox.hostfs.atomic import alocked

__all__ = ["collect_containers"]

_WAIT_S: Final = 0.05
"""For a lock: whoever holds it is at work with the sandbox."""
MAKING_S: Final = 900.0
"""How long it may take to bring a project into a container."""


async def collect_containers(
    engine: DockerEngine, remembered: Remembered, *, kept_s: float, now: float, dry_run: bool
) -> Sequence[Leftover]:
    """Remove what nobody remembers and nobody uses; return it. Arguments are those of `Provider.collect`."""
    gone: list[Leftover] = []
    containers = await engine.containers()
    for found in containers:
        if found.replaced:
            if await _removed_replaced(engine, found, dry_run=dry_run):
                gone.append(Leftover(kind="file", name=found.container, why="its sandbox has another container now"))
            continue
        why = await _why_unused(engine, found, kept_s, now)
        if not why or remembered.sandbox(found.sandbox):
            continue
        gone.append(Leftover(kind="sandbox", name=found.sandbox, why=why))
        if not dry_run:
            with suppress(ProviderError):  # next time
                await engine.maker.remove(found.container)
                await to_thread.run_sync(engine.states.forget, found.sandbox)
    for name in await to_thread.run_sync(engine.states.names):
        if name not in {found.sandbox for found in containers} and await _is_gone(engine, name):
            gone.append(Leftover(kind="record", name=name, why="the engine does not have its container any more"))
            if not dry_run:
                await to_thread.run_sync(engine.states.forget, name)
    for start in await to_thread.run_sync(engine.states.stray_starts, now - MAKING_S):
        gone.append(Leftover(kind="file", name=start.name, why="the project of a sandbox that was never finished"))
        if not dry_run:
            start.unlink(missing_ok=True)
    if not dry_run:
        with suppress(ProviderError):
            removed = await engine.ready.collect()
            gone += [Leftover(kind="file", name=image, why="nothing starts from it any more") for image in removed]
    return gone


async def _removed_replaced(engine: DockerEngine, found: Found, *, dry_run: bool) -> bool:
    """Remove what a restore put beside a sandbox, or replaced, and was killed before it removed it."""
    with suppress(CapacityError, ProviderError):
        async with alocked(engine.states.lock(found.sandbox), wait_s=_WAIT_S):
            again = [each for each in await engine.containers() if each.container == found.container]
            if again and again[0].replaced:
                if not dry_run:
                    await engine.maker.remove(found.container)
                return True
    return False


async def _why_unused(engine: DockerEngine, found: Found, kept_s: float, now: float) -> str:
    """Return why nobody needs a sandbox that is not remembered, empty if somebody may."""
    if found.running or now - _moment(found.created_at) < MAKING_S:
        return ""
    if not await to_thread.run_sync(engine.states.has, found.sandbox):
        return "it was never finished"
    if EXPIRES in found.labels or not found.sandbox.startswith("sb_"):
        return "it was made for a passing purpose, by a process that is dead"
    with suppress(NotFoundError, StateError):
        state = await to_thread.run_sync(engine.states.load, found.sandbox)
        ended = str((await engine.find(state))["State"]["FinishedAt"])
        return "" if now - _moment(ended) < kept_s else "no record names it"
    return ""


async def _is_gone(engine: DockerEngine, name: SandboxId) -> bool:
    """Whether a state belongs to no container, here where it was made; another engine may have it."""
    with suppress(NotFoundError, StateError):
        state = await to_thread.run_sync(engine.states.load, name)
        if state.engine_id != engine.facts.engine_id:
            return False
        try:
            await engine.find(state)
        except NotFoundError:
            return True
    return False


def _moment(text: str) -> float:
    """Return a time of the engine, which may count nanoseconds."""
    head, _, tail = text.partition(".")
    zone = "+00:00" if tail.endswith("Z") or not tail else ""
    digits = tail.rstrip("Z").split("+")[0].split("-")[0][:6]
    zone = zone or tail[len(tail.split("+")[0].split("-")[0]) :]
    try:
        return datetime.fromisoformat(f"{head.rstrip('Z')}.{digits or '0'}{zone}").timestamp()
    except ValueError:
        return 0.0
