"""The local carrier: one SEQPACKET socket to the agent; bytes travel through descriptors that it passes."""

import array
import asyncio
import errno
import logging
import os
import socket
import struct
import weakref
from collections import deque
from collections.abc import Sequence

import anyio
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.exec import ExecRequest, Execution
from mcp_sandbox.engines.carrier import (
    Duplex,
    GuestRestarting,
    Reply,
    Sink,
    Source,
    error_fields,
    gone,
    no_answer,
    os_error,
)
from mcp_sandbox.engines.descriptors import FileSource, FileTarget, PipeSource, regular_file, write_pipe
from mcp_sandbox.engines.guest_execution import CommandCarrier, command_payload, never_started, too_large
from mcp_sandbox.engines.guest_socket import GuestSocket
from mcp_sandbox.engines.local_execution import Lingering, LocalExecution
from mcp_sandbox.engines.sandbox_limits import SandboxLimits
from mcp_sandbox.guest.wire import (
    FRAME_MAX,
    HEAD,
    MESSAGE_MAX,
    PROTOCOL_VERSION,
    Frame,
    GoingReason,
    GuestProtocolError,
    Type,
    encode,
    open_payload,
)

__all__ = ["LocalCarrier"]

_log = logging.getLogger(__name__)
ANCILLARY_BYTES = socket.CMSG_SPACE(4 * 4)
RETRY_S = 0.002
"""Between attempts to send what the kernel did not take; rare, and a full socket is not the only reason."""
WELCOME_S = 10.0


