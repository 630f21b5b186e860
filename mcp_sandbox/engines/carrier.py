"""What a connection to a guest agent offers, whichever way the bytes travel."""

import abc
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream

from mcp_sandbox.core.errors import ProviderError, ProviderUnavailableError, SandboxGoneError
from mcp_sandbox.core.exec import ExecRequest, Execution
from mcp_sandbox.guest.errnos import host_errno
from mcp_sandbox.guest.wire import GuestProtocolError, Type

__all__ = [
    "Duplex",
    "GuestCarrier",
    "GuestRestarting",
    "Reply",
    "Sink",
    "Source",
    "error_fields",
    "gone",
    "no_answer",
    "os_error",
    "protocol_failure",
]


class GuestRestarting(Exception):  # noqa: N818
    """The agent ended on purpose before it looked at a request: connect again and repeat it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request."""

    payload: bytes
    descriptor: int | None = None
    """Owned by the receiver; only the local carrier passes any."""


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes that the agent hands out, with the reply that came first."""

    reply: Reply
    stream: ByteReceiveStream


@dataclass(frozen=True, slots=True)
class Sink:
    """A place for bytes inside the sandbox, with the reply that came first."""

    reply: Reply
    stream: ByteSendStream


@dataclass(frozen=True, slots=True)
class Duplex:
    """A connection inside the sandbox, with the reply that came first."""

    reply: Reply
    stream: ByteStream


class GuestCarrier(abc.ABC):
    """One connection. Requests may overlap; a lost connection fails them all."""

    @property
    @abc.abstractmethod
    def closed(self) -> bool:
        """Whether the connection is over."""

    @abc.abstractmethod
    async def request(self, kind: Type, payload: bytes) -> Reply:
        """Send a request and wait for its answer.

        Raises:
            OSError: The agent refused; the errno is the kernel's.
            GuestRestarting: The request was not looked at.
            SandboxGoneError: The connection ended first.
        """

    @abc.abstractmethod
    async def open_file(self, path: str, offset: int, length: int | None) -> Source:
        """Open a regular file from `offset`, for `length` bytes or to its end; raises like `request`."""

    @abc.abstractmethod
    async def source(self, kind: Type, payload: bytes) -> Source:
        """Send a request (`PACK`) whose worker writes a stream of bytes; raises like `request`."""

    @abc.abstractmethod
    async def sink(self, kind: Type, payload: bytes) -> Sink:
        """Send a request (`OPEN`, `CREATE`) that opens a stream of bytes into the sandbox; raises like `request`."""

    @abc.abstractmethod
    async def feed(self, kind: Type, payload: bytes, data: ByteReceiveStream) -> Reply:
        """Send a request (`UNPACK`) that consumes a stream, and wait until it is carried out; raises like `request`."""

    @abc.abstractmethod
    async def duplex(self, kind: Type, payload: bytes) -> Duplex:
        """Send a request (`CONNECT`) that opens both directions; raises like `request`."""

    @abc.abstractmethod
    async def exec(self, request: ExecRequest, environment: Sequence[str]) -> Execution:
        """Start a command; what keeps a program from starting is a result, not an error."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """End the connection; the agent ends the commands started through it. Idempotent."""


def gone() -> SandboxGoneError:
    """Return the error for a connection that ended while it was needed."""
    return SandboxGoneError(
        "The sandbox ended",
        why="its init process is gone: it was destroyed, restored or killed by somebody else",
        fix="Call again; if the sandbox still exists its files are kept and it starts anew",
    )


def no_answer(who: str, seconds: float) -> ProviderUnavailableError:
    """Return the error for one of our own programs that does not say a word."""
    return ProviderUnavailableError(
        "No sandbox", why=f"{who} did not answer within {seconds:g} s",
        fix="Try again when this machine is less busy; destroy the sandbox, or restart the server, if it repeats",
    )  # fmt: skip


def protocol_failure(error: GuestProtocolError) -> ProviderError:
    """Return the error for a guest agent that does not keep to the protocol."""
    why = f"it broke the protocol: {error}"
    return ProviderError("The guest agent was cut off", why=why, fix="Report this as a bug")


def os_error(number: int, path: str | None = None) -> OSError:
    """Return the builtin error class that an errno deserves."""
    return OSError(number, os.strerror(number), path) if path is not None else OSError(number, os.strerror(number))


def error_fields(payload: bytes) -> tuple[int, str]:
    """Return the errno of an ERROR frame, as this system counts, and the step that failed.

    Raises:
        GuestProtocolError: It is too short.
    """
    if len(payload) < 5:
        raise GuestProtocolError(f"an error of {len(payload)} bytes")
    (number,) = struct.unpack_from("<I", payload)
    return host_errno(number), payload[4:].split(b"\0", 1)[0].decode("utf-8", "replace")
