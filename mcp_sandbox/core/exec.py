"""One command: what to run, what it says while it runs, and what came of it."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

__all__ = ["ExecEvent", "ExecRequest", "ExecResult", "Execution", "Exited", "OutputChunk", "StreamName", "Termination"]


class StreamName(StrEnum):
    """Where a chunk of output came from."""

    STDOUT = "stdout"
    STDERR = "stderr"


class Termination(StrEnum):
    """Why a command's process ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    KILLED = "killed"
    """By us, on request."""
    OOM = "oom"
    """It, or what it waited for, was killed at the sandbox's memory limit."""
    PIDS = "pids"
    """It failed, and could not start all the processes or threads that it wanted."""
    DISK = "disk"
    """It failed, and no room was left for what it wrote; or it was killed because of that."""
    LOST = "lost"
    """The sandbox ended first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """A command to run inside a sandbox."""

    argv: tuple[str, ...]
    """Program and arguments, never parsed by a shell. A bare name is looked up in the `PATH` of `env`.

    Strings that are not UTF-8 use surrogate escapes."""
    cwd: str = "/workspace"
    """Absolute directory."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables added to the sandbox's own."""
    stdin: bool = False
    """Keep standard input open for `write_stdin`; else it is at its end from the start."""
    timeout_s: float | None = None
    """Wall-clock seconds until the whole process tree is killed; `None` is no deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """The outcome of a command that the engine managed to start, or could not find (127) or execute (126)."""

    exit_code: int | None
    """Status from the process, or `None` if it did not exit by itself."""
    signal: int | None = None
    """Number of the signal that ended the process, if one did."""
    termination: Termination = Termination.EXITED
    duration_s: float = 0.0
    """Wall-clock seconds from start to end."""
    cpu_s: float = 0.0
    """User and system seconds of the process and those children it waited for."""
    max_rss_bytes: int = 0
    detail: str = ""
    """One sentence for a reader, where the fields alone do not explain the end."""


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Bytes that a command wrote."""

    stream: StreamName
    data: bytes
    seq: int
    """Counts the chunks of one execution from 0, over both streams."""
    gap: bool = False
    """Whether bytes before this chunk were lost; never set by an engine that cannot lose any."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The command's own process has ended. Every byte it wrote came before; children may still write."""

    result: ExecResult


ExecEvent = OutputChunk | Exited


class Execution(abc.ABC):
    """A live command. Use as a context manager: leaving it kills what still runs and frees the pipes."""

    @abc.abstractmethod
    async def receive(self) -> ExecEvent:
        """Return the next event: chunks in order, one `Exited`, then chunks of children that hold the pipes.

        A caller that is cancelled loses nothing: the event comes again.

        Raises:
            anyio.EndOfStream: Exited, and nobody holds the pipes any more.
        """

    @abc.abstractmethod
    async def write_stdin(self, data: bytes) -> None:
        """Write all of `data`, waiting while the command does not read.

        Raises:
            anyio.BrokenResourceError: The command closed its input or ended.
            anyio.ClosedResourceError: Input was not asked for, or is closed.
        """

    @abc.abstractmethod
    async def close_stdin(self) -> None:
        """Let the command read end of file. Idempotent."""

    @abc.abstractmethod
    async def signal(self, number: int, *, tree: bool = False) -> None:
        """Send a signal to the command's process group, or with `tree` to every descendant. No-op once it ended."""

    @abc.abstractmethod
    async def kill(self) -> None:
        """Kill the whole tree, `setsid` children too, and return when the command's process has ended. Idempotent."""

    @abc.abstractmethod
    async def wait(self) -> ExecResult:
        """Return the result once the command's own process has ended.

        Output is buffered only up to the pipes' size: whoever waits without receiving may wait for ever.
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Kill the tree if the command still runs, then free the pipes. Idempotent."""

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.aclose()
