"""A guest agent in namespaces of its own, with a root of its own, and the ways to reach it.

The agent is never init of the host: it freezes and kills what it finds in /proc.
"""

import abc
import contextlib
import functools
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self

import anyio
from anyio.abc import ByteStream, Process, SocketStream, UNIXSocketStream

from mcp_sandbox.engines.carrier import GuestCarrier
from mcp_sandbox.engines.local_carrier import LocalCarrier
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.guest.binary import guest_binary

__all__ = ["AGENT", "Guest", "NamespacedGuest", "ProcessStream", "namespaces_work", "open_process_stream"]

AGENT: Final = "/.mcp-sandbox"
START_S: Final = 10
PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"

# The script is init until it becomes the agent.
_ENTER: Final = """
set -e
ulimit -S -n 1024
root=$1; shift
mount --bind "$root" "$root"
cd "$root"
mount --bind /usr usr
mount -o remount,bind,ro usr
for name in null zero full urandom; do mount --bind "/dev/$name" "dev/$name"; done
mount -t proc proc proc
ip link set lo up || true
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
pivot_root . old
cd /
umount -l /old
exec /.mcp-sandbox/guest "$@"
"""
_UNSHARE: Final = ("unshare", "--user", "--map-root-user", "--pid", "--mount", "--ipc", "--uts", "--net", "--fork")


class ProcessStream(ByteStream):
    """The standard streams of a process as one stream; closing it ends the process."""

    def __init__(self, process: Process, stream: SocketStream) -> None:
        self.process, self._stream = process, stream

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return what the process wrote."""
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        """Write to the process."""
        await self._stream.send(item)

    async def send_eof(self) -> None:
        """Close the process's input."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the input, take what still comes so that nobody hangs on it, and wait for the process to end."""
        gone = contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
        with anyio.move_on_after(5, shield=True), gone:
            await self._stream.send_eof()
            async for _ in self._stream:
                pass
        with anyio.move_on_after(5, shield=True):
            await self._stream.aclose()
            await self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        with anyio.CancelScope(shield=True):
            await self.process.aclose()


