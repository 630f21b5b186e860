"""What `exec` and `job` do: commands, and those that run on."""

import signal
from typing import Any

from anyio import to_thread

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.service.command import Outcome, Progress
from mcp_sandbox.service.execution import CommandRequest
from mcp_sandbox.tools.call import Answer, Call
from mcp_sandbox.tools.present import job_table, present
from mcp_sandbox.tools.terminal import as_seen

__all__ = ["exec_command", "job"]

_MUCH_BYTES = 16_384
"""More than this is decoded and cut in a thread, so that nothing else waits for it."""


async def exec_command(call: Call) -> Answer:
    """Run a command."""
    arguments = call.arguments
    outcome = await call.services.execution.run(
        CommandRequest(
            command=arguments["command"],
            sandbox=arguments.get("sandbox", ""),
            cwd=arguments.get("cwd", ""),
            env=arguments.get("env", {}),
            stdin=arguments.get("stdin"),
            timeout_s=arguments.get("timeout_s"),
            background=arguments.get("run_in_background", False),
            window_s=call.window_s,
            ask=call.ask,
        ),
        _progress(call),
    )
    return await _answer(outcome, call)


async def job(call: Call) -> Answer:
    """Follow or steer a job."""
    arguments = call.arguments
    jobs = call.services.execution.jobs
    sandbox: str = arguments.get("sandbox", "")
    action: str = arguments["action"]
    if action == "list":
        return Answer(text=job_table(await jobs.records(sandbox)))
    job_id = _job_id(arguments)
    wait_s = min(arguments.get("wait_s", call.window_s), call.window_s)
    match action:
        case "output":
            outcome = await jobs.output(job_id, sandbox=sandbox)
        case "wait":
            outcome = await jobs.wait(job_id, sandbox=sandbox, within_s=wait_s, progress=_progress(call))
        case "input":
            outcome = await jobs.feed(
                job_id,
                arguments.get("input", ""),
                sandbox=sandbox,
                close=arguments.get("close_stdin", False),
                within_s=min(arguments.get("wait_s", 1.0), call.window_s),
            )
        case _:
            name: str = arguments.get("signal", "SIGKILL")
            number = None if name == "SIGKILL" else int(signal.Signals[name])
            outcome = await jobs.kill(job_id, sandbox=sandbox, number=number)
    return await _answer(outcome, call)


async def _answer(outcome: Outcome, call: Call) -> Answer:
    if outcome.stdout.total_bytes + outcome.stderr.total_bytes > _MUCH_BYTES:
        return Answer(text=await to_thread.run_sync(present, outcome, call.prefix))
    return Answer(text=present(outcome, call.prefix))


def _job_id(arguments: Any) -> str:
    given: str = arguments.get("job_id", "").strip().casefold()
    if not given:
        raise InvalidRequestError(
            "Nothing was done", why="`job_id` is missing", fix='Give one, or call `job` with action "list" to see them'
        )
    return f"j{given}" if given.isdecimal() else given


def _progress(call: Call) -> Progress:
    async def report(elapsed_s: float, last: str) -> None:
        lines = as_seen(last).strip().splitlines()
        await call.progress(f"{elapsed_s:.0f} s: {lines[-1][-200:]}" if lines else f"{elapsed_s:.0f} s")

    return report
