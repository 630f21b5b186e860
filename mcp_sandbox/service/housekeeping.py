"""What a server does by itself, behind its answers: leftovers go, and so do the processes of idle sandboxes."""

import logging
import time
from collections.abc import Callable
from typing import Final

import anyio

from mcp_sandbox.service.connections import Connections
from mcp_sandbox.service.lifetimes import Lifetimes
from mcp_sandbox.service.opened import OpenProviders
from mcp_sandbox.service.reaper import Reaper
from mcp_sandbox.service.usage import Usage
from mcp_sandbox.store.registry import Registry
from mcp_sandbox.store.snapshots import SnapshotStore

__all__ = ["Housekeeping"]

_LOG = logging.getLogger(__name__)
_LOOK_EVERY_S: Final = 60.0


class Housekeeping:
    """For the sandboxes of one principal, of every project.

    Args:
        registry: Where they are entered.
        snapshots: Where those that went are kept.
        providers: Opened by whoever made this.
        connections: The server's own.
        principal: Whose they are.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        snapshots: SnapshotStore,
        providers: OpenProviders,
        connections: Connections,
        principal: str,
    ) -> None:
        self.usage = Usage()
        self._registry = registry
        self._snapshots = snapshots
        self._providers = providers
        self._connections = connections
        self._principal = principal

    def reaper(self, *, max_age_s: float | None, clock: Callable[[], float] = time.time) -> Reaper:
        """Return what removes leftovers."""
        return Reaper(
            registry=self._registry,
            snapshots=self._snapshots,
            provider=self._providers.get,
            principal=self._principal,
            max_age_s=max_age_s,
            clock=clock,
        )

    async def run(self, lifetimes: Lifetimes) -> None:
        """Keep everything tidy until cancelled; begins once a provider is in use."""
        await self._providers.wait_for_one()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.reaper(max_age_s=lifetimes.max_age_s).run, lambda: self._providers.names)
            if lifetimes.idle_s is not None:
                tasks.start_soon(self._end_idle, lifetimes.idle_s)

    async def _end_idle(self, idle_s: float) -> None:
        while True:
            await anyio.sleep(min(idle_s / 4, _LOOK_EVERY_S))
            await self.end_idle(idle_s)

    async def end_idle(self, idle_s: float) -> None:
        """Let go of sandboxes that no call has used for so long; their processes end, unless others use them."""
        for sandbox in self.usage.take_idle(idle_s):
            _LOG.info("sandbox %s: no call for %g s, its processes end", sandbox, idle_s)
            await self._connections.close(sandbox)
