"""Connections from outside to servers inside a sandbox."""

from dataclasses import dataclass

from anyio.abc import ByteStream

__all__ = ["Connection", "DialRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DialRequest:
    """A TCP server inside, on the sandbox's own loopback: IPv4 is tried first, then IPv6."""

    port: int
    within_s: float = 10.0
    """How long a server may take to accept where the engine can tell; one that is not there is told at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A connection to a server inside. Whoever dialled closes the stream.

    `send_eof` ends only what goes in. Closing it before both directions are through is a reset for the server. Where
    the connection or the sandbox broke, the stream raises `anyio.BrokenResourceError`.
    """

    address: str
    """Where the server was met inside, such as `127.0.0.1:8000` or `[::1]:8000`."""
    stream: ByteStream
