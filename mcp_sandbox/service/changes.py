"""What a sandbox changed, a page of it at a time: as a diff, or one line for each path."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from anyio import to_thread

from mcp_sandbox.core.differences import Change
from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.core.sandbox import WORKSPACE
from mcp_sandbox.service.change_lines import diff_of, summary_line, totals, visible
from mcp_sandbox.service.differences import LIVE, START, compare
from mcp_sandbox.service.paging import ANSWER_MAX_CHARS, ANSWER_MAX_LINES, LINE_MAX_CHARS
from mcp_sandbox.service.paths import display, shorten
from mcp_sandbox.service.renames import Entry, candidates, with_renames
from mcp_sandbox.service.sandboxes import SandboxService

__all__ = ["TEXT_BYTES", "ChangePage", "ChangeService", "is_told_by_others"]

TEXT_BYTES: Final = 256 << 10
"""Of larger files a diff says only that they differ."""
_MOST: Final = 10_000
_BATCH: Final = 200
"""Files whose contents are fetched at a time."""
_FRAME_CHARS: Final = 1_500
_NAMED: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePage:
    """Some lines of all that there is to say."""

    lines: tuple[str, ...]
    first: int
    """Number of the first line, from 1."""
    more: bool
    """Whether others follow."""
    count: int
    """Paths that changed; of a renamed file one."""
    totals: str
    truncated: bool
    """Whether there are more changes than are looked at."""
    unseen: tuple[str, ...]


class ChangeService:
    """Looks only.

    Args:
        sandboxes: Opened by whoever made this.
    """

    def __init__(self, sandboxes: SandboxService) -> None:
        self._sandboxes = sandboxes

    async def show(
        self,
        handle: str | None = None,
        *,
        since: str = START,
        paths: Sequence[str] = (),
        summary: bool = False,
        offset: int = 1,
    ) -> ChangePage:
        """Return a page of what changed from a state until now.

        Args:
            handle: The sandbox; the project's default without one.
            since: `start`, or a unique prefix of a snapshot's id.
            paths: Only these, and what is below them; the workspace without any.
            summary: One line for each path instead of a diff.
            offset: Number of the first line.

        Raises:
            NotFoundError: There is no such sandbox or snapshot.
            UnsupportedError: The provider cannot compare.
            InvalidRequestError: The offset is none.
        """
        if offset < 1:
            raise InvalidRequestError("Nothing compared", why=f"offset={offset} is no line", fix="Count lines from 1")
        record = await self._sandboxes.find(handle)
        if record is None:
            raise NotFoundError(
                "Nothing changed", why="this project has no sandbox yet", fix="Use a tool on it first: `exec`"
            )
        asked = list(paths) or [WORKSPACE]
        found = await compare(self._sandboxes, since, LIVE, handle=record.id, paths=asked, limit=_MOST)
        texts = await self._texts(record.id, since, candidates(found.changes))
        entries = with_renames([texts.get(change.path, change) for change in found.changes])
        shown = self._summary(entries) if summary else self._diff(entries, record.id, since)
        async with aclosing(shown):
            lines, more = await _page(shown, offset)
        self._sandboxes.look_soon(await self._sandboxes.provider(record.provider), record)
        return ChangePage(
            lines=tuple(lines), first=offset, more=more, count=len(entries), totals=totals(entries),
            truncated=found.truncated, unseen=tuple(display(path) for path in found.unseen[:_NAMED]),
        )  # fmt: skip

    async def _summary(self, entries: Sequence[Entry]) -> AsyncGenerator[str]:
        for entry in entries:
            yield summary_line(entry, name=shorten(entry.change.path))

    async def _diff(self, entries: Sequence[Entry], sandbox: str, since: str) -> AsyncGenerator[str]:
        """Yield the lines of a diff, fetching contents as they are needed."""
        for at in range(0, len(entries), _BATCH):
            batch = entries[at : at + _BATCH]
            wanted = [entry.change.path for entry in batch if not entry.source and _has_text(entry.change)]
            texts = await self._texts(sandbox, since, wanted)
            for entry in batch:
                change = entry.change
                if is_told_by_others(change):
                    continue
                whole = entry if entry.source else Entry(change=texts.get(change.path, change))
                text = await to_thread.run_sync(diff_of, whole)
                for line in text.removesuffix("\n").split("\n"):
                    yield line

    async def _texts(self, sandbox: str, since: str, paths: Sequence[str]) -> dict[str, Change]:
        """Return changes with their contents, by path."""
        if not paths:
            return {}
        found = await compare(
            self._sandboxes, since, LIVE, handle=sandbox, paths=paths, limit=_MOST, text_bytes=TEXT_BYTES
        )
        return {change.path: change for change in found.changes}


async def _page(lines: AsyncGenerator[str], offset: int) -> tuple[list[str], bool]:
    page: list[str] = []
    left = ANSWER_MAX_CHARS - _FRAME_CHARS
    number = 0
    async for line in lines:
        number += 1
        if number < offset:
            continue
        shown = visible(line if len(line) <= LINE_MAX_CHARS else f"{line[:LINE_MAX_CHARS]}... (cut)")
        left -= len(shown) + 1
        if left < 0 or len(page) >= ANSWER_MAX_LINES - 50:
            return page, True
        page.append(shown)
    return page, False


def _has_text(change: Change) -> bool:
    return any(
        side is not None and side.kind in (FileKind.FILE, FileKind.SYMLINK) for side in (change.before, change.after)
    )


def is_told_by_others(change: Change) -> bool:
    """Whether a directory came or went: what was in it says so. An empty one is told in the summary alone."""
    sides = [side for side in (change.before, change.after) if side is not None]
    return len(sides) == 1 and sides[0].kind is FileKind.DIRECTORY
