"""Look at one file: numbered lines, a picture, or what the bytes of a binary file begin with."""

import codecs
from dataclasses import dataclass
from enum import Enum, auto

import anyio
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import FileInfo, ReadRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.streams import Head, read_head
from mcp_sandbox.service.encodings import BOMS, Encoding, is_binary
from mcp_sandbox.service.filetypes import hex_dump, image_type, kind_of
from mcp_sandbox.service.paging import LinePager, Page
from mcp_sandbox.service.paths import label

__all__ = ["BLOCK_BYTES", "PICTURE_MAX_BYTES", "SILENCE_S", "FileView", "Picture", "first_block", "view_file"]

PICTURE_MAX_BYTES = 1_572_864
"""1.5 MiB: about 2 MiB of base64 in the answer."""

BLOCK_BYTES = 65_536
"""What decides whether a file is binary to a search."""
_CHUNK_BYTES = 1 << 20
_SNIFFED_BYTES = 8_192
_DUMPED_BYTES = 256
_COUNTED_BYTES = 64 << 20
"""How far a file is read on behind a full page, to say how many lines it has."""
SILENCE_S = 4.0
"""How long one read may take: some files of `/proc` and `/sys` wait for something to happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture that a model can be shown."""

    data: bytes
    mime_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileView:
    """What there is to see of a file."""

    text: str
    picture: Picture | None = None


class _Stop(Enum):
    END = auto()
    SILENT = auto()
    LATE = auto()


class _Source:
    """The bytes of a file, until they end, stop coming or take too long."""

    def __init__(self, stream: ByteReceiveStream, deadline_s: float) -> None:
        self._stream = stream
        self._deadline = anyio.current_time() + deadline_s
        self._returned = b""
        self.received = 0
        self.stopped: _Stop | None = None

    async def head(self) -> bytes:
        """Return the first bytes, which `next` will give again."""
        data = b""
        while len(data) < _SNIFFED_BYTES and (chunk := await self.next()):
            data += chunk
        self._returned, self.received = data, 0
        return data

    async def next(self) -> bytes:
        """Return the next bytes, or none once `stopped` is set."""
        chunk, self._returned = self._returned, b""
        if not chunk and self.stopped is None:
            left_s = self._deadline - anyio.current_time()
            with anyio.move_on_after(min(SILENCE_S, left_s)) as scope:
                try:
                    chunk = await self._stream.receive(_CHUNK_BYTES)
                except anyio.EndOfStream:
                    self.stopped = _Stop.END
            if scope.cancelled_caught:
                self.stopped = _Stop.LATE if left_s <= SILENCE_S else _Stop.SILENT
        self.received += len(chunk)
        return chunk


async def view_file(sandbox: Sandbox, path: str, *, offset: int, limit: int, deadline_s: float) -> FileView:
    """Look at a file; of text, at `limit` lines from line `offset` on.

    Raises:
        InvalidRequestError: The range makes no sense.
        OSError: As `Sandbox.read`.
    """
    if offset < 0 or limit < 1:
        raise InvalidRequestError(
            "Nothing was read",
            why=f"offset={offset} limit={limit} is no range of lines",
            fix="Count lines from 1, and ask for one at least",
        )
    async with await sandbox.read(ReadRequest(path=path)) as reader:
        source = _Source(reader, deadline_s)
        head = await source.head()
        if (mime_type := image_type(head)) is not None:
            return await _picture(path, reader.info, head, reader, mime_type)
        bom = head[:2] if head[:2] in BOMS.values() and head[:4] != codecs.BOM_UTF32_LE else b""
        if not bom and is_binary(head):
            return FileView(text=_binary(path, reader.info, head))
        return FileView(text=await _text(path, reader.info, source, bom, max(offset, 1), limit))


