"""The programs of an in-memory sandbox: a few of coreutils, written against `Process`."""

import errno
import os
import time
from collections.abc import Mapping
from types import MappingProxyType

import anyio

from mcp_sandbox.core.exec import StreamName
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.providers.memory.execution import Process, Program
from mcp_sandbox.providers.memory.tree import Node, fail

__all__ = ["PROGRAMS", "marker", "program_of"]

_MARKER = b"\x7fMEMORY "
_ESCAPES = {b"\\n": b"\n", b"\\t": b"\t", b"\\r": b"\r", b"\\0": b"\0", b"\\\\": b"\\"}


async def _true(_: Process) -> int:
    return 0


async def _false(_: Process) -> int:
    return 1


async def _echo(process: Process) -> int:
    words = process.argv[1:]
    newline = words[:1] != ("-n",)
    await process.write(os.fsencode(" ".join(words if newline else words[1:])) + b"\n" * newline)
    return 0


async def _printf(process: Process) -> int:
    text = os.fsencode(process.argv[1]) if len(process.argv) > 1 else b""
    for escape, byte in _ESCAPES.items():
        text = text.replace(escape, byte)
    for word in process.argv[2:]:
        text = text.replace(b"%s", os.fsencode(word), 1)
    await process.write(text)
    return 0


async def _cat(process: Process) -> int:
    if len(process.argv) > 1:
        for name in process.argv[1:]:
            node = process.tree.node(process.path(name))
            if node.kind is not FileKind.FILE:
                fail(errno.EISDIR if node.kind is FileKind.DIRECTORY else errno.EINVAL, name)
            await process.write(node.data)
        return 0
    while data := await process.read():
        await process.write(data)
    return 0


async def _tee(process: Process) -> int:
    append = process.argv[1:2] == ("-a",)
    names = process.argv[1 + append :]
    spots = [process.tree.writable(process.path(name), make_parents=False, create_only=False) for name in names]
    kept = bytearray()
    while data := await process.read():
        kept += data
        await process.write(data)
    for spot in spots:
        node = spot.node or Node(FileKind.FILE, 0o644)
        node.data = node.data + kept if append else bytes(kept)
        node.modified_ns = time.time_ns()
        if spot.node is None:
            spot.parent.put(spot.name, node)
    return 0


async def _sleep(process: Process) -> int:
    await anyio.sleep(sum(float(word) for word in process.argv[1:]))
    return 0


async def _yes(process: Process) -> int:
    line = os.fsencode(" ".join(process.argv[1:]) or "y") + b"\n"
    while True:
        await process.write(line * (8192 // len(line) + 1))


async def _env(process: Process) -> int:
    end = "\0" if process.argv[1:] == ("-0",) else "\n"
    await process.write(b"".join(os.fsencode(f"{name}={value}{end}") for name, value in process.env.items()))
    return 0


async def _pwd(process: Process) -> int:
    await process.write(os.fsencode(process.cwd) + b"\n")
    return 0


async def _ln(process: Process) -> int:
    symbolic = process.argv[1:2] == ("-s",)
    target, name = process.argv[-2:]
    spot = process.tree.locate(process.path(name), follow=False)
    if spot.node is not None:
        fail(errno.EEXIST, name)
    node = (
        Node(FileKind.SYMLINK, 0o777, target=target)
        if symbolic
        else process.tree.node(process.path(target), follow=False)
    )
    spot.parent.put(spot.name, node)
    return 0


async def _chmod(process: Process) -> int:
    for name in process.argv[2:]:
        process.tree.node(process.path(name)).mode = int(process.argv[1], 8)
    return 0


async def _touch(process: Process) -> int:
    for name in process.argv[1:]:
        spot = process.tree.locate(process.path(name))
        if spot.node is None:
            spot.parent.put(spot.name, Node(FileKind.FILE, 0o644))
    return 0


async def _mkfifo(process: Process) -> int:
    for name in process.argv[1:]:
        spot = process.tree.locate(process.path(name), follow=False)
        if spot.node is not None:
            fail(errno.EEXIST, name)
        spot.parent.put(spot.name, Node(FileKind.FIFO, 0o644))
    return 0


def _reporting(program: Program) -> Program:
    async def run(process: Process) -> int:
        try:
            return await program(process)
        except (OSError, ValueError) as error:
            await process.write(os.fsencode(f"{process.argv[0]}: {error}\n"), StreamName.STDERR)
            return 1

    return run


PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        name: _reporting(program)
        for name, program in {
            "cat": _cat,
            "chmod": _chmod,
            "echo": _echo,
            "env": _env,
            "false": _false,
            "ln": _ln,
            "mkfifo": _mkfifo,
            "printf": _printf,
            "pwd": _pwd,
            "sleep": _sleep,
            "tee": _tee,
            "touch": _touch,
            "true": _true,
            "yes": _yes,
        }.items()
    }
)
"""By name, as found in `/bin` of a new sandbox."""


def marker(name: str) -> bytes:
    """Return the content of the executable file that stands for a program."""
    return _MARKER + name.encode()


def program_of(content: bytes) -> Program | None:
    """Return the program that an executable file stands for, if it is one of ours."""
    return (
        PROGRAMS.get(content.removeprefix(_MARKER).decode("ascii", "replace")) if content.startswith(_MARKER) else None
    )
