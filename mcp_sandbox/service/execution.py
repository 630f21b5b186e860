"""Running commands: started at once, answered when they end or when the caller's patience does, then kept as jobs."""

import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup

from mcp_sandbox.core.errors import InvalidRequestError, SandboxError
from mcp_sandbox.core.exec import ExecRequest, ExecResult, Termination
from mcp_sandbox.core.sandbox import WORKSPACE
from mcp_sandbox.service.approval import Ask
from mcp_sandbox.service.command import Outcome, Progress, RunningCommand
from mcp_sandbox.service.command_gate import CommandGate
from mcp_sandbox.service.jobs import JobService
from mcp_sandbox.service.paths import resolve
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.shell import FIXED_ENV, Shells, checked_env
from mcp_sandbox.service.spool import SpoolRooms
from mcp_sandbox.service.telling import using

__all__ = ["DEFAULT_TIMEOUT_S", "CommandRequest", "ExecutionService"]

_LOG = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 600.0
"""The deadline of a command that somebody waits for."""

_FIRST_WORDS_S = 0.1
"""How long a background command is given to fail at once."""
_FLUSH_S = 2.0
_FLUSH_AT_END_S = 0.3
_CLEAN_UP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A command line to run."""

    command: str
    sandbox: str = ""
    """A handle; empty is the project's default."""
    cwd: str = ""
    """Relative paths start at the workspace; empty is the workspace."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    stdin: str | None = None
    """Text for standard input, which then ends, except in the background. `None` is no input."""
    timeout_s: float | None = None
    """`None` is 600 s for a command that is waited for, and no deadline in the background."""
    background: bool = False
    """Make it a job at once, with its standard input open."""
    window_s: float = 45.0
    """Seconds until a command that still runs becomes a job."""
    ask: Ask | None = None
    """Asks the person, if a rule wants that."""


class ExecutionService:
    """Use as a context manager: leaving it ends every command that still runs.

    Args:
        sandboxes: Where sandboxes are found.
        env: Variables of every command, in place of the fixed ones of the same name.
        gate: Decides which commands may run.
    """

    def __init__(
        self, sandboxes: SandboxService, *, env: Mapping[str, str] | None = None, gate: CommandGate | None = None
    ) -> None:
        self._sandboxes = sandboxes
        self._gate = gate or CommandGate()
        self._env = {**FIXED_ENV, **sandboxes.demands.env, **(env or {})}
        self._tasks: TaskGroup
        self._rooms = SpoolRooms(self._start_task)
        self._shells = Shells(self._rooms)
        self.jobs = JobService(sandboxes, self._start_task, self._rooms)
        """The commands that run on by themselves, and those that did."""

    async def __aenter__(self) -> Self:
        """Return itself."""
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write down what was said, then end what runs."""
        with anyio.move_on_after(_FLUSH_AT_END_S, shield=True):
            await self._rooms.flush()
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)  # an error passes by as it is, not in a group

    def _start_task(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start what outlives the call it belongs to; its failure must not end the others."""

        async def guarded() -> None:
            try:
                await task()
            except Exception:  # noqa: BLE001 (logged; it belongs to nobody who could be told)
                _LOG.exception("a task behind a command failed")

        self._tasks.start_soon(guarded)

    async def run(self, request: CommandRequest, progress: Progress | None = None) -> Outcome:
        """Run a command line until it ends or the window closes; then it goes on as a job.

        Cancelling kills the command and all it started.

        Raises:
            InvalidRequestError: The command, the directory, a variable or the deadline cannot be used.
            SandboxError: The sandbox is not there or cannot be used.
        """
        command = await self._start(request)
        try:
            window_s = _FIRST_WORDS_S if request.background else request.window_s
            if await command.follow(window_s, progress) and not request.background:
                return await self._ended(command)
            with anyio.CancelScope(shield=True):
                await self.jobs.adopt(command)
        except BaseException:
            await command.close()
            raise
        return await self.jobs.introduce(command)

    async def _start(self, request: CommandRequest) -> RunningCommand:
        cwd = resolve(request.cwd) if request.cwd else WORKSPACE
        env = {**self._env, **checked_env(request.env)} if request.env else self._env
        timeout_s = _timeout_s(request)
        has_input = request.background or request.stdin is not None
        await self._gate.admit(
            request.command,
            cwd=cwd,
            sandbox=request.sandbox or "default",
            env=request.env,
            stdin=request.stdin,
            goes_on=request.background,
            ask=request.ask,
        )
        async with using(self._sandboxes, request.sandbox or None) as live:
            invocation = await self._shells.invocation(live.sandbox, request.command)
            try:
                execution = await live.sandbox.exec(
                    ExecRequest(argv=invocation.argv, cwd=cwd, env=env, stdin=has_input, timeout_s=timeout_s)
                )
            except BaseException:
                with anyio.move_on_after(_CLEAN_UP_S, shield=True), suppress(OSError, SandboxError):
                    await self._shells.clean_up(live.sandbox, invocation)
                raise
        command = RunningCommand(
            live=live,
            execution=execution,
            invocation=invocation,
            shells=self._shells,
            rooms=self._rooms,
            line=request.command,
            cwd=cwd,
            timeout_s=timeout_s,
        )
        if request.stdin is not None:
            text = request.stdin.encode("utf-8", "surrogateescape")
            self._start_task(partial(_feed, command, text, then_close=not request.background))
        return command

    async def _ended(self, command: RunningCommand) -> Outcome:
        """Return the outcome of a command whose own process has ended, and see to what it left behind."""
        result = command.result
        if result is not None and _shell_is_missing(result, command):
            self._shells.forget(command.live.sandbox)
        if not await command.finish_output():
            await command.close()
            if command.output.spools:
                with anyio.move_on_after(_FLUSH_S):
                    await command.output.flush()
            return command.outcome()
        spool_path = await command.spool_path()
        command.output.spool_later()
        outcome = command.outcome(spool_path=spool_path)
        self._start_task(partial(_drain, command))
        return outcome


async def _drain(command: RunningCommand) -> None:
    try:
        await command.drain()
    finally:
        await command.close()


async def _feed(command: RunningCommand, text: bytes, *, then_close: bool) -> None:
    try:
        await command.write_stdin(text)
        if then_close:
            await command.execution.close_stdin()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, SandboxError):
        return  # it ended, or did not want all of it: nobody's fault


def _timeout_s(request: CommandRequest) -> float | None:
    if request.timeout_s is None:
        return None if request.background else DEFAULT_TIMEOUT_S
    if request.timeout_s <= 0:
        raise InvalidRequestError("Nothing was run", why="`timeout_s` is not positive", fix="Give seconds, or leave it")
    return request.timeout_s


def _shell_is_missing(result: ExecResult, command: RunningCommand) -> bool:
    return result.termination is Termination.EXITED and result.exit_code == 127 and not command.output.total_bytes
