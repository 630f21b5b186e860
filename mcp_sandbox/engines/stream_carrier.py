"""The byte-stream carrier: the same frames over one stream, and every byte of a file or command under credit."""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream, ByteStream

from mcp_sandbox.core.exec import ExecRequest, Execution
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines.carrier import Duplex, GuestRestarting, Reply, Sink, Source, error_fields, gone, os_error
from mcp_sandbox.engines.guest_execution import GuestExecution, command_payload, never_started, too_large
from mcp_sandbox.engines.kernels import Kernel
from mcp_sandbox.engines.sandbox_limits import SandboxLimits
from mcp_sandbox.engines.stream_answers import greeting, reply, seen, verdict
from mcp_sandbox.engines.stream_channels import (
    STDERR,
    STDOUT,
    TO_GUEST,
    BoundedInlet,
    ChannelCarrier,
    ChannelPair,
    Inlet,
    Outlet,
    WorkerInlet,
)
from mcp_sandbox.engines.stream_execution import OUTPUT, StreamExecution
from mcp_sandbox.engines.watched_carrier import WatchedCarrier
from mcp_sandbox.guest.errnos import host_errno
from mcp_sandbox.guest.wire import (
    MESSAGE_MAX,
    MORE,
    Frame,
    GoingReason,
    GuestProtocolError,
    Type,
    encode,
    open_payload,
    whole_frames,
)

__all__ = ["StreamCarrier"]

_log = logging.getLogger(__name__)
HEARTBEAT_S: Final = 20.0
SILENCE_S: Final = 75.0
"""Three heartbeats without an answer: the sandbox cannot be reached any more."""
PIECE_BYTES: Final = 256 << 10
ROW_BYTES: Final = 1 << 20
"""Outgoing bytes beyond which senders wait."""


