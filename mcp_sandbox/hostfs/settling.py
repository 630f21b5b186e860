"""Making files survive a loss of power, behind the answer instead of before it: a sync takes a millisecond or many."""

import logging
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from anyio import to_thread

__all__ = ["Settle", "Settler", "settle_now"]

_LOG = logging.getLogger(__name__)

Settle = Callable[[Path], None]
"""Takes the file or directory that is to survive; what was written to it before, and its name, will."""


def settle_now(path: Path) -> None:
    """Sync a file or directory and the name it has. Blocks; no-op if it is gone."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for each in (path, path.parent):
            descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class Settler:
    """One thread that syncs what it is told, in that order. Use as a context manager: leaving it waits for a second.

    A process that is killed loses nothing by it: only the machine itself can end before the disk has it. It waits for a
    moment and takes what came meanwhile along: a file system that syncs keeps everybody else waiting.

    Args:
        gather_s: That moment.
        patience_s: How long leaving waits.
    """

    def __init__(self, *, gather_s: float = 0.25, patience_s: float = 1.0) -> None:
        self._gather_s = gather_s
        self._patience_s = patience_s
        self._paths: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def later(self, path: Path) -> None:
        """Have a path synced soon. Returns at once, but for a moment the first time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="settler", daemon=True)
            self._thread.start()
        self._paths.put(path)

    def _run(self) -> None:
        while (path := self._paths.get()) is not None:
            self._ending.wait(self._gather_s)
            together = {path: None}
            while not self._paths.empty() and (path := self._paths.get()) is not None:
                together[path] = None
            for each in together:
                self._settle(each)
            if path is None:
                return

    def _settle(self, path: Path) -> None:
        try:
            settle_now(path)
        except OSError as error:
            _LOG.warning("%s is not on the disk yet: %s", path.name, error.strerror)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sync the rest, for as long as patience lasts."""
        if self._thread is not None:
            self._ending.set()
            self._paths.put(None)
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._thread.join, self._patience_s)
