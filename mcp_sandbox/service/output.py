"""What a command says, held in bounded memory: the head and the tail of each stream, and the whole in a spool file."""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from mcp_sandbox.core.exec import OutputChunk, StreamName
from mcp_sandbox.service.spool import Spool

__all__ = ["HEAD_BYTES", "NOTHING", "TAIL_BYTES", "Captured", "Output", "Window", "unfinished"]

HEAD_BYTES = 32 * 1024
TAIL_BYTES = 64 * 1024
"""More than an answer can show, since redraws and escapes will be taken out."""

SHOWN_BYTES = 28_000
SHOWN_LINES = 1_800
"""What an answer is sure to show whole; a command that says more is spooled. No more than `HEAD_BYTES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What is left of a stretch of one stream."""

    head: bytes = b""
    tail: bytes = b""
    """Empty where nothing was left out: then `head` is all of it."""
    total_bytes: int = 0
    total_lines: int | None = 0
    """Line ends in the whole stretch, where they were counted."""
    spool_path: str = ""
    """Where the whole stream is, inside the sandbox, if it is."""
    spool_cut_bytes: int = 0
    """Bytes that were not spooled, since the file has its limit."""
    spool_failure: str = ""
    """Why nothing more was spooled, if so."""

    @property
    def omitted_bytes(self) -> int:
        """Bytes between head and tail."""
        return self.total_bytes - len(self.head) - len(self.tail)


NOTHING = Captured()
"""A stretch in which a stream said nothing."""


class Window:
    """Takes any number of bytes and keeps the first and the last of them."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total_bytes = 0
        self.total_lines = 0

    def add(self, data: bytes) -> None:
        """Take some more."""
        self.total_bytes += len(data)
        self.total_lines += data.count(b"\n")
        room = HEAD_BYTES - len(self._head)
        if room > 0 and not self._tail:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data[-TAIL_BYTES:])
        self._tail_bytes += len(self._tail[-1])
        while (surplus := self._tail_bytes - TAIL_BYTES) > 0:
            first = self._tail.popleft()
            if len(first) > surplus:
                self._tail.appendleft(first[surplus:])
            self._tail_bytes -= min(surplus, len(first))

    def head(self) -> bytes:
        """Return the first bytes."""
        return bytes(self._head)

    def last(self, size: int) -> bytes:
        """Return that many of the last bytes, or fewer if there are no more at hand."""
        end = b""
        for chunk in reversed(self._tail):
            end = chunk[-(size - len(end)) :] + end
            if len(end) == size:
                return end
        return end or bytes(self._head[-size:])

    def copy(self) -> "Window":
        """Return one that has taken the same."""
        window = Window()
        window._head[:] = self._head
        window._tail.extend(self._tail)
        window._tail_bytes = self._tail_bytes
        window.total_bytes, window.total_lines = self.total_bytes, self.total_lines
        return window

    def kept(self, *, final: bool) -> Captured:
        """Return what was kept, unless `final` without the start of an unfinished character."""
        head, tail = bytes(self._head), b"".join(self._tail)
        held = 0 if final else unfinished(tail or head)
        if held:
            head, tail = (head, tail[:-held]) if tail else (head[:-held], tail)
        total_bytes = self.total_bytes - held
        if total_bytes == len(head) + len(tail):
            head, tail = head + tail, b""
        return Captured(head=head, tail=tail, total_bytes=total_bytes, total_lines=self.total_lines)

    def take(self, *, final: bool) -> Captured:
        """Return what was kept and begin anew, with the start of an unfinished character unless `final`."""
        found = self.kept(final=final)
        held = self.total_bytes - found.total_bytes
        rest = self.last(held) if held else b""
        self._head.clear()
        self._tail.clear()
        self._tail_bytes = self.total_bytes = self.total_lines = 0
        self.add(rest)
        return found


def unfinished(data: bytes) -> int:
    """Return how many bytes at the end are the beginning of a UTF-8 character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if length > back else 0
    return 0


