"""A connection whose end is looked for from outside as well, and explained to the commands that it takes along."""

import abc
import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

import anyio

from mcp_sandbox.core.exec import Termination
from mcp_sandbox.engines.guest_execution import CommandCarrier, GuestExecution

__all__ = ["WatchedCarrier"]

_log = logging.getLogger(__name__)
REASON_S: Final = 3.0
"""Which commands wait for the reason of their end."""


class WatchedCarrier(CommandCarrier):
    """Knows its commands, when the agent was heard last, and whom to ask why it ended."""

    def __init__(self) -> None:
        self.on_loss: Callable[[], Awaitable[tuple[Termination, str]]] | None = None
        """Asked for the reason of an end."""
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._tasks: list[asyncio.Task[None]] = []

    @abc.abstractmethod
    def commands(self) -> list[GuestExecution]:
        """Return those that have not ended."""

    @abc.abstractmethod
    def _end(self) -> None:
        """Let everybody know that the connection is over. Idempotent."""

    def begin(self, work: Coroutine[object, object, None]) -> None:
        """Let something run for as long as the connection."""
        self._tasks.append(self._loop.create_task(work))

    def end_if_silent(self, since: float) -> None:
        """End the connection if nothing was heard from the agent since then."""
        if self._heard_at <= since and not self.closed:
            _log.warning("cut off a guest agent that does not answer")
            self._end()

    async def cut(self) -> None:
        """Take it that the sandbox has ended, whatever the connection says."""
        await self._ask_why()
        self._end()
        await self.aclose()

    async def _ask_why(self) -> None:
        if self.on_loss is None or self.closed or not self.commands():
            return
        with anyio.move_on_after(REASON_S):
            termination, detail = await self.on_loss()
            for execution in self.commands():
                execution.lost(termination, detail)
