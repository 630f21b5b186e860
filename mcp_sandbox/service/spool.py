"""Files inside a sandbox that hold the whole output of a command, written behind the command's back."""

import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.files import FileKind, ListRequest, MkdirRequest, RemoveRequest, RenameRequest, WriteRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxId

__all__ = ["SPOOL_DIRECTORY", "Spool", "SpoolRooms", "fresh_name"]

_LOG = logging.getLogger(__name__)

SPOOL_DIRECTORY = "/var/spool/mcp-sandbox"
_FALLBACK_DIRECTORY = "/tmp/mcp-sandbox"  # noqa: S108 (inside the sandbox)
LIMIT_BYTES = 64 * 1024 * 1024
_PENDING_BYTES = 1024 * 1024
_BATCH_BYTES = 64 * 1024
_BATCH_S = 0.05
_ROOM_BYTES = 512 * 1024 * 1024
"""What the finished spool files of one sandbox may hold before the oldest are removed."""


def fresh_name() -> str:
    """Return a name for the spool files of a command that has no job id."""
    return f"c-{secrets.token_hex(5)}"


class Spool:
    """Appends to one file in batches. Nobody waits for it before a megabyte is unwritten.

    Args:
        sandbox: Where the file is.
        path: Its absolute path.
        limit_bytes: What it may hold; the rest is counted and dropped.
    """

    def __init__(self, sandbox: Sandbox, path: str, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = path
        self.cut_bytes = 0
        self.failure = ""
        self._sandbox = sandbox
        self._room_bytes = limit_bytes
        self._pending = bytearray()
        self._closed = False
        self._exists = False
        self._changed = anyio.Event()
        # Held while the file is written or renamed, since appending by the old name would make a second file.
        self._lock = anyio.Lock()

    def put(self, data: bytes) -> None:
        """Take bytes to write."""
        if self.failure or self._closed:
            self.cut_bytes += len(data)
            return
        kept = data[: self._room_bytes]
        self._room_bytes -= len(kept)
        self.cut_bytes += len(data) - len(kept)
        if kept:
            self._pending += kept
            self._notify()

    @property
    def lags(self) -> bool:
        """Whether so much is unwritten that whoever puts should wait for `caught_up`."""
        return len(self._pending) > _PENDING_BYTES

    async def caught_up(self) -> None:
        """Return when the file does not lag any more."""
        while self.lags and not self.failure:
            await self._changed.wait()

    def close(self) -> None:
        """Let `run` return once everything is written. Idempotent."""
        self._closed = True
        self._notify()

    async def flush(self) -> None:
        """Return when everything put so far is in the file, or never will be."""
        while self._pending and not self.failure:
            await self._write()

    async def run(self) -> None:
        """Write until closed."""
        while not self.failure:
            if self._pending:
                await self._write()
            elif self._closed:
                return
            else:
                await self._changed.wait()
                if not self._closed:
                    with anyio.move_on_after(_BATCH_S):
                        while len(self._pending) < _BATCH_BYTES and not self._closed:
                            await self._changed.wait()

    async def rename(self, path: str) -> None:
        """Let the file have another path, in the same directory."""
        async with self._lock:
            if self._exists:
                try:
                    await self._sandbox.rename(RenameRequest(source=self.path, target=path))
                except (OSError, SandboxError) as error:
                    self._fail(error)
                    return
            self.path = path

    async def _write(self) -> None:
        async with self._lock:
            batch = bytes(self._pending[:_PENDING_BYTES])
            if not batch:
                return
            try:
                await self._sandbox.write(WriteRequest(path=self.path, append=True, mode=0o644), batch)
            except (OSError, SandboxError) as error:
                self._fail(error)
                return
            self._exists = True
            del self._pending[: len(batch)]
            self._notify()

    def _fail(self, error: Exception) -> None:
        _LOG.warning("output of a command in %s is not spooled any more: %s", self._sandbox.id, error)
        self.failure = (error.strerror if isinstance(error, OSError) else None) or str(error)
        self.cut_bytes += len(self._pending)
        self._pending.clear()
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class SpoolRooms:
    """Finds, once per sandbox, the directory for its spool files, and keeps their number within bounds.

    Args:
        start: Starts a task that outlives the call it belongs to.
    """

    def __init__(self, start: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]) -> None:
        self._start = start
        self._known: dict[SandboxId, str] = {}
        self._open: set[Spool] = set()

    async def directory(self, sandbox: Sandbox) -> str:
        """Return the spool directory of a sandbox, made if it is missing."""
        known = self._known.get(sandbox.id)
        if known is not None:
            return known
        chosen = SPOOL_DIRECTORY
        try:
            await sandbox.mkdir(MkdirRequest(path=SPOOL_DIRECTORY))
            await self._make_room(sandbox, SPOOL_DIRECTORY)
        except (OSError, SandboxError):
            chosen = _FALLBACK_DIRECTORY
        self._known[sandbox.id] = chosen
        return chosen

    async def open(self, sandbox: Sandbox, path: str) -> Spool:
        """Start a spool file."""
        spool = Spool(sandbox, path)

        async def write() -> None:
            try:
                await spool.run()
            finally:
                self._open.discard(spool)

        self._open.add(spool)
        self._start(write)
        return spool

    async def flush(self) -> None:
        """Return when every open spool file holds what was put into it."""
        for spool in tuple(self._open):
            await spool.flush()

    async def _make_room(self, sandbox: Sandbox, directory: str) -> None:
        """Remove the oldest files of commands that were no jobs, if there is too much of everything."""
        listing = await sandbox.list(ListRequest(path=directory))
        size = sum(entry.size_bytes for entry in listing.entries)
        for entry in sorted(listing.entries, key=lambda entry: entry.modified_ns):
            if size <= _ROOM_BYTES:
                return
            if entry.kind is FileKind.FILE and entry.path.startswith(f"{directory}/c-"):
                await sandbox.remove(RemoveRequest(path=entry.path, missing_ok=True))
                size -= entry.size_bytes
