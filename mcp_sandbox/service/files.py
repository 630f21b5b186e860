"""The use cases on files: look at one, write one, change a part of one, find some."""

import hashlib
import posixpath
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from anyio import to_thread

from mcp_sandbox.core.errors import InvalidRequestError, ProviderError, StateError
from mcp_sandbox.core.files import ReadRequest, StatRequest, WriteRequest, WriteResult
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import WORKSPACE, WorkspaceMode
from mcp_sandbox.core.streams import read_all
from mcp_sandbox.service.edit import EDIT_MAX_BYTES, Edit, apply_edit
from mcp_sandbox.service.file_errors import explain_path_error
from mcp_sandbox.service.listing import GlobQuery, list_matching
from mcp_sandbox.service.paths import PathResolver, label
from mcp_sandbox.service.reading import Picture, view_file
from mcp_sandbox.service.sandboxes import LiveSandbox, SandboxService
from mcp_sandbox.service.telling import using

__all__ = ["FileReport", "FileService", "resolver_for"]

DEFAULT_LINES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What a use case has to say."""

    text: str
    notices: tuple[str, ...] = ()
    """What must be told once about the sandbox itself."""
    picture: Picture | None = None


def resolver_for(live: LiveSandbox) -> PathResolver:
    """Return the resolver that knows where the sandbox's project is on the host."""
    holds_project = live.record.workspace != WorkspaceMode.EMPTY
    return PathResolver(live.record.project or None if holds_project else None)


class _PathLocks:
    """One lock per path in use, so that an edit sees no write of ours between its reading and its writing."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], anyio.Lock] = {}
        self._users: dict[tuple[str, str], int] = {}

    @asynccontextmanager
    async def holding(self, sandbox: Sandbox, path: str) -> AsyncGenerator[None]:
        """Hold the lock of a path."""
        key = (sandbox.id, path)
        lock = self._locks.setdefault(key, anyio.Lock())
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]


class FileService:
    """Files of any sandbox, for callers who give paths as a model does.

    Args:
        sandboxes: Finds the sandbox that a handle means.
        deadline_s: Seconds that looking at one file may take.
    """

    def __init__(self, sandboxes: SandboxService, *, deadline_s: float = 20.0) -> None:
        self._sandboxes = sandboxes
        self._deadline_s = deadline_s
        self._locks = _PathLocks()

    async def read_file(
        self, handle: str | None, path: str, *, offset: int = 1, limit: int = DEFAULT_LINES
    ) -> FileReport:
        """Look at a file: of text, `limit` lines from line `offset` on.

        Raises:
            InvalidRequestError: The path or the range is of no use; says why, and what is near.
        """
        async with using(self._sandboxes, handle) as live:
            resolver = resolver_for(live)
            absolute = resolver.resolve(path)
            try:
                view = await view_file(live.sandbox, absolute, offset=offset, limit=limit, deadline_s=self._deadline_s)
            except OSError as error:
                raise await explain_path_error(
                    error, live.sandbox, absolute, doing="read", resolver=resolver
                ) from error
            return FileReport(text=view.text, notices=live.notices, picture=view.picture)

    async def write_file(self, handle: str | None, path: str, content: str) -> FileReport:
        """Put `content` in place of a file, or in a new one, making the directories above it.

        Raises:
            InvalidRequestError: The path or the content cannot be written.
            ProviderError: Something else arrived than was sent.
        """
        try:
            data = content.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                "Nothing was written", why="content holds half of a surrogate pair", fix="Send it as valid Unicode"
            ) from error
        async with using(self._sandboxes, handle) as live:
            resolver = resolver_for(live)
            absolute = resolver.resolve(path)
            async with self._locks.holding(live.sandbox, absolute):
                written = await self._write(live.sandbox, WriteRequest(path=absolute), data, resolver)
            done = "created" if written.created else "replaced"
            return FileReport(text=f"{done} {_facts(absolute, data, written)}", notices=live.notices)

    async def edit_file(self, handle: str | None, path: str, edit: Edit) -> FileReport:
        """Change a part of a file; with an empty old text, make a new one.

        Raises:
            InvalidRequestError: The old text is not there exactly once, or the path is of no use.
            StateError: The file changed while it was being edited; nothing was written.
        """
        async with using(self._sandboxes, handle) as live:
            sandbox, resolver = live.sandbox, resolver_for(live)
            absolute = resolver.resolve(path)
            async with self._locks.holding(sandbox, absolute):
                if not edit.old:
                    data = edit.new.encode()
                    written = await self._write(sandbox, WriteRequest(path=absolute, create_only=True), data, resolver)
                    return FileReport(text=f"created {_facts(absolute, data, written)}", notices=live.notices)
                before = await self._content(sandbox, absolute, resolver)
                edited = await to_thread.run_sync(apply_edit, before, edit)
                if await self._content(sandbox, absolute, resolver) != before:
                    raise StateError(
                        f"{label(absolute)} was not edited",
                        why="it changed while it was being edited",
                        fix="Read it again, and repeat the edit if it still applies",
                    )
                written = await self._write(sandbox, WriteRequest(path=absolute), edited.data, resolver)
            count = len(edited.lines)
            place = (
                f"line {edited.lines[0]}" if count == 1 else f"{count:,} places, the first at line {edited.lines[0]}"
            )
            return FileReport(text=f"edited {place} of {_facts(absolute, edited.data, written)}", notices=live.notices)

    async def list_files(self, handle: str | None, pattern: str, path: str = WORKSPACE) -> FileReport:
        """Find files by a glob below a directory, newest first.

        Raises:
            InvalidRequestError: The pattern or the path is of no use.
        """
        async with using(self._sandboxes, handle) as live:
            resolver = resolver_for(live)
            absolute = resolver.resolve(path or WORKSPACE)
            query = GlobQuery.parse(pattern or "*", absolute)
            try:
                text = await list_matching(live.sandbox, query)
            except OSError as error:
                raise await explain_path_error(
                    error, live.sandbox, query.base, doing="list", resolver=resolver
                ) from error
            return FileReport(text=text, notices=live.notices)

    async def _content(self, sandbox: Sandbox, path: str, resolver: PathResolver) -> bytes:
        try:
            with anyio.fail_after(self._deadline_s):
                async with await sandbox.read(ReadRequest(path=path)) as reader:
                    return await read_all(reader, EDIT_MAX_BYTES)
        except TimeoutError as error:
            raise InvalidRequestError(
                f"Cannot edit {label(path)}", why="reading it takes too long", fix="Use a command instead"
            ) from error
        except OSError as error:
            raise await explain_path_error(error, sandbox, path, doing="edit", resolver=resolver) from error

    async def _write(self, sandbox: Sandbox, request: WriteRequest, data: bytes, resolver: PathResolver) -> WriteResult:
        try:
            if resolver.inside(request.path) is not None:
                # The sandbox would make the host's directories anew, and the file would be where nobody looks.
                await sandbox.stat(StatRequest(path=posixpath.dirname(request.path)))
            written = await sandbox.write(request, data)
        except OSError as error:
            raise await explain_path_error(error, sandbox, request.path, doing="write", resolver=resolver) from error
        if (written.size_bytes, written.sha256) != (len(data), hashlib.sha256(data).hexdigest()):
            raise ProviderError(
                f"{label(request.path)} was written wrongly",
                why=f"{len(data):,} bytes were sent, and {written.size_bytes:,} other ones arrived",
                fix="Write it again, and report this to the operator",
            )
        return written


def _facts(path: str, data: bytes, written: WriteResult) -> str:
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    return f"{label(path)}: bytes={len(data)} lines={lines} sha256={written.sha256}"
