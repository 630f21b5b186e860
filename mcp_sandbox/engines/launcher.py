"""The zygote: one small process that starts every sandbox of this server, from a sealed copy of the guest agent."""

import array
import asyncio
import fcntl
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio

from mcp_sandbox.core.errors import ProviderError
from mcp_sandbox.engines.carrier import no_answer, os_error
from mcp_sandbox.engines.descriptors import seqpacket_pair
from mcp_sandbox.engines.identity import Identity
from mcp_sandbox.guest.binary import guest_binary
from mcp_sandbox.guest.wire import Frame, Type

__all__ = ["Launcher", "sealed_program", "tokens"]

ANSWER_S: Final = 10.0
SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def tokens(*values: str | int | Path) -> bytes:
    """Return values as the NUL-terminated tokens that the zygote reads."""
    return b"".join(os.fsencode(str(value)) + b"\0" for value in values)


def sealed_program() -> int:
    """Return a descriptor of the guest agent that nobody can change, not even its own user."""
    descriptor = os.memfd_create("guest", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(descriptor, guest_binary())
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


class Launcher:
    """Use as a context manager. Paths in requests are relative to `store`, which is the zygote's directory."""

    def __init__(self, store: Path, identity: Identity) -> None:
        self._store = store
        self._identity = identity
        self._lock = anyio.Lock()
        """One request at a time: answers carry no number."""
        self._owed = 0
        """Answers that are still to come; more than one where nobody waits for the first any more."""

    @property
    def pid(self) -> int:
        """The number of the zygote."""
        return self._pid

    async def __aenter__(self) -> Self:
        """Start the zygote with an empty environment, in a session of its own."""
        ours, theirs = seqpacket_pair()
        self._program = sealed_program()
        self._pid = os.posix_spawn(  # noqa: ASYNC221  half a millisecond, once
            f"/proc/self/fd/{self._program}",
            ["guest", "zygote"],
            {},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 3),
                *((os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)),  # ours stay ours
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        )
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        try:
            await self._ask(b"D" + tokens(self._store))
            if self._identity.is_range:
                await self._ask(b"N" + tokens(f"0 {self._identity.start} {self._identity.count}"))
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the zygote; sandboxes that somebody else is connected to live on."""
        self._socket.close()
        os.close(self._program)
        with anyio.CancelScope(shield=True):
            await asyncio.to_thread(os.waitpid, self._pid, 0)

    async def run(self, *arguments: str, data: bytes = b"") -> bytes:
        """Run one of the guest agent's host-side roles (`copy`, `compare`, ...) to its end; return what it said.

        Cancelling kills it: what it was making has no name yet, and what it was removing is in the trash.

        Raises:
            ProviderError: It failed; says with which words.
        """
        role = _Role([f"/proc/self/fd/{self._program}", *arguments], self._store, self._program, data)
        try:
            done = await asyncio.to_thread(role.run)
        except asyncio.CancelledError:
            role.kill()
            raise
        if done.returncode:
            why = done.stderr.decode("utf-8", "replace").strip()
            raise ProviderError(f"Cannot {arguments[0]} a tree", why=why, fix="Check the disk, then try again")
        return done.stdout

    async def start(self, plan: bytes, descriptors: Sequence[int]) -> tuple[int, int]:
        """Carry out a plan; return the new init's pid and a pidfd. How it fares is told on the first descriptor.

        Raises:
            OSError: The namespaces could not be made.
        """
        frame, pidfd = await self._ask(b"S" + plan, descriptors)
        if pidfd is None:
            raise ProviderError("No sandbox", why="the launcher answered without a process", fix="Report this as a bug")
        return int.from_bytes(frame.payload[:4], "little"), pidfd

    async def mount_idmapped(self, source: str, target: str) -> None:
        """Show `source` at `target`, with the ids of the sandbox, in the zygote's own mount namespace.

        Raises:
            OSError: The file system cannot do it.
        """
        await self._ask(b"M" + tokens(source, target))

    async def unmount(self, target: str) -> None:
        """Take such a mount away; overlays that use it keep their own reference."""
        async with self._lock:
            self._socket.send(b"U" + tokens(target))

    async def _ask(self, request: bytes, descriptors: Sequence[int] = ()) -> tuple[Frame, int | None]:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        data: bytes = b""
        received: list[int] = []
        async with self._lock:
            with anyio.CancelScope(shield=True), anyio.move_on_after(ANSWER_S) as waiting:
                self._socket.sendmsg([request], ancillary)
                self._owed += 1
                data, received = await self._answer()
                while data and self._owed:
                    for number in received:  # of a sandbox whose caller has gone, which ends it
                        os.close(number)
                    data, received = await self._answer()
        if waiting.cancelled_caught:
            raise no_answer("the launcher", ANSWER_S)
        if not data:
            raise ProviderError(
                "No sandbox", why="the launcher ended", fix="Restart the server; report it if it repeats"
            )
        frame = Frame.decode(data)
        if frame.type == Type.ERROR:
            (number,) = struct.unpack_from("<I", frame.payload)
            step = frame.payload[4:].split(b"\0")[0].decode("utf-8", "replace")
            error = os_error(number)
            error.strerror = f"{step}: {os.strerror(number)}"
            raise error
        return frame, received[0] if received else None

    async def _answer(self) -> tuple[bytes, list[int]]:
        await anyio.wait_readable(self._socket)
        data, passed, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(4))
        self._owed -= 1
        return data, [number for _, _, raw in passed for (number,) in struct.iter_unpack("i", raw)]


class _Role:
    """One run of the guest agent on the host, by a thread; another one may end it."""

    def __init__(self, command: Sequence[str], directory: Path, program: int, data: bytes) -> None:
        self._command, self._directory, self._program, self._data = command, directory, program, data
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def run(self) -> subprocess.CompletedProcess[bytes]:
        """Run it to its end. Blocks."""
        with subprocess.Popen(
            self._command,
            cwd=self._directory,
            env={},
            pass_fds=(self._program,),
            stdin=subprocess.PIPE if self._data else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            self._process = process
            if self._killed:
                process.kill()
            output, errors = process.communicate(self._data or None)
        return subprocess.CompletedProcess(self._command, process.returncode, output, errors)

    def kill(self) -> None:
        """End it, now or as soon as it has begun."""
        self._killed = True
        if self._process is not None:
            self._process.kill()