class Output:
    """Both streams of one command.

    Args:
        open_spool: Starts a spool file for a stream.
    """

    def __init__(self, open_spool: Callable[[StreamName], Awaitable[Spool]]) -> None:
        self.windows = {StreamName.STDOUT: Window(), StreamName.STDERR: Window()}
        self.spools: dict[StreamName, Spool] = {}
        self.total_bytes = 0
        self.gap = False
        """Whether some of it never arrived."""
        self._lines = 0
        self._open_spool = open_spool
        self._whole: dict[StreamName, Window] = {}
        self._spooling = False
        self._unspooled: dict[StreamName, bytes] = {}
        self._next_seq = 0
        self._last = StreamName.STDOUT

    def add(self, chunk: OutputChunk) -> bool:
        """Take a chunk; return whether `settle` must be awaited before the next one."""
        data, stream = chunk.data, chunk.stream
        self.gap = self.gap or chunk.gap or chunk.seq != self._next_seq
        self._next_seq = chunk.seq + 1
        self._last = stream
        if not self._spooling:
            self._lines += data.count(b"\n")
            if self.total_bytes + len(data) > SHOWN_BYTES or self._lines > SHOWN_LINES:
                self.spool_all()
        self.total_bytes += len(data)
        self.windows[stream].add(data)
        if self._whole:
            self._whole[stream].add(data)
        if not self._spooling:
            return False
        spool = self.spools.get(stream)
        if spool is None:
            self._unspooled[stream] = self._unspooled.get(stream, b"") + data
            return True
        spool.put(data)
        return spool.lags

    def keep_whole(self) -> None:
        """From now on, remember also what was taken."""
        self._whole = {stream: window.copy() for stream, window in self.windows.items()}

    def spool_all(self) -> None:
        """Have everything so far, and all that comes, written to spool files; `settle` goes on with it. Idempotent."""
        if not self._spooling:
            self._spooling = True
            self._unspooled = {stream: window.head() for stream, window in self.windows.items() if window.total_bytes}

    def spool_later(self) -> None:
        """Have what comes from now on, and nothing before, written to spool files."""
        self._spooling = True

    async def settle(self) -> None:
        """Open the spool files that are needed, and wait while one lags far behind. Cancelling loses nothing."""
        while self._unspooled:
            stream = next(iter(self._unspooled))
            self.spools[stream] = spool = await self._open_spool(stream)
            spool.put(self._unspooled.pop(stream))
        for spool in tuple(self.spools.values()):
            await spool.caught_up()

    def last_line(self) -> str:
        """Return the end of what was written last, raw."""
        return self.windows[self._last].last(400).decode(errors="replace")

    def take(self, *, final: bool) -> tuple[Captured, Captured]:
        """Return what standard output and standard error said since the last time."""
        stdout, stderr = (window.take(final=final) for window in self.windows.values())
        return self._with_spool(StreamName.STDOUT, stdout), self._with_spool(StreamName.STDERR, stderr)

    def whole(self, *, final: bool) -> tuple[Captured, Captured]:
        """Return what both said from the start, which also counts as taken. Only after `keep_whole`."""
        self.take(final=final)
        stdout, stderr = (window.kept(final=final) for window in self._whole.values())
        return self._with_spool(StreamName.STDOUT, stdout), self._with_spool(StreamName.STDERR, stderr)

    def _with_spool(self, stream: StreamName, found: Captured) -> Captured:
        spool = self.spools.get(stream)
        if spool is None:
            return found
        return replace(found, spool_path=spool.path, spool_cut_bytes=spool.cut_bytes, spool_failure=spool.failure)

    async def flush(self) -> None:
        """Return when the spool files hold everything."""
        for spool in tuple(self.spools.values()):
            await spool.flush()

    def close(self) -> None:
        """Let the spool files be finished."""
        for spool in self.spools.values():
            spool.close()
