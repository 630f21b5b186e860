"""`mcp-sandbox exec`: one command in a sandbox, as if it ran here."""

import argparse
import os
import select
import shlex
import signal
import sys
from typing import Final

import anyio
from anyio import to_thread

from mcp_sandbox.app import command_gate
from mcp_sandbox.cli.options import (
    add_image,
    add_limits,
    add_sandbox,
    add_scope,
    add_start,
    limits_of,
    parser,
    start_of,
)
from mcp_sandbox.cli.running import run, tell
from mcp_sandbox.core.exec import ExecRequest, ExecResult, Execution, Exited, StreamName, Termination
from mcp_sandbox.core.sandbox import WORKSPACE
from mcp_sandbox.service.paths import resolve
from mcp_sandbox.service.sandboxes import SandboxService

__all__ = ["main"]

_EXAMPLE = """\
  mcp-sandbox exec -- python3 -m pytest -q
  tar c src | mcp-sandbox exec --cwd /tmp -- tar x
  mcp-sandbox exec --image ./rootfs -- cat /etc/os-release

The exit status is the command's; 124 after --timeout, 128 + n if signal n ended it,
125 if the sandbox ended, 2 if it could not be run at all."""
_CHUNK_BYTES = 65_536
_NOBODY_READS: Final = 128 + signal.SIGPIPE


def main(arguments: list[str]) -> int:
    """Run a command and return its exit status."""
    reader = parser("exec", "Run a command in a sandbox, made on first use.", _EXAMPLE)
    add_sandbox(reader)
    add_scope(reader)
    add_image(reader)
    add_start(reader)
    reader.add_argument("--timeout", metavar="S", type=_positive, help="seconds until it is killed with all it started")
    reader.add_argument("--cwd", metavar="D", default="", help=f"directory in the sandbox (default: {WORKSPACE})")
    reader.add_argument("--no-stdin", action="store_true", help="leave standard input to whoever comes next")
    add_limits(reader)
    reader.add_argument("command", nargs="+", help="program and arguments, after --; no shell looks at them")
    options = reader.parse_args(arguments)
    return run(options, lambda sandboxes: _exec(sandboxes, options), limits_of(options), start_of(options))


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"a positive number of seconds is expected, not {text!r}")
    return value


async def _exec(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    has_input = not options.no_stdin and not _is_terminal(0)
    request = ExecRequest(
        argv=tuple(options.command),
        cwd=resolve(options.cwd) if options.cwd else WORKSPACE,
        env=sandboxes.demands.env,
        stdin=has_input,
        timeout_s=options.timeout,
    )
    await _admit(sandboxes, options, request)
    live = await sandboxes.open(options.sandbox)
    tell(live.notices)
    result: ExecResult | None = None
    async with await live.sandbox.exec(request) as execution, anyio.create_task_group() as tasks:
        if has_input:
            tasks.start_soon(_feed, execution)
        result = await _relay(execution)
        tasks.cancel_scope.cancel()
    return _NOBODY_READS if result is None else _status(result)


async def _admit(sandboxes: SandboxService, options: argparse.Namespace, request: ExecRequest) -> None:
    """Return if the rules, or the person here, let the command run."""
    if not sandboxes.demands.commands:
        return
    from mcp_sandbox.cli.asking import ask_at_terminal

    await command_gate(sandboxes.demands).admit(
        shlex.join(request.argv),
        cwd=request.cwd,
        sandbox=options.sandbox or "default",
        env={},
        ask=ask_at_terminal,
    )


async def _relay(execution: Execution) -> ExecResult | None:
    """Pass output on until the command itself ends; `None` if nobody reads it any more."""
    while not isinstance(event := await execution.receive(), Exited):
        try:
            await to_thread.run_sync(
                _write, 1 if event.stream is StreamName.STDOUT else 2, event.data, abandon_on_cancel=True
            )
        except BrokenPipeError:
            await execution.kill()
            return None
    return event.result


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # whoever gave it to us made it non-blocking
            select.select([], [descriptor], [])


async def _feed(execution: Execution) -> None:
    """Pass standard input on until it ends or the command stops reading."""
    try:
        while data := await _read():
            await execution.write_stdin(data)
        await execution.close_stdin()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


async def _read() -> bytes:
    try:
        await anyio.wait_readable(0)
    except PermissionError:  # a regular file: the kernel cannot wait for it, and need not (man 2 epoll_ctl)
        return await to_thread.run_sync(os.read, 0, _CHUNK_BYTES)
    except OSError:  # it is closed
        return b""
    try:
        return os.read(0, _CHUNK_BYTES)
    except BlockingIOError:
        return await _read()
    except OSError:
        return b""


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _status(result: ExecResult) -> int:
    match result.termination:
        case Termination.EXITED:
            said, status = result.detail, result.exit_code or 0
        case Termination.TIMEOUT:
            said, status = result.detail or "killed by its deadline", 124
        case Termination.LOST:
            said, status = result.detail or "the sandbox ended", 125
        case Termination.OOM | Termination.PIDS | Termination.DISK:
            said = f"{result.termination.value}: {result.detail}" if result.detail else result.termination.value
            status = result.exit_code or 128 + (result.signal or signal.SIGKILL)
        case Termination.SIGNALED | Termination.KILLED:
            said, status = result.detail, 128 + (result.signal or signal.SIGKILL)
    if said:
        print(f"mcp-sandbox: {said}", file=sys.stderr)
    return status