async def open_process_stream(command: Sequence[str], **environment: str) -> ProcessStream:
    """Start a process whose standard streams carry frames.

    One socket, not two pipes: asyncio before 3.11.4 reports a broken pipe of a subprocess to nobody in particular.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = await anyio.open_process(
            command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=None, env={"PATH": PATH, **environment}
        )
    return ProcessStream(process, await UNIXSocketStream.from_socket(ours))


class Guest(abc.ABC):
    """A running agent, whichever engine holds it."""

    base = "/area"
    """A directory that tests may write to."""
    environment: Sequence[str] = (f"PATH={PATH}", "HOME=/root")
    many = True
    """Whether it takes several connections at once."""

    @abc.abstractmethod
    async def connect(self) -> GuestCarrier:
        """Make another connection."""

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[GuestCarrier]:
        """Make another connection, and end it."""
        carrier = await self.connect()
        try:
            yield carrier
        finally:
            await carrier.aclose()


class NamespacedGuest(Guest):
    """An agent as init of its own namespaces. Use as a context manager."""

    def __init__(self, carrier: str, *, program: bytes | None = None, grace_ms: int = 2000) -> None:
        self._carrier = carrier
        self._program = guest_binary() if program is None else program
        self._arguments = ("init", AGENT, str(grace_ms))
        self.many = carrier != "stdio"

    def __enter__(self) -> Self:
        """Build the root, and start the agent unless its carrier is its own standard streams."""
        self.root = Path(tempfile.mkdtemp(prefix="guest-"))
        for name in ("usr", "proc", "dev/pts", "tmp", "old", "area", "root", "etc", AGENT[1:]):
            (self.root / name).mkdir(parents=True)
        (self.root / AGENT[1:]).chmod(0o700)
        for name in ("null", "zero", "full", "urandom"):
            (self.root / "dev" / name).touch()
        for name in ("bin", "sbin", "lib", "lib64"):
            (self.root / name).symlink_to(f"usr/{name}")
        self.program = self.root / AGENT[1:] / "guest"
        self.program.write_bytes(self._program)
        self.program.chmod(0o755)
        self._tool = Path(tempfile.mkdtemp(prefix="guest-tool-"), "guest")
        self._tool.write_bytes(guest_binary())
        self._tool.chmod(0o755)
        self.init: subprocess.Popen[bytes] | None = None
        if self._carrier != "stdio":
            self.start()
        return self

    def start(self) -> None:
        """Start the agent; also again, after it ended."""
        self.init = subprocess.Popen(self._command(*self._arguments), env=self._variables(), stdin=subprocess.DEVNULL)

    def __exit__(self, *_: object) -> None:
        """End everything and remove the root."""
        if self.init is not None:
            self.init.kill()  # and with it whatever it forked
            self.init.wait()
        subprocess.run([self._tool, "remove", str(self.root)], env={}, check=True)
        shutil.rmtree(self._tool.parent)

    def _command(self, *arguments: str) -> list[str]:
        return [*_UNSHARE, "--kill-child", "sh", "-c", _ENTER, "enter", str(self.root), *arguments]

    def _variables(self, root: str = "") -> dict[str, str]:
        return {"PATH": PATH, "ASAN_OPTIONS": f"detect_leaks=0:abort_on_error=1:log_path={root}/tmp/sanitizer"}

    def findings(self) -> str:
        """Return what a sanitizer wrote, if the program has one."""
        return "\n".join(path.read_text("utf-8", "replace") for path in (self.root / "tmp").glob("sanitizer*"))

    @property
    def init_pid(self) -> int:
        """The agent's pid as the host counts."""
        assert self.init is not None
        (child,) = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text().split()
        return int(child)

    def wait_ended(self, timeout_s: float = 10) -> int:
        """Wait until the agent ended; return how."""
        assert self.init is not None
        return self.init.wait(timeout_s)

    def connect_now(self) -> socket.socket:
        """Connect to the agent's socket from outside, if it listens."""
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            peer.connect(str(self.root / AGENT[1:] / "agent.sock"))
        except OSError:
            peer.close()
            raise
        return peer

    async def socket(self) -> socket.socket:
        """Connect to the agent's socket from outside, as soon as it listens."""
        with anyio.fail_after(START_S):
            while True:
                try:
                    return self.connect_now()
                except (FileNotFoundError, ConnectionRefusedError):
                    await anyio.sleep(0.005)  # the only sign of life that a starting agent gives

    async def stream(self, timeout_s: int = 60) -> ProcessStream:
        """Reach the agent through a bridge outside, or through its own standard streams."""
        if self._carrier == "stdio":
            return await open_process_stream(self._command("stdio", str(timeout_s)), **self._variables())
        (await self.socket()).close()
        directory = str(self.root / AGENT[1:])
        command = [str(self.program), "bridge", directory, str(timeout_s)]
        return await open_process_stream(command, **self._variables(str(self.root)))

    async def connect(self) -> GuestCarrier:
        """Make another connection."""
        if self._carrier == "local":
            carrier = LocalCarrier(await self.socket())
            await carrier.welcome()
            return carrier
        return await StreamCarrier.open(await self.stream())


@functools.cache
def namespaces_work() -> str:
    """Return why this machine or user cannot make namespaces; empty if it can."""
    if sys.platform != "linux" or shutil.which("unshare", path=PATH) is None:
        return "no unshare(1) here"
    command = [*_UNSHARE, "sh", "-c", "mount -t proc proc /proc && mount --bind /usr /usr"]
    done = subprocess.run(command, env={"PATH": PATH}, capture_output=True, check=False)
    return done.stderr.decode("utf-8", "replace").strip() if done.returncode else ""
