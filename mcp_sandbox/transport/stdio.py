"""Serves one client over the standard streams, without a thread, and ends when it should.

The SDK's own stdio transport needs three thread hops a message, dies of SIGTERM and SIGHUP without clean-up and hangs
after SIGINT. Clients stop a server with any of these, or by closing its input, and kill it 0.4 s later.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, cast

import anyio
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from mcp_sandbox.transport.claim import Wire, claim_wire
from mcp_sandbox.transport.preamble import Handover
from mcp_sandbox.transport.wire import TOO_LONG, LineReader, LineWriter, reader_gone

__all__ = ["serve_stdio"]

_LOG = logging.getLogger(__name__)
_ANSWER_AT_END_S = 0.03
"""How long requests that were sent just before the end of input may take to be answered."""
_FLUSH_AT_END_S = 0.2
_PARENT_CHECK_S = 2.0


async def serve_stdio(
    server: Server[Any],
    *,
    wire: Wire | None = None,
    handover: Handover | None = None,
    on_ready: Callable[[], None] | None = None,
) -> None:
    """Serve until the client closes either stream, its process ends, or SIGTERM, SIGINT or SIGHUP arrives.

    Calls that are in flight then are cancelled. The signals stay harmless until the event loop closes, so that an
    impatient client's second one does not cut the clean-up of whoever called this.

    Args:
        server: The server.
        wire: What `claim_wire` returned, if it was called before.
        handover: What the preamble left, if there was one.
        on_ready: Called once, right before the first message is read.
    """
    if sys.platform == "win32":
        await _serve_with_sdk(server, on_ready)
        return
    wire = wire or claim_wire()
    writer = LineWriter(wire.output)
    async with anyio.create_task_group() as tasks:
        stop = tasks.cancel_scope.cancel
        _stop_on_signals(stop)
        outbound = _Outbound(writer, stop, answered=handover.answered if handover else ())
        inbound = _Inbound(LineReader(wire.input, begun=handover.begun if handover else b""), outbound)
        tasks.start_soon(_stop_without_reader, wire.output, stop)
        tasks.start_soon(_stop_without_parent, wire.parent, stop)
        if on_ready is not None:
            on_ready()
        await server.run(inbound, outbound, server.create_initialization_options())
        stop()
    with anyio.move_on_after(_FLUSH_AT_END_S, shield=True), suppress(OSError):
        await writer.flush()
    os.close(wire.input)
    os.close(wire.output)


def _stop_on_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with suppress(ValueError, RuntimeError):  # not in the main thread: somebody else minds the signals
            loop.add_signal_handler(number, stop)


async def _stop_without_reader(descriptor: int, stop: Callable[[], None]) -> None:
    if await reader_gone(descriptor):
        stop()


async def _stop_without_parent(parent: int, stop: Callable[[], None]) -> None:
    """End with a client that was killed while a relative of it still holds the other end of our input."""
    while os.getppid() == parent:  # noqa: ASYNC110 (nothing announces the end of a parent)
        await anyio.sleep(_PARENT_CHECK_S)
    stop()


class _Stream:
    """The closing half of the SDK's stream protocols. Closing does nothing: the wire belongs to `serve_stdio`."""

    async def aclose(self) -> None:
        """Do nothing."""

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        """Do nothing."""


class _Outbound(_Stream):
    """Messages to the client: what the SDK writes to. The first answer to each request in `answered` is dropped."""

    def __init__(self, writer: LineWriter, stop: Callable[[], None], *, answered: Iterable[int | str]) -> None:
        self._writer = writer
        self._stop = stop
        self._answered = list(answered)
        self._unanswered: list[str | int] = []
        self._all_answered = anyio.Event()
        self._all_answered.set()

    async def send(self, item: SessionMessage, /) -> None:
        """Write one message.

        Raises:
            anyio.BrokenResourceError: The client does not listen any more.
        """
        message = item.message
        is_answer = isinstance(message, JSONRPCResponse | JSONRPCError)
        if is_answer and message.id in self._answered:
            self._drop(message)
            return
        try:
            line = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        except (PydanticSerializationError, UnicodeEncodeError):
            _LOG.exception("a message could not be written as JSON")
            line = _error(getattr(message, "id", None), INTERNAL_ERROR, "the answer cannot be written as JSON")
        await self.write(line)
        if is_answer:
            self.forget(message.id)

    def _drop(self, message: JSONRPCResponse | JSONRPCError) -> None:
        self._answered.remove(cast("int | str", message.id))
        self.forget(message.id)
        if isinstance(message, JSONRPCError):
            _LOG.error("a request that was answered at once is an error for the SDK: %s", message.error.message)

    async def write(self, line: bytes) -> None:
        """Write one line, given without its end."""
        try:
            await self._writer.write(line + b"\n")
        except OSError:
            self._stop()
            raise anyio.BrokenResourceError from None

    def expect(self, request_id: str | int) -> None:
        """Note that a request waits for its answer."""
        if not self._unanswered:
            self._all_answered = anyio.Event()
        self._unanswered.append(request_id)

    def forget(self, request_id: str | int | None) -> None:
        """Note that a request was answered, or never will be."""
        with suppress(ValueError):
            self._unanswered.remove(cast("str | int", request_id))
        if not self._unanswered:
            self._all_answered.set()

    async def all_answered(self) -> None:
        """Return when no request waits for an answer."""
        await self._all_answered.wait()


class _Inbound(_Stream):
    """Messages from the client: what the SDK reads from."""

    def __init__(self, lines: LineReader, outbound: _Outbound) -> None:
        self._lines = lines
        self._outbound = outbound

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        """Return the next message; what is none is answered here."""
        while (line := await self._lines.next()) is not None:
            if line is TOO_LONG:
                await self._outbound.write(_error(None, INVALID_REQUEST, "the message is longer than 16 MiB"))
                continue
            if not line or line.isspace():
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValidationError:
                await self._outbound.write(_refusal(line))
                continue
            if isinstance(message, JSONRPCRequest):
                self._outbound.expect(message.id)
            elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
                self._outbound.forget((message.params or {}).get("requestId"))
            return SessionMessage(message)
        with anyio.move_on_after(_ANSWER_AT_END_S):
            await self._outbound.all_answered()
        raise StopAsyncIteration

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message.

        Raises:
            anyio.EndOfStream: The client closed its end.
        """
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None


def _error(request_id: str | int | None, code: int, message: str) -> bytes:
    error = {"code": code, "message": message}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}, separators=(",", ":")).encode()


def _refusal(line: bytes) -> bytes:
    """Return the answer to a line that is not a message, with its id where one can be made out."""
    code, message = INVALID_REQUEST, "not a JSON-RPC 2.0 message"
    try:
        text = line.decode()
    except UnicodeDecodeError:
        text, code, message = line.decode(errors="replace"), PARSE_ERROR, "the line is not UTF-8"
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError):
        return _error(None, PARSE_ERROR, "the line is not JSON")
    request_id = cast("dict[str, Any]", parsed).get("id") if isinstance(parsed, dict) else None
    if isinstance(request_id, bool) or not isinstance(request_id, str | int):
        request_id = None
    return _error(request_id, code, message)


async def _serve_with_sdk(server: Server[Any], on_ready: Callable[[], None] | None) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (read_stream, write_stream):
        if on_ready is not None:
            on_ready()
        await server.run(read_stream, write_stream, server.create_initialization_options())
