"""Something that is opened on first use, once, and kept open by a task of its own until it is released."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from mcp_sandbox.core.errors import StateError

__all__ = ["Kept"]

T = TypeVar("T")


class _Attempt(Generic[T]):
    def __init__(self) -> None:
        self.done = anyio.Event()
        self.value: T | None = None
        self.error: Exception | None = None


class Kept(Generic[T]):
    """The same task enters and leaves the context, as task groups inside it require.

    Args:
        tasks: Where that task runs. Cancelling it stops an opening, but takes nothing away that is open.
        context: Returns a new context manager; called again after it failed to open.
    """

    def __init__(self, tasks: TaskGroup, context: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._tasks = tasks
        self._context = context
        self._attempt: _Attempt[T] | None = None
        self._released = anyio.Event()

    async def get(self) -> T:
        """Return what the context gives, opening it if it is not open. A failure is told to everybody who waits.

        Raises:
            StateError: It was released.
        """
        if (attempt := self._attempt) is None:
            if self._released.is_set():
                raise _ended()
            attempt = self._attempt = _Attempt()
            self._tasks.start_soon(self._keep, attempt)
        if not attempt.done.is_set():
            await attempt.done.wait()
        if attempt.value is None:
            raise attempt.error or _ended()
        return attempt.value

    def release(self) -> None:
        """Let it be closed. Idempotent."""
        self._released.set()

    async def _keep(self, attempt: _Attempt[T]) -> None:
        try:
            async with self._context() as attempt.value:
                attempt.done.set()
                with anyio.CancelScope(shield=True):
                    await self._released.wait()
        except Exception as error:
            if attempt.done.is_set():
                raise
            attempt.error = error
        finally:
            if not attempt.done.is_set() or attempt.error is not None:
                self._attempt = None
            attempt.value = None
            attempt.done.set()


def _ended() -> StateError:
    return StateError("Nothing was done", why="this server is ending", fix="Connect to it again")
