"""Providers by name: opened on first use, once, kept open, and closed by the task that opened them."""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from mcp_sandbox.core.errors import ProviderUnavailableError, StateError
from mcp_sandbox.core.provider import Provider
from mcp_sandbox.service.kept import Kept

__all__ = ["OpenProviders"]

_LOG = logging.getLogger(__name__)
_OPEN_S = 30.0
_CLOSE_S = 5.0


class OpenProviders:
    """Use as a context manager: leaving it closes every provider, also when the leaving task is cancelled.

    Args:
        make: Constructs a provider by its name; may block while it imports one.
    """

    def __init__(self, make: Callable[[str], Provider]) -> None:
        self._make = make
        self._kept: dict[str, Kept[Provider]] = {}
        self._tasks: TaskGroup | None = None
        self._open: list[str] = []
        self._first = anyio.Event()

    @property
    def names(self) -> Sequence[str]:
        """The providers that are open."""
        return tuple(self._open)

    async def wait_for_one(self) -> None:
        """Return once a provider has been opened."""
        await self._first.wait()

    async def get(self, name: str) -> Provider:
        """Return the opened provider. A failure to open is told to everybody who waits, and tried again next time.

        Raises:
            ConfigError: There is no such provider.
            ProviderUnavailableError: Its engine is missing or does not work here.
        """
        if self._tasks is None:
            raise StateError("No provider opened", why="this server is ending", fix="Connect to it again")
        if (kept := self._kept.get(name)) is None:
            kept = self._kept[name] = Kept(self._tasks, partial(self._opened, name))
        return await kept.get()

    @asynccontextmanager
    async def _opened(self, name: str) -> AsyncGenerator[Provider]:
        provider = await to_thread.run_sync(self._make, name)
        try:
            with anyio.fail_after(_OPEN_S):
                await provider.__aenter__()
        except TimeoutError as error:
            raise ProviderUnavailableError(
                f"Provider {name!r} not opened",
                why=f"its engine did not answer within {_OPEN_S:g} s",
                fix="Run `mcp-sandbox doctor`, which says what it waits for",
            ) from error
        self._open.append(name)
        self._first.set()
        try:
            yield provider
        finally:
            self._open.remove(name)
            await _close(provider)

    async def __aenter__(self) -> Self:
        """Return itself."""
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every provider, each within 5 s."""
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return
        for kept in self._kept.values():
            kept.release()
        tasks.cancel_scope.cancel()  # those that are being opened
        # Without the error: it belongs to the caller, and a task group would wrap it.
        await tasks.__aexit__(None, None, None)


async def _close(provider: Provider) -> None:
    with anyio.move_on_after(_CLOSE_S, shield=True) as scope:
        try:
            await provider.__aexit__(None, None, None)
        except Exception:  # noqa: BLE001 (closing goes on with the next one, and the log has it)
            _LOG.exception("closing provider %s", provider.name)
    if scope.cancelled_caught:
        _LOG.warning("provider %s did not close within %g s", provider.name, _CLOSE_S)
