"""The event loop of the commands: it goes on where the kernel gives this user no more watches for `epoll`.

Linux counts them for all programs of a user together. Without a range of ids of its own, a sandbox can use up all of
them; then only the slower `poll` can wait for one descriptor more.
"""

import asyncio
import errno
import selectors
import sys
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

__all__ = ["EnduringSelector", "run_loop"]

_Result = TypeVar("_Result")
_SWITCH_S = 0.0005
"""How long a thread that computes, for work behind the answers, keeps the loop waiting; Python's own is 5 ms."""


class EnduringSelector(selectors.BaseSelector):
    """The best selector that there is, until it cannot take another descriptor; `poll` from then on."""

    def __init__(self) -> None:
        self._chosen: selectors.BaseSelector = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a descriptor."""
        try:
            return self._chosen.register(fileobj, events, data)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        self._fall_back()
        return self._chosen.register(fileobj, events, data)

    def _fall_back(self) -> None:
        before, self._chosen = self._chosen, selectors.PollSelector()
        for key in before.get_map().values():
            self._chosen.register(key.fileobj, key.events, key.data)
        before.close()

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Watch a descriptor no more."""
        return self._chosen.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a descriptor for other events."""
        return self._chosen.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events."""
        return self._chosen.select(timeout)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return what is watched."""
        return self._chosen.get_map()

    def close(self) -> None:
        """Free what it holds."""
        self._chosen.close()


def run_loop(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end, as `asyncio.run` does."""
    sys.setswitchinterval(_SWITCH_S)
    if sys.platform != "linux":
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(EnduringSelector())) as runner:
        return runner.run(main)
