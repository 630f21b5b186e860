"""Work that goes on behind the answers: one piece after the other, out of the way of the call that comes next."""

import logging
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Final, Self

import anyio
from anyio.abc import TaskGroup

__all__ = ["Behind"]

_LOG = logging.getLogger(__name__)
_SOON_S: Final = 0.1
_FINISH_S: Final = 0.3
"""At the end: clients kill a server 0.4 s after they closed its input."""


class Behind:
    """Use as a context manager: leaving it gives the work that is left a moment, then drops it.

    A process may be killed at any point, so whatever is done here must be found again by whoever does it next.
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, Callable[[], Awaitable[None]]] = {}
        self._tasks: TaskGroup | None = None
        self._idle: anyio.Event | None = None
        """Set when nothing is left to do."""
        self._ending = anyio.Event()

    def do(self, key: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        """Do something soon; once, however often it is asked for with the same key until it begins."""
        if self._tasks is None:
            return
        self._waiting[key] = work
        if self._idle is None:
            self._idle = anyio.Event()
            self._tasks.start_soon(self._work, self._idle)

    async def finished(self) -> None:
        """Return when nothing is left to do."""
        if self._idle is not None:
            await self._idle.wait()

    async def _work(self, idle: anyio.Event) -> None:
        try:
            with anyio.move_on_after(_SOON_S):
                await self._ending.wait()
            while self._waiting:
                key = next(iter(self._waiting))
                try:
                    await self._waiting.pop(key)()
                except Exception:  # noqa: BLE001 (nobody waits for it, and the next one is to be done all the same)
                    _LOG.exception("work behind an answer failed")
        finally:
            self._idle = None
            idle.set()

    async def __aenter__(self) -> Self:
        """Return itself."""
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Begin what waits at once, and end it after a moment."""
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return
        self._ending.set()
        with anyio.move_on_after(_FINISH_S, shield=True):
            await self.finished()
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)