class StreamCarrier(WatchedCarrier, ChannelCarrier):
    """One connection to the bridge role of a guest agent. Use `open`; `aclose` ends it, and the stream with it."""

    def __init__(self, transport: ByteStream) -> None:
        super().__init__()
        self.limits: Limits | None = None
        """Of the sandbox, for what the ends of commands have to do with them."""
        self.kernel = Kernel()
        self.watched: SandboxLimits | None = None  # the same, where the host counts too
        self.on_park: Callable[[], None] = lambda: None
        """Called when the bridge is to be without a stream for a moment."""
        self._transport = transport
        self._number = 0
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._commands: dict[int, StreamExecution] = {}
        self._outlets: dict[int, Outlet] = {}
        self._inlets: dict[tuple[int, int], Inlet] = {}
        self._restarting = False
        self._closed = False
        self._row: deque[bytes] = deque()
        self._row_bytes = 0
        self._more = asyncio.Event()
        self._less = asyncio.Event()
        self._welcome: asyncio.Future[Frame] = self._loop.create_future()

    @classmethod
    async def open(cls, transport: ByteStream) -> "StreamCarrier":
        """Wait for the greeting of the agent behind `transport`, which belongs to the carrier from now on.

        Raises:
            SandboxGoneError: It ended without a word.
            ProviderUnavailableError: It says nothing.
            GuestProtocolError: It speaks another version of the protocol.
        """
        carrier = cls(transport)
        carrier._tasks = [
            carrier._loop.create_task(work()) for work in (carrier._receive_all, carrier._send_all, carrier._beat)
        ]
        try:
            carrier.kernel = await greeting(carrier._welcome)
        except BaseException:
            await carrier.aclose()
            raise
        return carrier

    @property
    def closed(self) -> bool:
        """Whether the connection is over."""
        return self._closed

    # ------------------------------------------------------------------------------------------ requests

    async def request(self, kind: Type, payload: bytes) -> Reply:
        """Send a request and wait for its answer."""
        return reply(await self._ask(kind, payload, self._next()))

    async def open_file(self, path: str, offset: int, length: int | None) -> Source:
        """Open a file and let its bytes come."""
        number = self._next()
        inlet = self._expect(number, STDOUT)
        reply = await self._open(Type.OPEN, open_payload(0, 0, path, offset), number)
        return Source(reply, BoundedInlet(inlet, length))

    async def source(self, kind: Type, payload: bytes) -> Source:
        """Let a worker's bytes come; its verdict is the answer."""
        number = self._next()
        inlet = self._expect(number, STDOUT)
        try:
            answer = self._begin(kind, payload, number)
            await inlet.ready()
            if inlet.exhausted:  # nothing at all: the verdict says why
                reply(await answer)
        except BaseException:
            self._abandon(number)
            raise
        return Source(Reply(b""), WorkerInlet(inlet, lambda: verdict(answer)))

    async def sink(self, kind: Type, payload: bytes) -> Sink:
        """Open a file for writing."""
        number = self._next()
        outlet = self._supply(number)
        return Sink(await self._open(kind, payload, number), outlet)

    async def duplex(self, kind: Type, payload: bytes) -> Duplex:
        """Open a connection."""
        number = self._next()
        pair = ChannelPair(self._expect(number, STDOUT), self._supply(number))
        return Duplex(await self._open(kind, payload, number), pair)

    async def feed(self, kind: Type, payload: bytes, data: ByteReceiveStream) -> Reply:
        """Pump `data` into a worker and wait for its verdict."""
        number = self._next()
        outlet = self._supply(number)
        try:
            answer = self._begin(kind, payload, number)
            async for chunk in data:
                try:
                    await outlet.send(chunk)
                except (anyio.BrokenResourceError, OSError):
                    break  # the worker gave up; its answer says why
            outlet.close()
            return reply(await answer)
        except BaseException:
            self._abandon(number)
            raise

    async def exec(self, request: ExecRequest, environment: Sequence[str]) -> Execution:
        """Start a command on channels."""
        payload = command_payload(request, environment)
        if len(payload) > MESSAGE_MAX:
            return too_large(request, payload)
        await self.drained()
        judge = self.watched.begin() if self.watched else None
        execution = StreamExecution(self, request.timeout_s, self.limits, judge)
        execution.number = number = self._next()
        inlets = {name: self._expect(number, channel, execution.wake) for channel, name in OUTPUT.items()}
        execution.connect(inlets, self._supply(number) if request.stdin else None)
        self._commands[number] = execution
        try:
            frame = await self._begin(Type.EXEC, payload, number)
        except asyncio.CancelledError:
            await execution.aclose()
            raise
        except BaseException:
            execution.release()
            raise
        if frame.type == Type.ERROR:
            execution.release()
            return never_started(*error_fields(frame.payload), request)
        return execution

    def post(self, kind: Type, payload: bytes) -> None:
        """Send a request whose answer nobody waits for."""
        self.send(kind, self._next(), payload)

    def forget(self, number: int) -> None:
        """Drop what still comes for a command."""
        self._commands.pop(number, None)
        self._abandon(number)

    def commands(self) -> list[GuestExecution]:
        """Return those that have not ended."""
        return list(self._commands.values())

    async def aclose(self) -> None:
        """End the connection."""
        self._end()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        with anyio.move_on_after(2, shield=True):
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._transport.aclose()

    # ------------------------------------------------------------------------------------------ sending

    def send(self, kind: Type, number: int, payload: bytes, channel: int = 0) -> None:
        """Put one message into the row; nobody can be cancelled in the middle of one."""
        if not self._closed:
            for frame in encode(kind, number, payload, channel):
                self._row.append(frame)
                self._row_bytes += len(frame)
            self._more.set()

    async def drained(self) -> None:
        """Wait while too much is in the row."""
        while self._row_bytes > ROW_BYTES and not self._closed:
            self._less.clear()
            await self._less.wait()

    async def _send_all(self) -> None:
        try:
            while not self._closed:
                while self._row:
                    pieces, size = [self._row.popleft()], 0
                    while self._row and size < PIECE_BYTES:
                        size += len(self._row[0])
                        pieces.append(self._row.popleft())
                    piece = b"".join(pieces)
                    await self._transport.send(piece)
                    self._row_bytes -= len(piece)
                    self._less.set()
                self._more.clear()
                await self._more.wait()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self._end()

    async def _beat(self) -> None:
        while not self._closed:
            await anyio.sleep(HEARTBEAT_S)
            if self._loop.time() - self._heard_at > SILENCE_S:
                self._end()
            self.post(Type.PING, b"")

    # ------------------------------------------------------------------------------------------ mechanics

    def _next(self) -> int:
        self._number = self._number % 0x7FFFFFFF + 1  # the upper half belongs to the guest
        return self._number

    def _expect(self, number: int, channel: int, wake: asyncio.Event | None = None) -> Inlet:
        inlet = self._inlets[number, channel] = Inlet(self, number, channel, wake or asyncio.Event())
        return inlet

    def _supply(self, number: int) -> Outlet:
        outlet = self._outlets[number] = Outlet(self, number)
        return outlet

    def _abandon(self, number: int) -> None:
        """Close the channels of a request. One that the bridge does not have yet is closed when it shows itself."""
        if (outlet := self._outlets.pop(number, None)) is not None:
            outlet.close()
        for channel in (STDOUT, STDERR):
            if (inlet := self._inlets.pop((number, channel), None)) is not None:
                inlet.close()

    async def _ask(self, kind: Type, payload: bytes, number: int) -> Frame:
        await self.drained()
        return await self._begin(kind, payload, number)

    async def _open(self, kind: Type, payload: bytes, number: int) -> Reply:
        """Ask for what has channels; without a good answer they are closed."""
        try:
            return reply(await self._ask(kind, payload, number))
        except BaseException:
            self._abandon(number)
            raise

    def _begin(self, kind: Type, payload: bytes, number: int) -> "asyncio.Future[Frame]":
        if self._closed:
            raise GuestRestarting
        answer = self._pending[number] = self._loop.create_future()
        answer.add_done_callback(seen)
        self.send(kind, number, payload)
        return answer

    def _loss(self) -> Exception:
        return GuestRestarting() if self._restarting else gone()

    async def _receive_all(self) -> None:
        buffer = bytearray()
        try:
            async for piece in self._transport:
                self._heard_at = self._loop.time()
                buffer += piece
                for frame in whole_frames(buffer):
                    self._dispatch(frame)
        except (GuestProtocolError, struct.error) as error:
            _log.warning("cut off a guest agent that broke the protocol: %s", error)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            pass  # whoever waits learns that the sandbox is gone
        else:
            if not self._restarting:
                await self._ask_why()
        finally:
            self._end()

    def _dispatch(self, frame: Frame) -> None:
        if frame.flags & MORE:
            raise GuestProtocolError("a fragment from the guest")
        if frame.type == Type.DATA:
            if (inlet := self._inlets.get((frame.id, frame.channel))) is not None:
                inlet.arrived(frame.payload)
            else:
                self.send(Type.CLOSE, frame.id, bytes(4), frame.channel)
        elif frame.type == Type.CREDIT:
            if frame.channel == TO_GUEST and (outlet := self._outlets.get(frame.id)) is not None:
                outlet.credited(frame.number)
        elif frame.type == Type.CLOSE:
            self._closed_channel(frame)
        elif frame.type == Type.EXIT:
            if (execution := self._commands.get(frame.id)) is not None:
                execution.ended(frame.payload)
                del self._commands[frame.id]
        elif frame.type == Type.GOING:
            if frame.number == GoingReason.PARK:
                self.on_park()
            self._restarting = frame.number == GoingReason.RESTART
        elif frame.type == Type.ACCEPTED:  # nobody here listens yet
            for channel in (TO_GUEST, STDOUT):
                self.send(Type.CLOSE, frame.id, bytes(4), channel)
        elif frame.type == Type.WELCOME:
            if not self._welcome.done():
                self._welcome.set_result(frame)
        else:
            self._answered(frame)

    def _closed_channel(self, frame: Frame) -> None:
        number = frame.number
        if frame.channel == TO_GUEST:
            if (outlet := self._outlets.pop(frame.id, None)) is not None:
                outlet.finished(number)
        elif (inlet := self._inlets.pop((frame.id, frame.channel), None)) is not None:
            inlet.finished(os_error(host_errno(number)) if number else None)

    def _answered(self, frame: Frame) -> None:
        number, _ = error_fields(frame.payload) if frame.type == Type.ERROR else (0, "")
        answer = self._pending.pop(frame.id, None)
        if number:  # its channels are gone, without a CLOSE
            if (outlet := self._outlets.pop(frame.id, None)) is not None:
                outlet.finished(0)
            for channel in (STDOUT, STDERR):
                if (inlet := self._inlets.pop((frame.id, channel), None)) is not None:
                    inlet.finished(os_error(number))
            if (execution := self._commands.pop(frame.id, None)) is not None:
                execution.lost()
        if frame.type == Type.STARTED and (started := self._commands.get(frame.id)) is not None:
            started.started(frame.payload)  # now: its end may be the next frame
        if answer is not None and not answer.done():
            answer.set_result(frame)
        elif answer is not None:  # its caller was cancelled: close what it opened
            for channel in (TO_GUEST, STDOUT):
                self.send(Type.CLOSE, frame.id, bytes(4), channel)

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        for answer in (*self._pending.values(), self._welcome):
            if not answer.done():
                answer.set_exception(self._loss())
                seen(answer)
        self._pending.clear()
        for outlet in self._outlets.values():
            outlet.finished(0, gone())
        for inlet in self._inlets.values():
            inlet.finished(gone())
        for execution in self.commands():
            execution.lost()
        self._inlets.clear()
        self._outlets.clear()
        self._commands.clear()
        self._more.set()
        self._less.set()
