"""The byte-stream carrier: the same frames over one stream, and every byte of a file or command under credit."""

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Sequence
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream

from mcp_sandbox.core.exec import ExecEvent, ExecRequest, Execution, Exited, OutputChunk, StreamName
from mcp_sandbox.engines.carrier import GuestRestarting, Reply, Sink, Source, error_fields, gone, os_error
from mcp_sandbox.engines.guest_execution import CommandCarrier, GuestExecution, never_started
from mcp_sandbox.guest.wire import (
    FRAME_MAX,
    HEAD,
    PROTOCOL_VERSION,
    ExecFlag,
    Frame,
    GoingReason,
    GuestProtocolError,
    Type,
    encode,
    exec_payload,
    open_payload,
)

__all__ = ["StreamCarrier"]

WINDOW: Final = 256 << 10
"""Bytes that a sender may be ahead of the receiver's credit."""
TO_GUEST, STDOUT, STDERR = 0, 1, 2
NAMES: Final = {STDOUT: StreamName.STDOUT, STDERR: StreamName.STDERR}
WELCOME_S: Final = 10.0
HEARTBEAT_S: Final = 20.0


class StreamCarrier(CommandCarrier):
    """One connection to the bridge role of a guest agent. Use `open`; `aclose` ends it."""

    def __init__(self, transport: ByteStream) -> None:
        self._transport = transport
        self._number = 0
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._commands: dict[int, StreamExecution] = {}
        self._inward: dict[tuple[int, int], _Outlet] = {}
        self._outward: dict[tuple[int, int], _Inlet] = {}
        self._restarting = False
        self._closed = False
        self._sending = anyio.Lock()
        self._welcome: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, transport: ByteStream) -> "StreamCarrier":
        """Greet the agent behind `transport`.

        Raises:
            SandboxGoneError: It ended without a word.
            GuestProtocolError: It speaks another version of the protocol.
        """
        carrier = cls(transport)
        loop = asyncio.get_running_loop()
        carrier._tasks = [loop.create_task(carrier._receive_all()), loop.create_task(carrier._beat())]
        try:
            with anyio.fail_after(WELCOME_S):
                frame = await carrier._welcome
            (version,) = struct.unpack_from("<I", frame.payload)
            if version != PROTOCOL_VERSION:
                raise GuestProtocolError(f"version {version}, and this side speaks {PROTOCOL_VERSION}")
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
        return _reply(await self._ask(kind, payload))

    async def open_file(self, path: str, offset: int, length: int | None) -> Source:
        """Open a file and let its bytes come."""
        number = self._next()
        inlet = self._expect(number, STDOUT)
        try:
            reply = _reply(await self._ask(Type.OPEN, open_payload(0, 0, path, offset), number))
        except BaseException:
            self._outward.pop((number, STDOUT), None)
            raise
        return Source(reply, _Bounded(inlet, length))

    async def source(self, kind: Type, payload: bytes) -> Source:
        """Let a worker's bytes come; its verdict is the answer."""
        number = self._next()
        inlet = self._expect(number, STDOUT)
        answer = await self._begin(kind, payload, number)
        first = asyncio.ensure_future(inlet.ready())
        try:
            await asyncio.wait((first, answer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            first.cancel()
        if answer.done():
            _reply(answer.result())
        return Source(Reply(b""), inlet)

    async def sink(self, kind: Type, payload: bytes) -> Sink:
        """Open a file for writing."""
        number = self._next()
        outlet = self._supply(number)
        try:
            reply = _reply(await self._ask(kind, payload, number))
        except BaseException:
            self._inward.pop((number, TO_GUEST), None)
            raise
        return Sink(reply, outlet)

    async def feed(self, kind: Type, payload: bytes, data: ByteReceiveStream) -> Reply:
        """Pump `data` into a worker and wait for its verdict."""
        number = self._next()
        outlet = self._supply(number)
        answer = await self._begin(kind, payload, number)
        with contextlib.suppress(anyio.BrokenResourceError, OSError):  # the worker gave up; its answer says why
            async with outlet:
                async for chunk in data:
                    await outlet.send(chunk)
        return _reply(await answer)

    async def exec(self, request: ExecRequest, environment: Sequence[str]) -> Execution:
        """Start a command on channels."""
        flags = ExecFlag.STDIN if request.stdin else ExecFlag(0)
        try:
            payload = exec_payload(flags, request.cwd, request.argv, environment)
            frames = list(encode(Type.EXEC, 1, payload))
        except GuestProtocolError as error:
            return never_started(7, "exec", request, str(error))  # E2BIG
        del frames
        number = self._next()
        stdin = self._supply(number) if request.stdin else None
        execution = StreamExecution(self, request.timeout_s, stdin)
        execution.number = number
        execution.inlets = {name: self._expect(number, number_of, execution.wake) for number_of, name in NAMES.items()}
        self._commands[number] = execution
        try:
            frame = await self._ask(Type.EXEC, payload, number)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
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
        number = self._next()
        task = asyncio.get_running_loop().create_task(self._post(kind, number, payload))
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def _post(self, kind: Type, number: int, payload: bytes, channel: int = 0) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.send(kind, number, payload, channel)

    def forget(self, number: int) -> None:
        """Drop what still comes for a command."""
        self._commands.pop(number, None)
        for channel in (STDOUT, STDERR):
            if self._outward.pop((number, channel), None) is not None and not self._closed:
                task = asyncio.get_running_loop().create_task(self._post(Type.CLOSE, number, bytes(4), channel))
                self._tasks.append(task)
                task.add_done_callback(self._tasks.remove)

    async def send(self, kind: Type, number: int, payload: bytes, channel: int = 0) -> None:
        """Send one message."""
        async with self._sending:
            for frame in encode(kind, number, payload, channel):
                await self._transport.send(frame)

    async def aclose(self) -> None:
        """End the connection."""
        self._end()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        with anyio.move_on_after(2, shield=True):
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._transport.aclose()

    # ------------------------------------------------------------------------------------------ mechanics

    def _next(self) -> int:
        self._number = self._number % 0x7FFFFFFF + 1  # the upper half belongs to the guest
        return self._number

    def _expect(self, number: int, channel: int, wake: asyncio.Event | None = None) -> "_Inlet":
        inlet = self._outward[number, channel] = _Inlet(self, number, channel, wake or asyncio.Event())
        return inlet

    def _supply(self, number: int) -> "_Outlet":
        outlet = self._inward[number, TO_GUEST] = _Outlet(self, number)
        return outlet

    async def _ask(self, kind: Type, payload: bytes, number: int | None = None) -> Frame:
        return await (await self._begin(kind, payload, number or self._next()))

    async def _begin(self, kind: Type, payload: bytes, number: int) -> "asyncio.Future[Frame]":
        if self._closed:
            raise GuestRestarting
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_seen)
        try:
            await self.send(kind, number, payload)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._end()
            raise self._loss() from None
        return answer

    def _loss(self) -> Exception:
        return GuestRestarting() if self._restarting else gone()

    async def _beat(self) -> None:
        while not self._closed:
            await anyio.sleep(HEARTBEAT_S)
            await self._post(Type.PING, self._next(), b"")

    async def _receive_all(self) -> None:
        buffer = bytearray()
        try:
            async for piece in self._transport:
                buffer += piece
                while len(buffer) >= HEAD.size:
                    (length,) = struct.unpack_from("<I", buffer)
                    if length > FRAME_MAX:
                        raise GuestProtocolError(f"a frame of {length} bytes")
                    if len(buffer) < HEAD.size + length:
                        break
                    self._dispatch(Frame.decode(bytes(buffer[: HEAD.size + length])))
                    del buffer[: HEAD.size + length]
        except (GuestProtocolError, struct.error, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # whoever waits learns that the sandbox is gone
        finally:
            self._end()

    def _dispatch(self, frame: Frame) -> None:
        key = frame.id, frame.channel
        if frame.type == Type.DATA:
            if (inlet := self._outward.get(key)) is not None:
                inlet.arrived(frame.payload)
        elif frame.type == Type.CREDIT:
            if (outlet := self._inward.get(key)) is not None:
                outlet.credited(struct.unpack_from("<I", frame.payload)[0])
        elif frame.type == Type.CLOSE:
            (number,) = struct.unpack_from("<I", frame.payload)
            if (outlet := self._inward.pop(key, None)) is not None:
                outlet.finished(number)
            elif (inlet := self._outward.pop(key, None)) is not None:
                inlet.finished()
        elif frame.type == Type.EXIT:
            if (execution := self._commands.pop(frame.id, None)) is not None:
                execution.ended(frame.payload)
        elif frame.type == Type.GOING:
            self._restarting = struct.unpack_from("<I", frame.payload)[0] == GoingReason.RESTART
        elif frame.type == Type.WELCOME and not self._welcome.done():
            self._welcome.set_result(frame)
        elif (answer := self._pending.pop(frame.id, None)) is not None and not answer.done():
            answer.set_result(frame)

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        for answer in (*self._pending.values(), self._welcome):
            if not answer.done():
                answer.set_exception(self._loss())
                _seen(answer)
        self._pending.clear()
        for outlet in self._inward.values():
            outlet.finished(32)  # EPIPE
        for inlet in self._outward.values():
            inlet.finished()
        for execution in list(self._commands.values()):
            execution.lost()
        self._inward.clear()
        self._outward.clear()
        self._commands.clear()


def _seen(answer: "asyncio.Future[Frame]") -> None:
    if not answer.cancelled():
        answer.exception()


def _reply(frame: Frame) -> Reply:
    if frame.type == Type.ERROR:
        raise os_error(error_fields(frame.payload)[0])
    return Reply(frame.payload)


class _Inlet(ByteReceiveStream):
    """Bytes from the guest; what is taken here is credited there."""

    def __init__(self, carrier: StreamCarrier, number: int, channel: int, wake: asyncio.Event) -> None:
        self._carrier, self._number, self._channel, self._wake = carrier, number, channel, wake
        self._chunks: deque[bytes] = deque()
        self._ended = False

    def arrived(self, data: bytes) -> None:
        self._chunks.append(data)
        self._wake.set()

    def finished(self) -> None:
        self._ended = True
        self._wake.set()

    @property
    def exhausted(self) -> bool:
        return self._ended and not self._chunks

    async def ready(self) -> None:
        while not self._chunks and not self._ended:
            self._wake.clear()
            await self._wake.wait()

    def take(self, max_bytes: int) -> bytes:
        """Return what is there without waiting; empty if nothing is."""
        if not self._chunks:
            return b""
        data = self._chunks.popleft()
        if len(data) > max_bytes:
            self._chunks.appendleft(data[max_bytes:])
            data = data[:max_bytes]
        return data

    async def credit(self, count: int) -> None:
        if not self._ended and not self._carrier.closed:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._carrier.send(Type.CREDIT, self._number, struct.pack("<I", count), self._channel)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await self.ready()
        data = self.take(max_bytes)
        if not data:
            raise anyio.EndOfStream
        await self.credit(len(data))
        return data

    async def aclose(self) -> None:
        if not self._ended and not self._carrier.closed:
            self._ended = True
            self._chunks.clear()
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._carrier.send(Type.CLOSE, self._number, bytes(4), self._channel)


class _Bounded(ByteReceiveStream):
    """At most so many bytes of a stream."""

    def __init__(self, below: _Inlet, length: int | None) -> None:
        self._below, self._left = below, length

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._left is not None:
            max_bytes = min(max_bytes, self._left)
            if not max_bytes:
                raise anyio.EndOfStream
        data = await self._below.receive(max_bytes)
        if self._left is not None:
            self._left -= len(data)
        return data

    async def aclose(self) -> None:
        await self._below.aclose()


class _Outlet(ByteSendStream):
    """Bytes to the guest, never more than it has room for. Closing waits until all are written."""

    def __init__(self, carrier: StreamCarrier, number: int) -> None:
        self._carrier, self._number = carrier, number
        self._window = WINDOW
        self._moved = asyncio.Event()
        self._verdict: int | None = None
        self._closing = False

    def credited(self, count: int) -> None:
        self._window += count
        self._moved.set()

    def finished(self, number: int) -> None:
        self._verdict = number
        self._moved.set()

    async def send(self, item: bytes) -> None:
        if self._closing:
            raise anyio.ClosedResourceError
        while item:
            while not self._window and self._verdict is None:
                self._moved.clear()
                await self._moved.wait()
            if self._verdict is not None:
                raise self._failure()
            piece = item[: min(self._window, FRAME_MAX)]
            self._window -= len(piece)
            item = item[len(piece) :]
            await self._carrier.send(Type.DATA, self._number, piece, TO_GUEST)

    def _failure(self) -> Exception:
        if self._verdict in (0, 32):  # EPIPE: the reader left
            return anyio.BrokenResourceError()
        return os_error(self._verdict or 5)

    async def aclose(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._verdict is None:
            await self._carrier.send(Type.CLOSE, self._number, bytes(4), TO_GUEST)
        while self._verdict is None:
            self._moved.clear()
            await self._moved.wait()
        if self._verdict and self._verdict != 32:
            raise self._failure()


class StreamExecution(GuestExecution):
    """A command whose output arrives as DATA; credit is given as it is taken."""

    inlets: dict[StreamName, _Inlet]

    def __init__(self, carrier: StreamCarrier, timeout_s: float | None, stdin: _Outlet | None) -> None:
        super().__init__(carrier, timeout_s)
        self._stdin = stdin
        self._sequence = 0

    @property
    def wake(self) -> asyncio.Event:
        """What to set when something came."""
        return self._wake

    async def receive(self) -> ExecEvent:
        """Return the next event."""
        while True:
            self._wake.clear()
            exited = self._result.done()
            for name, inlet in list(self.inlets.items()):
                if data := inlet.take(FRAME_MAX):
                    self.inlets[name] = self.inlets.pop(name)  # to the end of the row: the streams take turns
                    await inlet.credit(len(data))
                    self._sequence += 1
                    return OutputChunk(name, data, self._sequence - 1)
            if exited and not self._told:
                self._told = True
                return Exited(self._result.result())
            if self._told and all(inlet.exhausted for inlet in self.inlets.values()):
                raise anyio.EndOfStream
            await self._wake.wait()

    async def write_stdin(self, data: bytes) -> None:
        """Write all of `data`."""
        if self._stdin is None:
            raise anyio.ClosedResourceError
        await self._stdin.send(data)

    async def close_stdin(self) -> None:
        """Let the command read end of file."""
        stdin, self._stdin = self._stdin, None
        if stdin is not None:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stdin.aclose()

    def _free(self) -> None:
        for inlet in self.inlets.values():
            inlet.finished()
