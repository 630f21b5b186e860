"""Blank sandboxes that were started ahead: a server that makes many hands them out in a fraction of the time.

A spare lies among the sandboxes under a name of its own. It becomes one by a rename of its directory, in one step.
"""

import contextlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from mcp_sandbox.core.errors import ProviderError, SandboxError, StateError
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.engines.init_process import wait_dead
from mcp_sandbox.engines.layer_store import SPARE, EngineState
from mcp_sandbox.engines.local_carrier import LocalCarrier
from mcp_sandbox.hostfs.atomic import alocked

if TYPE_CHECKING:
    from mcp_sandbox.engines.embedded import EmbeddedEngine

__all__ = ["Spares"]

_LOG = logging.getLogger(__name__)
KEPT: Final = 2
"""About 0.2 MiB each, and nothing at all in a server that makes but one sandbox."""
QUIET_S: Final = 0.03
"""Without any demand: those who create many in a row are not to share the machine with what is made for later."""


class Spares:
    """Keeps none before a second sandbox was asked for that starts like the one before."""

    def __init__(self, engine: "EmbeddedEngine") -> None:
        self._engine = engine
        self._spares: list[tuple[EngineState, LocalCarrier]] = []
        self._asked = 0
        self._before: EngineState | None = None
        self._wanted: EngineState | None = None
        self._filling = False
        self._closed = False

    async def take(self, state: EngineState) -> tuple[EngineState, LocalCarrier] | None:
        """Make a spare the sandbox that `state` describes; return its state and a connection, `None` if none fits.

        Raises:
            StateError: There is a sandbox with this id.
        """
        self._asked += 1
        store = self._engine.store
        for spare, carrier in [each for each in self._spares if _alike(each[0], state)]:
            self._spares.remove((spare, carrier))
            if carrier.closed:
                await self._discard(spare, carrier)
                continue
            taken = replace(state, top=spare.top)
            try:
                async with alocked(store.structure_lock(), shared=True):  # nobody looks for unused layers meanwhile
                    store.adopt(SandboxId(spare.id), taken)
            except StateError:
                self._spares.append((spare, carrier))
                raise
            except BaseException:
                await self._discard(spare, carrier)
                raise
            return taken, carrier
        return None

    def refill(self, like: EngineState) -> None:
        """Start more of them behind the answer, if it looks as if more will be asked for."""
        before, self._before = self._before, like
        if before is None or not _alike(before, like) or self._closed:
            return
        self._wanted = like
        if not self._filling:
            self._filling = True
            self._engine.behind(self._fill())

    async def _fill(self) -> None:
        """Start what is wanted, which may change meanwhile, and end what is not wanted any more."""
        try:
            while not self._closed:
                wanted = self._wanted
                for other in [each for each in self._spares if wanted is None or not _alike(each[0], wanted)]:
                    self._spares.remove(other)
                    await self._discard(*other)
                if wanted is None or len(self._spares) >= KEPT:
                    return
                await self._quiet()
                if wanted is self._wanted and not self._closed:
                    await self._start(wanted)
        except (SandboxError, OSError) as error:  # whoever asks for the next sandbox is told why there is none
            _LOG.info("no sandbox started ahead: %s", error)
        finally:
            self._filling = False
            if self._closed:
                await self.aclose()

    async def _start(self, like: EngineState) -> None:
        top = self._engine.store.new_layer(like.layers)
        spare = replace(like, id=f"{SPARE}{secrets.token_hex(8)}", top=top, env={}, labels={})
        self._engine.store.add(spare)
        try:
            self._spares.append((spare, await self._engine.start(spare)))
        except BaseException:
            self._engine.limiting.release(SandboxId(spare.id))
            self._engine.store.discard(self._engine.store.directory(SandboxId(spare.id)))
            raise

    async def _quiet(self) -> None:
        asked = None
        while asked != self._asked:
            asked = self._asked
            await anyio.sleep(QUIET_S)

    async def drop(self, layers: Sequence[str]) -> None:
        """End those that stand on a snapshot's layers, which is being deleted."""
        stack = tuple(layers)
        if not stack:
            return
        if self._before is not None and self._before.layers == stack:
            self._before = None
        if self._wanted is not None and self._wanted.layers == stack:
            self._wanted = None  # one that is being started now ends as soon as it has begun
        for spare, carrier in [each for each in self._spares if each[0].layers == stack]:
            self._spares.remove((spare, carrier))
            await self._discard(spare, carrier)

    async def _discard(self, spare: EngineState, carrier: LocalCarrier) -> None:
        sandbox = SandboxId(spare.id)
        directory = self._engine.store.directory(sandbox)
        await carrier.aclose()
        with contextlib.suppress(ProviderError):  # one that does not end keeps its group, until somebody sweeps
            await wait_dead(directory)
        self._engine.limiting.release(sandbox)
        self._engine.store.discard(directory)

    async def aclose(self) -> None:
        """End them, and start no more. Idempotent."""
        self._closed = True
        while self._spares:
            await self._discard(*self._spares.pop())


def _alike(spare: EngineState, wanted: EngineState) -> bool:
    """Whether all that init was started with is the same."""
    return replace(spare, id="", top="", created_at="", env={}, labels={}) == replace(
        wanted, id="", top="", created_at="", env={}, labels={}
    )
