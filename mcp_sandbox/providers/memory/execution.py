"""A live in-memory command: bounded pipes, events, signals and a deadline around one coroutine."""

import asyncio
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import anyio

from mcp_sandbox.core.exec import ExecEvent, ExecResult, Execution, Exited, OutputChunk, StreamName, Termination
from mcp_sandbox.providers.memory.tree import Tree

__all__ = ["MemoryExecution", "Process", "Program"]

_PIPE_BYTES = 65_536
_IGNORED = {0, signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}


class _Bell:
    """Wakes everybody who waits for something to change."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def ring(self) -> None:
        event, self._event = self._event, anyio.Event()
        event.set()

    async def wait(self) -> None:
        await self._event.wait()


class Process:
    """What a program sees of itself: arguments, environment, files, and its three streams."""

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str], cwd: str, tree: Tree, *, stdin: bool) -> None:
        self.argv, self.env, self.cwd, self.tree = argv, env, cwd, tree
        self.bell = _Bell()
        self.events: deque[ExecEvent] = deque()
        self.stdin = bytearray()
        self.stdin_open = stdin
        self.ended = False
        self._count = 0

    def path(self, name: str) -> str:
        """Return an absolute path for a name given on the command line."""
        return name if name.startswith("/") else f"{self.cwd.rstrip('/')}/{name}"

    async def read(self) -> bytes:
        """Return some bytes of standard input; none at its end."""
        while not self.stdin:
            if not self.stdin_open:
                return b""
            await self.bell.wait()
        data = bytes(self.stdin)
        self.stdin.clear()
        self.bell.ring()
        return data

    async def write(self, data: bytes, stream: StreamName = StreamName.STDOUT) -> None:
        """Write all of `data`, waiting while the pipe is full."""
        for start in range(0, len(data), _PIPE_BYTES):
            while self._held_bytes(stream) >= _PIPE_BYTES:
                await self.bell.wait()
            self.events.append(OutputChunk(stream, data[start : start + _PIPE_BYTES], self._count))
            self._count += 1
            self.bell.ring()

    def _held_bytes(self, stream: StreamName) -> int:
        return sum(
            len(event.data) for event in self.events if isinstance(event, OutputChunk) and event.stream is stream
        )


Program = Callable[[Process], Awaitable[int]]


class MemoryExecution(Execution):
    """Runs a program in a task that belongs to this object and ends with it."""

    def __init__(
        self, program: Program, process: Process, timeout_s: float | None, *, stdin: bool, detail: str
    ) -> None:
        self._process = process
        self._accepts_input = stdin
        self._detail = detail
        self._result: ExecResult | None = None
        self._ending = (Termination.LOST, int(signal.SIGKILL))
        self._closed = False
        self._started = time.monotonic()
        self._task = asyncio.get_running_loop().create_task(self._run(program, timeout_s))
        self._task.add_done_callback(self._finish)

    async def _run(self, program: Program, timeout_s: float | None) -> ExecResult:
        with anyio.move_on_after(timeout_s):
            return self._outcome(exit_code=await program(self._process))
        return self._outcome(signal=int(signal.SIGKILL), termination=Termination.TIMEOUT)

    def _outcome(
        self,
        exit_code: int | None = None,
        signal: int | None = None,
        termination: Termination = Termination.EXITED,
    ) -> ExecResult:
        return ExecResult(
            exit_code=exit_code,
            signal=signal,
            termination=termination,
            duration_s=time.monotonic() - self._started,
            detail=self._detail,
        )

    def _finish(self, task: asyncio.Task[ExecResult]) -> None:
        if task.cancelled():
            termination, number = self._ending
            self._result = self._outcome(signal=number, termination=termination)
        else:
            self._result = task.result()
        self._process.ended = True
        self._process.events.append(Exited(self._result))
        self._process.bell.ring()

    async def receive(self) -> ExecEvent:
        """Return the next event."""
        while True:
            if self._closed:
                raise anyio.ClosedResourceError
            if self._process.events:
                event = self._process.events.popleft()
                self._process.bell.ring()
                return event
            if self._process.ended:
                raise anyio.EndOfStream
            await self._process.bell.wait()

    async def write_stdin(self, data: bytes) -> None:
        """Write all of `data`, waiting while the program does not read."""
        process = self._process
        view = memoryview(data)
        while True:
            if not self._accepts_input:
                raise anyio.ClosedResourceError
            if process.ended:
                raise anyio.BrokenResourceError
            if not view:
                return
            if room := _PIPE_BYTES - len(process.stdin):
                process.stdin += view[:room]
                view = view[room:]
                process.bell.ring()
            else:
                await process.bell.wait()

    async def close_stdin(self) -> None:
        """Let the program read end of file."""
        self._accepts_input = False
        self._process.stdin_open = False
        self._process.bell.ring()

    async def signal(self, number: int, *, tree: bool = False) -> None:
        """End the program as the signal's default action would; programs here have no children and no handlers."""
        if number not in _IGNORED and self._result is None:
            self._end(Termination.SIGNALED, number)

    async def kill(self) -> None:
        """End the program and return when it has ended."""
        if self._result is None:
            self._end(Termination.KILLED, int(signal.SIGKILL))
        await self.wait()

    @property
    def ended(self) -> bool:
        """Whether the program has ended."""
        return self._result is not None

    def lose(self, detail: str) -> None:
        """End the program because its sandbox ends."""
        if self._result is None:
            self._detail = detail
            self._end(Termination.LOST, int(signal.SIGKILL))

    def _end(self, termination: Termination, number: int) -> None:
        if not self._task.cancelling():
            self._ending = termination, number
            self._task.cancel()

    async def wait(self) -> ExecResult:
        """Return the result once the program has ended."""
        while self._result is None:
            await self._process.bell.wait()
        return self._result

    async def aclose(self) -> None:
        """End the program and forget what it wrote."""
        self._closed = True
        self._process.bell.ring()
        with anyio.CancelScope(shield=True):
            await self.kill()
        self._process.events.clear()
