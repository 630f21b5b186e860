"""A peer that says whatever it likes to an agent, byte by byte."""

import array
import os
import random
import socket
import struct
from collections.abc import Sequence
from typing import Final, Self

from mcp_sandbox.guest.pack import SEGMENT, Record
from mcp_sandbox.guest.wire import FRAME_MAX, HEAD, Frame, OpenFlag, Type, exec_payload, fields, open_payload, strings

__all__ = ["MESSAGES", "RawPeer", "frame", "message", "mutated", "records"]

_ENDINGS: Final = (Type.QUIESCE, Type.SHUTDOWN)
"""They end the agent, as they should."""

MESSAGES: Final[Sequence[tuple[Type, bytes]]] = (
    (Type.EXEC, exec_payload(0, "/", ["true", "a", "b"], ["PATH=/usr/bin", "A=b"])),
    (Type.EXEC, exec_payload(2, "/area", ["cat"], ["PATH=/usr/bin"])),
    (Type.EXEC, exec_payload(1, "/", ["echo", "terminal"], ["PATH=/usr/bin"], 24 << 16 | 80)),
    (Type.SIGNAL, fields(1, 9, 1)),
    (Type.RESIZE, fields(1, 24 << 16 | 80)),
    (Type.OPEN, open_payload(0, 0, "/area/file")),
    (Type.OPEN, open_payload(OpenFlag.WRITE | OpenFlag.APPEND | OpenFlag.PARENTS, 0o644, "/area/a/log")),
    (Type.CREATE, fields(OpenFlag.PARENTS, "/area/b/file")),
    (Type.COMMIT, fields(0, 0o644, "/area/b/file", ".write-0000000000000000")),
    (Type.STAT, fields(1, "/area")),
    (Type.STAT, fields(0, "/area/" + "x/" * 2000)),
    (Type.PACK, fields(1, 3, 1000, "/area") + strings(["a", "b"])),
    (Type.PACK, fields(0, 9, 9, "/area") + strings(())),
    (Type.UNPACK, fields("/area")),
    (Type.REMOVE, fields(1, "/area/a")),
    (Type.RENAME, fields(0, "/area/b/file", "/area/c")),
    (Type.MKDIR, fields(3, 0o755, "/area/d/e/f")),
    (Type.LISTEN, fields(0, 0)),
    (Type.LISTEN, fields(0, 1)),
    (Type.CONNECT, fields(1)),
    (Type.LIVE, b""),
    (Type.FREEZE, b""),
    (Type.THAW, b""),
    (Type.PING, b""),
    (Type.DATA, b"some bytes"),
    (Type.CREDIT, fields(1000)),
    (Type.CLOSE, fields(0)),
)


def frame(kind: int, number: int, payload: bytes, flags: int = 0, channel: int = 0) -> bytes:
    """Return one frame, whatever it holds."""
    return HEAD.pack(len(payload), number, kind, flags, channel) + payload


def mutated(random_: random.Random, data: bytes) -> bytes:
    """Return bytes like `data`, but not the same."""
    changed = bytearray(data)
    for _ in range(random_.choice((0, 1, 1, 2, 5, 40))):
        at = random_.randrange(len(changed) + 1)
        match random_.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([random_.randrange(256)])
            case 1:
                changed[at : at + 4] = struct.pack("<I", random_.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 65536, 4096)))
            case 2:
                del changed[at : at + random_.randrange(1, 20)]
            case 3:
                changed[at:at] = random_.randbytes(random_.randrange(1, 20))
            case _:
                changed[at:at] = changed[: random_.randrange(len(changed) + 1)]
    return bytes(changed[:FRAME_MAX])


def message(random_: random.Random) -> bytes:
    """Return a frame that is nearly right."""
    kind, payload = random_.choice(MESSAGES)
    number = random_.choice((0, 1, 2, 3, random_.randrange(1 << 32)))
    flags, channel = random_.choice((0, 0, 0, 0, 1, 255)), random_.choice((0, 0, 1, 2, 65535))
    one = frame(kind, number, mutated(random_, payload), flags, channel)
    if random_.randrange(20) == 0:
        one = mutated(random_, one)
    if len(one) >= HEAD.size and one[8] in _ENDINGS:
        return frame(Type.PING, number, b"")
    return one


def records(random_: random.Random) -> bytes:
    """Return a tree as records that are nearly right."""
    content = SEGMENT.pack(1, 4) + b"data" + SEGMENT.pack(6, 0)
    tree = b"".join(
        (
            Record(kind="d", path="u").encode(),
            Record(kind="f", path="u/f", size=6, mode=0o644).encode() + content,
            Record(kind="l", path="u/l", link="f").encode(),
            Record(kind="h", path="u/h", link="u/f").encode(),
            Record(kind="p", path="u/p").encode(),
            Record(kind="D", path="u", mode=0o755).encode(),
            Record(kind="z").encode(),
        )
    )
    return mutated(random_, tree)


class RawPeer:
    """Owns a connected socket, and the other ends of what it passes."""

    def __init__(self, peer: socket.socket) -> None:
        peer.settimeout(5)
        self.socket = peer
        self._kept: list[int] = []

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self.socket.close()
        for descriptor in self._kept:
            os.close(descriptor)

    def send(self, data: bytes, pipes: int = 0, content: bytes = b"") -> bool:
        """Send a datagram with ends of new pipes, `content` in the first; return whether it was taken."""
        passed: list[int] = []
        for number in range(pipes):
            readable, writable = os.pipe()
            if content and number == 0:
                os.write(writable, content[:60_000])
                passed.append(readable)
                os.close(writable)
            else:
                passed.append(writable)
                self._kept.append(readable)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", passed))] if passed else []
        try:
            self.socket.sendmsg([data], ancillary)
        except (BrokenPipeError, ConnectionResetError):
            return False
        finally:
            for descriptor in passed:
                os.close(descriptor)
            while len(self._kept) > 50:
                os.close(self._kept.pop(0))
        return True

    def drain(self) -> None:
        """Take what is there."""
        self.socket.setblocking(False)
        try:
            while self._receive()[0]:
                pass
        except (BlockingIOError, ConnectionResetError):
            pass
        finally:
            self.socket.settimeout(5)

    def _receive(self) -> tuple[bytes, list[int]]:
        data, ancillary, _, _ = self.socket.recvmsg(HEAD.size + FRAME_MAX, socket.CMSG_SPACE(16))
        descriptors = [number for _, _, raw in ancillary for (number,) in struct.iter_unpack("i", raw)]
        for descriptor in descriptors:
            os.close(descriptor)
        return data, descriptors

    def receive(self) -> Frame | None:
        """Return the next frame, or nothing where the agent hung up."""
        try:
            data, _ = self._receive()
        except ConnectionResetError:
            return None
        return Frame.decode(data) if data else None
