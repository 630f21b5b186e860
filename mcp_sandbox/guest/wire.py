"""The frames between host and guest agent. `PROTOCOL.md` describes them; `src/guest.h` holds the same numbers."""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

__all__ = [
    "FRAME_MAX",
    "HEAD",
    "MESSAGE_MAX",
    "MORE",
    "PROTOCOL_VERSION",
    "ExecFlag",
    "Frame",
    "GoingReason",
    "GuestProtocolError",
    "MkdirFlag",
    "OpenFlag",
    "Type",
    "encode",
    "exec_payload",
    "fields",
    "open_payload",
    "strings",
    "whole_frames",
]

PROTOCOL_VERSION: Final = 1
FRAME_MAX: Final = 65536
MESSAGE_MAX: Final = 4 << 20
MORE: Final = 1
HEAD: Final = struct.Struct("<IIBBH")
"""Payload length, id, type, flags, channel."""


class Type(IntEnum):
    """What a frame says."""

    HELLO = 1
    EXEC = 2
    SIGNAL = 3
    RESIZE = 4
    OPEN = 5
    CREATE = 6
    COMMIT = 7
    STAT = 8
    PACK = 9
    UNPACK = 10
    REMOVE = 11
    RENAME = 12
    MKDIR = 13
    LISTEN = 14
    CONNECT = 15
    LIVE = 16
    FREEZE = 17
    THAW = 18
    QUIESCE = 19
    SHUTDOWN = 20
    PING = 21
    GATHER = 22
    PARK = 23
    PLUG = 24
    DETACH = 25
    DATA = 32
    CREDIT = 33
    CLOSE = 34
    WELCOME = 64
    OK = 65
    ERROR = 66
    STARTED = 67
    EXIT = 68
    GOING = 69
    ACCEPTED = 70


class ExecFlag(IntFlag):
    """How a command is wired."""

    PTY = 1
    STDIN = 2


class OpenFlag(IntFlag):
    """How a file is opened or created."""

    WRITE = 1
    APPEND = 2
    PARENTS = 4
    CREATE_ONLY = 8


class MkdirFlag(IntFlag):
    """How a directory is made."""

    PARENTS = 1
    EXIST_OK = 2


class GoingReason(IntEnum):
    """Why the agent ends, or lets go of a bridge."""

    RESTART = 1
    SHUTDOWN = 2
    DETACHED = 3
    PARK = 4


class GuestProtocolError(Exception):
    """The other side sent what the protocol does not know."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as received."""

    type: int
    id: int
    payload: bytes
    flags: int = 0
    channel: int = 0

    @classmethod
    def decode(cls, datagram: bytes) -> "Frame":
        """Read one whole frame.

        Raises:
            GuestProtocolError: The length it states is not the length it has.
        """
        if len(datagram) < HEAD.size:
            raise GuestProtocolError(f"a frame of {len(datagram)} bytes has no head")
        length, number, kind, flags, channel = HEAD.unpack_from(datagram)
        if length != len(datagram) - HEAD.size or length > FRAME_MAX:
            raise GuestProtocolError(f"a frame states {length} bytes and has {len(datagram) - HEAD.size}")
        return cls(kind, number, datagram[HEAD.size :], flags, channel)

    @property
    def number(self) -> int:
        """The number that the payload begins with.

        Raises:
            GuestProtocolError: It is too short for one.
        """
        if len(self.payload) < 4:
            raise GuestProtocolError(f"a number of {len(self.payload)} bytes")
        return int.from_bytes(self.payload[:4], "little")


def whole_frames(buffer: bytearray) -> Iterator[Frame]:
    """Take the frames that are whole off the beginning of a stream's bytes.

    Raises:
        GuestProtocolError: One is longer than a frame may be.
    """
    at = 0
    try:
        while len(buffer) - at >= HEAD.size:
            (length,) = struct.unpack_from("<I", buffer, at)
            if length > FRAME_MAX:
                raise GuestProtocolError(f"a frame of {length} bytes")
            if len(buffer) - at < HEAD.size + length:
                return
            at += HEAD.size + length
            yield Frame.decode(bytes(buffer[at - HEAD.size - length : at]))
    finally:
        del buffer[:at]


def encode(kind: Type, number: int, payload: bytes, channel: int = 0) -> Iterator[bytes]:
    """Yield the frames of one message; all but the last carry `MORE`.

    Raises:
        GuestProtocolError: The payload is larger than a message may be.
    """
    if len(payload) > MESSAGE_MAX:
        raise GuestProtocolError(f"a message of {len(payload)} bytes is larger than {MESSAGE_MAX}")
    while len(payload) > FRAME_MAX:
        yield HEAD.pack(FRAME_MAX, number, kind, MORE, channel) + payload[:FRAME_MAX]
        payload = payload[FRAME_MAX:]
    yield HEAD.pack(len(payload), number, kind, 0, channel) + payload


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogateescape")
    if b"\0" in raw:
        raise ValueError("embedded null byte")
    return raw + b"\0"


def fields(*values: int | str) -> bytes:
    """Pack 32-bit numbers and NUL-terminated strings in order.

    Raises:
        ValueError: A string holds a NUL.
    """
    return b"".join(struct.pack("<I", v) if isinstance(v, int) else _text(v) for v in values)


def strings(values: Iterable[str]) -> bytes:
    """Pack a count and as many strings; raises as `fields`."""
    listed = list(values)
    raw = "\0".join([*listed, ""]).encode("utf-8", "surrogateescape")
    if raw.count(0) != len(listed):
        raise ValueError("embedded null byte")
    return struct.pack("<I", len(listed)) + raw


def exec_payload(flags: int, cwd: str, argv: Iterable[str], environment: Iterable[str], size: int = 0) -> bytes:
    """Pack a command; `size` is rows << 16 | columns of a terminal."""
    return fields(flags, size, cwd) + strings(argv) + strings(environment)


def open_payload(flags: int, mode: int, path: str, offset: int = 0) -> bytes:
    """Pack a request to open a file; `mode` is for one that has to be made."""
    return fields(flags, mode, offset & 0xFFFFFFFF, offset >> 32, path)