class LocalCarrier(CommandCarrier):
    """One connection to an agent on this host. Not usable before `welcome` returned.

    Args:
        connection: The connected socket.
        owner: User and group that commands run as, as this process knows them, if they are not its own.
    """

    def __init__(self, connection: socket.socket, owner: tuple[int, int] | None = None) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._pending: dict[int, asyncio.Future[tuple[Frame, int | None]]] = {}
        self._commands: dict[int, LocalExecution] = {}
        self._welcome: asyncio.Future[tuple[Frame, int | None]] = self._loop.create_future()
        self._sockets: weakref.WeakSet[GuestSocket] = weakref.WeakSet()
        self._lingering = Lingering()
        self._restarting = False
        self._closed = False
        self.limits: SandboxLimits | None = None
        """Set once connected, by whoever knows them."""
        self._row: deque[tuple[bytes, list[int]]] = deque()
        """Frames that the socket did not take yet, with copies of the descriptors that go with them."""
        self._loop.add_reader(connection.fileno(), self._receive_all)

    async def welcome(self) -> None:
        """Wait for the agent's greeting.

        Raises:
            OSError: Init could not be set up; `strerror` names the step that failed.
            SandboxGoneError: The agent ended without a word.
            ProviderError: It does not answer, or speaks another version of the protocol.
        """
        try:
            with anyio.fail_after(WELCOME_S):
                frame, _ = await self._welcome
        except TimeoutError:
            raise no_answer("the sandbox's init", WELCOME_S) from None
        if frame.type == Type.ERROR:
            number, step = error_fields(frame.payload)
            raise OSError(number, f"{step}: {os.strerror(number)}")
        version = int.from_bytes(frame.payload[:4], "little")
        if frame.type != Type.WELCOME or version != PROTOCOL_VERSION:
            raise GuestProtocolError(f"version {version}, and this side speaks {PROTOCOL_VERSION}")

    @property
    def closed(self) -> bool:
        """Whether the connection is over."""
        return self._closed

    # ------------------------------------------------------------------------------------------ requests

    async def request(self, kind: Type, payload: bytes) -> Reply:
        """Send a request and wait for its answer."""
        return await self._ask(kind, payload, ())

    async def open_file(self, path: str, offset: int, length: int | None) -> Source:
        """Open a file and read it through its descriptor."""
        reply = await self._ask(Type.OPEN, open_payload(0, 0, path, offset), ())
        return Source(reply, FileSource(regular_file(reply.descriptor), length))

    async def source(self, kind: Type, payload: bytes) -> Source:
        """Let a worker write into a pipe."""
        readable, writable = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(readable, False)
        stream = _WorkerSource(readable)
        try:
            stream.attach(self._begin(kind, payload, (writable,)))
            await stream.refused()
        except BaseException:
            await stream.aclose()
            raise
        finally:
            os.close(writable)
        return Source(Reply(b""), stream)

    async def sink(self, kind: Type, payload: bytes) -> Sink:
        """Open a file for writing."""
        reply = await self._ask(kind, payload, ())
        return Sink(reply, FileTarget(regular_file(reply.descriptor), is_new=kind is Type.CREATE))

    async def duplex(self, kind: Type, payload: bytes) -> Duplex:
        """Open a connection."""
        reply = await self._ask(kind, payload, ())
        stream = GuestSocket.of(reply.descriptor)
        self._sockets.add(stream)
        await stream.connected()
        return Duplex(reply, stream)

    async def feed(self, kind: Type, payload: bytes, data: ByteReceiveStream) -> Reply:
        """Pump `data` into a worker and wait for its verdict."""
        readable, writable = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writable, False)
        try:
            answer = self._begin(kind, payload, (readable,))
        except BaseException:
            os.close(writable)
            raise
        finally:
            os.close(readable)
        try:
            async for chunk in data:
                await write_pipe(writable, chunk)
        except anyio.BrokenResourceError:
            pass  # the worker gave up; its answer says why
        finally:
            os.close(writable)
        return _reply(*await answer)

    async def exec(self, request: ExecRequest, environment: Sequence[str]) -> Execution:
        """Start a command on pipes of our own."""
        payload = command_payload(request, environment)
        if len(payload) > MESSAGE_MAX:
            return too_large(request, payload)
        judge = self.limits.begin() if self.limits is not None else None
        execution = LocalExecution(self, request.timeout_s, self._lingering, judge)
        try:
            passed = execution.open_pipes(stdin=request.stdin, owner=self._owner)
        except BaseException:
            execution.release()
            raise
        try:
            started = self._begin(Type.EXEC, payload, passed, execution)
        except BaseException:
            execution.release()
            raise
        finally:
            for descriptor in passed:
                os.close(descriptor)
        try:
            frame, _ = await started
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await execution.aclose()
            raise
        except BaseException:
            execution.release()
            raise
        if frame.type == Type.ERROR:
            execution.release()
            self._commands.pop(frame.id, None)
            return never_started(*error_fields(frame.payload), request)
        return execution

    def post(self, kind: Type, payload: bytes) -> None:
        """Send a request whose answer nobody waits for."""
        if not self._closed:
            self._send(list(encode(kind, self._next(), payload)), ())

    def forget(self, number: int) -> None:
        """Stop passing events of a command on."""
        self._commands.pop(number, None)

    async def aclose(self) -> None:
        """End the connection."""
        self._end()

    # ------------------------------------------------------------------------------------------ mechanics

    async def _ask(self, kind: Type, payload: bytes, descriptors: Sequence[int]) -> Reply:
        answer = self._begin(kind, payload, descriptors)
        try:
            return _reply(*await answer)
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                _close(answer.result()[1])  # it came in the moment of the cancellation
            raise

    def _next(self) -> int:
        self._number = self._number % 0xFFFFFFFF + 1
        return self._number

    def _begin(
        self, kind: Type, payload: bytes, descriptors: Sequence[int], execution: LocalExecution | None = None
    ) -> "asyncio.Future[tuple[Frame, int | None]]":
        if self._closed:
            raise GuestRestarting
        number = self._next()
        frames = list(encode(kind, number, payload))
        answer = self._pending[number] = self._loop.create_future()
        answer.add_done_callback(_retrieve)
        if execution is not None:
            execution.number = number
            self._commands[number] = execution
        self._send(frames, descriptors)
        if self._closed:  # nothing was delivered, so whoever still can may connect again and repeat it
            raise GuestRestarting
        return answer

    def _send(self, frames: Sequence[bytes], descriptors: Sequence[int]) -> None:
        """Send a message whole, in its turn; nobody can be cancelled in the middle of one."""
        waiting = bool(self._row)
        for frame in frames:
            passed = list(descriptors) if frame is frames[-1] else []
            if self._row or not self._send_frame(frame, passed):
                self._row.append((frame, [os.dup(descriptor) for descriptor in passed]))
        if self._row and not waiting:
            self._loop.call_later(RETRY_S, self._send_waiting)

    def _send_waiting(self) -> None:
        while self._row and self._send_frame(*self._row[0]):
            if self._row:  # else the connection ended meanwhile
                for descriptor in self._row.popleft()[1]:
                    os.close(descriptor)
        if self._row:
            self._loop.call_later(RETRY_S, self._send_waiting)

    def _send_frame(self, frame: bytes, passed: list[int]) -> bool:
        """Return whether the frame needs no other attempt."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", passed))] if passed else []
        try:
            self._socket.sendmsg([frame], ancillary)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ETOOMANYREFS):  # no room, or too many descriptors are under way
                return False
            self._receive_all()  # it ended; what it said before, GOING above all, is still there
            self._end()
        return True

    def _loss(self) -> Exception:
        return GuestRestarting() if self._restarting else gone()

    def _receive_all(self) -> None:
        while not self._closed:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(HEAD.size + FRAME_MAX, ANCILLARY_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # the agent ended with requests unread; what it said before is still there
            except OSError:
                data, ancillary, flags = b"", [], 0
            descriptors = [
                number
                for level, kind, raw in ancillary
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
                for (number,) in struct.iter_unpack("i", raw[: len(raw) // 4 * 4])
            ]
            try:
                if not data or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                    self._end()
                else:
                    self._dispatch(Frame.decode(data), descriptors)
            except (GuestProtocolError, struct.error) as error:
                _log.warning("cut off a guest agent that broke the protocol: %s", error)
                self._end()
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _dispatch(self, frame: Frame, descriptors: list[int]) -> None:
        if frame.type == Type.EXIT:
            if (execution := self._commands.get(frame.id)) is not None:
                execution.ended(frame.payload)
                del self._commands[frame.id]
        elif frame.type == Type.GOING:
            (reason,) = struct.unpack_from("<I", frame.payload)
            self._restarting = reason == GoingReason.RESTART
        elif frame.id == 0 and not self._welcome.done():
            self._welcome.set_result((frame, None))
        else:
            if frame.type == Type.ERROR and (execution := self._commands.pop(frame.id, None)) is not None:
                execution.lost()  # it never started
            if (answer := self._pending.pop(frame.id, None)) is not None and not answer.done():
                answer.set_result((frame, descriptors.pop() if descriptors else None))

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for _, passed in self._row:
            for descriptor in passed:
                os.close(descriptor)
        self._row.clear()
        for answer in (*self._pending.values(), self._welcome):
            if not answer.done():
                answer.set_exception(self._loss())
        self._pending.clear()
        for execution in list(self._commands.values()):
            execution.lost()
        self._commands.clear()
        for stream in self._sockets:
            stream.lost()
        if self._welcome.done() and not self._welcome.cancelled():
            self._welcome.exception()


def _retrieve(answer: "asyncio.Future[tuple[Frame, int | None]]") -> None:
    """Mark an error as seen: its caller may have been cancelled."""
    if not answer.cancelled():
        answer.exception()


def _reply(frame: Frame, descriptor: int | None) -> Reply:
    if frame.type == Type.ERROR:
        raise os_error(error_fields(frame.payload)[0])
    return Reply(frame.payload, descriptor)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


class _WorkerSource(PipeSource):
    """The output of a worker; its verdict comes as the answer to the request."""

    _answer: "asyncio.Future[tuple[Frame, int | None]]"

    def attach(self, answer: "asyncio.Future[tuple[Frame, int | None]]") -> None:
        self._answer = answer

    async def refused(self) -> None:
        """Wait until the first byte is there or the request failed; raises its `OSError` then."""
        readable = asyncio.ensure_future(_readable(self._use()))
        try:
            await asyncio.wait((readable, self._answer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            readable.cancel()
            await asyncio.wait((readable,))
        if self._answer.done():
            _reply(*self._answer.result())

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return what is there; the end comes only after a good verdict."""
        try:
            return await super().receive(max_bytes)
        except anyio.EndOfStream:
            _reply(*await asyncio.shield(self._answer))
            raise


async def _readable(descriptor: int) -> None:
    await anyio.wait_readable(descriptor)
