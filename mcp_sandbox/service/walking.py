"""Search a tree from outside: list it, read its files through the border, and match them here."""

import codecs
import os
from collections.abc import Callable, Sequence

import anyio
from anyio import to_thread
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import FileKind, ListRequest, ReadRequest
from mcp_sandbox.core.globs import pruned_for, skipped
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.streams import BytesStream, Head, read_head
from mcp_sandbox.service.encodings import BOMS, Encoding, is_binary_to_search
from mcp_sandbox.service.findings import Findings, SearchQuery
from mcp_sandbox.service.listing import TREE_DEPTH, TREE_MAX_ENTRIES
from mcp_sandbox.service.matching import FileMatcher, SlowPatternError, compile_pattern
from mcp_sandbox.service.reading import BLOCK_BYTES, SILENCE_S, first_block

__all__ = ["Walk"]

_BATCH = 16
_SMALL_BYTES = 262_144
"""Files up to this size are fetched several at once."""
_SPAN_MAX_BYTES = 16 << 20
"""Size of a file that is searched for matches across lines."""


class Walk:
    """One search, in the order of the paths, until the findings are full.

    Args:
        sandbox: Whose files.
        query: What is asked; its path exists.
        findings: Where matches go.
        deadline_s: Seconds until it ends with what it has.

    Raises:
        InvalidRequestError: The pattern is no regular expression.
    """

    def __init__(self, sandbox: Sandbox, query: SearchQuery, findings: Findings, *, deadline_s: float) -> None:
        self._sandbox, self._query, self._findings = sandbox, query, findings
        self._deadline_s = deadline_s
        self._matcher = FileMatcher(compile_pattern(query), query, findings)
        self._too_large = 0

    async def search(self, *, file: bool) -> None:
        """Search the file that the query's path is, or every one below the directory.

        Raises:
            OSError: As `Sandbox.list` and `Sandbox.read` for the query's path.
        """
        with anyio.move_on_after(self._deadline_s) as scope:
            try:
                if file:
                    async with await self._sandbox.read(ReadRequest(path=self._query.path)) as reader:
                        await self._search_file(self._query.path, reader, explicit=True)
                else:
                    await self._search_tree()
            except SlowPatternError:
                self._findings.end()
                self._findings.note(
                    "stopped: the pattern is too slow on some lines; avoid repeating repetitions: (a+)+"
                )
        if scope.cancelled_caught:
            self._findings.end()
            self._findings.note(f"stopped after {self._deadline_s:.0f} s; narrow path or glob")
        if self._too_large:
            self._findings.note(f"{self._too_large:,} files over {_SPAN_MAX_BYTES:,} bytes were left out")

    async def _search_tree(self) -> None:
        paths = await self._candidates()
        for start in range(0, len(paths), _BATCH):
            batch = paths[start : start + _BATCH]
            contents = await self._fetch(batch)
            for path in batch:
                if (data := contents.get(path)) is not None:
                    await self._search_file(path, BytesStream(data), explicit=False)
                elif path in contents:
                    await self._search_large(path)
                if self._findings.full:
                    return

    async def _candidates(self) -> Sequence[str]:
        root = self._query.path
        components = self._query.filter.components
        pruned = pruned_for(components)
        listing = await self._sandbox.list(
            ListRequest(path=root, depth=TREE_DEPTH, limit=TREE_MAX_ENTRIES, prune=pruned)
        )
        if listing.truncated:
            self._findings.note(f"only {len(listing.entries):,} entries were looked at; narrow the path")
        admitted = self._query.filter.compiled()
        start = len(root.rstrip("/")) + 1
        found: list[tuple[list[bytes], str]] = []
        for entry in listing.entries:
            relative = entry.path[start:]
            if entry.kind is not FileKind.FILE or skipped(relative, components, pruned):
                continue
            if root == "/" and relative.startswith(("proc/", "sys/", "dev/")):
                continue
            if admitted.admits(relative):
                found.append((os.fsencode(relative).split(b"/"), entry.path))
        return [path for _, path in sorted(found)]

    async def _fetch(self, paths: Sequence[str]) -> dict[str, bytes | None]:
        """Read the small ones of some files at once; large ones are `None`, unreadable ones missing."""
        contents: dict[str, bytes | None] = {}

        async def fetch(path: str) -> None:
            try:
                async with await self._sandbox.read(ReadRequest(path=path)) as reader:
                    head = Head(b"", complete=False)
                    if reader.info.size_bytes <= _SMALL_BYTES:
                        with anyio.move_on_after(SILENCE_S):
                            head = await read_head(reader, _SMALL_BYTES)
                contents[path] = head.data if head.complete else None
            except FileNotFoundError:
                return  # removed since it was listed
            except (OSError, InvalidRequestError):  # the other one of a path that is longer than any call takes
                self._findings.unreadable += 1

        async with anyio.create_task_group() as tasks:
            for path in paths:
                tasks.start_soon(fetch, path)
        return contents

    async def _search_large(self, path: str) -> None:
        try:
            async with await self._sandbox.read(ReadRequest(path=path)) as reader:
                await self._search_file(path, reader, explicit=False)
        except (OSError, InvalidRequestError):
            self._findings.unreadable += 1

    async def _search_file(self, path: str, stream: ByteReceiveStream, *, explicit: bool) -> None:
        head = await first_block(stream)
        if not explicit and is_binary_to_search(head.data):
            return
        decoder = _Decoder(head.data)
        checks = not explicit and not decoder.transcodes
        if self._query.multiline:
            await self._search_whole(path, stream, head, decoder, checks=checks)
            return
        self._matcher.begin(path)
        block, is_cut = head.data, False
        while block and not self._findings.settled:
            await to_thread.run_sync(self._matcher.feed, decoder.decode(block), abandon_on_cancel=True)
            block = await self._next(stream)
            if is_cut := checks and b"\0" in block:
                break
        await _in_thread(lambda: self._matcher.end(is_cut=is_cut))

    async def _search_whole(
        self, path: str, stream: ByteReceiveStream, head: Head, decoder: "_Decoder", *, checks: bool
    ) -> None:
        rest = Head(b"", complete=head.complete)
        if not head.complete:
            with anyio.move_on_after(SILENCE_S):
                rest = await read_head(stream, _SPAN_MAX_BYTES)
        if not rest.complete:
            self._too_large += 1
            return
        data = head.data + rest.data
        nul = data.find(b"\0") if checks else -1
        if nul >= 0:
            data = data[: nul // BLOCK_BYTES * BLOCK_BYTES]
        self._matcher.begin(path)
        text = decoder.decode(data)
        await _in_thread(lambda: self._matcher.search_whole(text, is_cut=nul >= 0))

    async def _next(self, stream: ByteReceiveStream) -> bytes:
        with anyio.move_on_after(SILENCE_S):
            try:
                return await stream.receive(BLOCK_BYTES)
            except anyio.EndOfStream:
                return b""
        self._findings.unreadable += 1
        return b""


async def _in_thread(call: Callable[[], None]) -> None:
    """Run what may take long in a thread, which is left to itself if the caller is cancelled; it ends in seconds."""
    await to_thread.run_sync(call, abandon_on_cancel=True)


class _Decoder:
    """Takes the byte order mark away, and turns UTF-16 into UTF-8."""

    def __init__(self, head: bytes) -> None:
        self._mark = next((mark for mark in (codecs.BOM_UTF8, *BOMS.values()) if head.startswith(mark)), b"")
        encoding = next((encoding for encoding, mark in BOMS.items() if mark == self._mark), Encoding.UTF_8)
        self.transcodes = encoding is not Encoding.UTF_8
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def decode(self, block: bytes) -> bytes:
        """Return the next bytes as UTF-8; what is not UTF-16 stays as it is."""
        if self._mark:
            block, self._mark = block[len(self._mark) :], b""
        return self._decoder.decode(block).encode() if self.transcodes else block