async def _picture(path: str, info: FileInfo, head: bytes, reader: ByteReceiveStream, mime_type: str) -> FileView:
    title = f"path={label(path)} type={mime_type} bytes={info.size_bytes}"
    if info.size_bytes <= PICTURE_MAX_BYTES:
        rest = await read_head(reader, PICTURE_MAX_BYTES - len(head))
        if rest.complete:
            return FileView(text=title, picture=Picture(data=head + rest.data, mime_type=mime_type))
    return FileView(
        text=f"{title}\n[not shown: a picture of more than {PICTURE_MAX_BYTES:,} bytes. Make a smaller copy with a "
        "command, for example with ImageMagick or Python's Pillow, and read that]"
    )


def _binary(path: str, info: FileInfo, head: bytes) -> str:
    shown = head[:_DUMPED_BYTES]
    return (
        f"path={label(path)} bytes={max(info.size_bytes, len(head))} type={kind_of(head)!r}\n{hex_dump(shown)}\n"
        f"[binary file, its first {len(shown)} bytes; use a command such as `file`, `strings` or `xxd` to see more]"
    )


async def _text(path: str, info: FileInfo, source: _Source, bom: bytes, first: int, limit: int) -> str:
    pager = LinePager(first=first, count=limit, bom=bom)
    chunk = await source.next()
    mark = bom or (codecs.BOM_UTF8 if chunk.startswith(codecs.BOM_UTF8) else b"")
    chunk = chunk[len(mark) :]
    full_at = 0
    while chunk or source.stopped is None:
        pager.feed(chunk)
        if pager.full:
            full_at = full_at or source.received
            left = info.size_bytes - source.received
            if left > _COUNTED_BYTES or source.received - full_at > _COUNTED_BYTES:
                break
        chunk = await source.next()
    page = pager.finish()
    whole = source.stopped is _Stop.END
    size = source.received if whole else max(info.size_bytes, source.received)
    facts = [f"path={label(path)}"]
    if page.lines:
        facts.append(f"lines={page.first}-{page.last}")
    facts.append(f"total_lines={page.last_line_seen}" if whole else "total_lines=unknown")
    facts.append(f"bytes={size}")
    encodings = [*([f"{_encoding(mark)} (byte order mark)"] if mark else []), *sorted(page.encodings)]
    if encodings:
        facts.append(f"encoding={'+'.join(encodings)}")
    if "crlf" in page.line_ends:
        facts.append("line_ends=" + "+".join(sorted(page.line_ends)))
    if whole and not page.full and page.lines and not page.final_newline:
        facts.append("final_newline=no")
    return "\n".join([" ".join(facts), *page.lines, *_notes(page, source, whole=whole, size=size)])


def _encoding(mark: bytes) -> str:
    return next((encoding for encoding, bom in BOMS.items() if bom == mark), Encoding.UTF_8)


def _notes(page: Page, source: _Source, *, whole: bool, size: int) -> list[str]:
    notes: list[str] = []
    if Encoding.MIXED in page.encodings:
        notes.append(r"[bytes that are not UTF-8 are shown as \xNN]")
    if page.full:
        left = f"{page.last_line_seen - page.last:,} more lines" if whole else "there are more lines"
        notes.append(f"[{left}; go on with offset={page.last + 1}]")
    if source.stopped is _Stop.SILENT:
        notes.append(f"[stopped: the file gave nothing for {SILENCE_S:.0f} s; reading it waits for something]")
    elif source.stopped is _Stop.LATE and not page.full:
        notes.append(
            f"[stopped: out of time after {source.received:,} of {size:,} bytes and {page.last_line_seen:,} lines; "
            "use a command such as `sed -n` or `tail` to get there]"
        )
    elif not page.lines and not page.full:
        past = f"the file has {page.last_line_seen:,} lines, so line {page.first:,} is past its end"
        notes.append(f"[{past}]" if size else "[the file is empty]")
    return notes


async def first_block(stream: ByteReceiveStream) -> Head:
    """Return the part of a file that decides whether it is binary; nothing if it does not come."""
    data = b""
    with anyio.move_on_after(SILENCE_S):
        while len(data) < BLOCK_BYTES:
            try:
                data += await stream.receive(BLOCK_BYTES - len(data))
            except anyio.EndOfStream:
                return Head(data, complete=True)
    return Head(data, complete=False)
