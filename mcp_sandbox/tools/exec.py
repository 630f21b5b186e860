"""`exec` and `job`: commands, and those that run on."""

import signal
from typing import Any

from anyio import to_thread

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.service.command import Outcome, Progress
from mcp_sandbox.service.execution import DEFAULT_TIMEOUT_S, CommandRequest
from mcp_sandbox.tools.present import job_table, present
from mcp_sandbox.tools.terminal import as_seen
from mcp_sandbox.tools.tool import Answer, Call, Profile, Tool

__all__ = ["TOOLS"]

_MUCH_BYTES = 16_384
"""More than this is decoded and cut in a thread, so that nothing else waits for it."""

_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")

_SANDBOX = {"type": "string", "description": "Id, id prefix or name; default: this project's sandbox"}


async def _exec(call: Call) -> Answer:
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
        ),
        _progress(call),
    )
    return await _answer(outcome)


async def _job(call: Call) -> Answer:
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
    return await _answer(outcome)


async def _answer(outcome: Outcome) -> Answer:
    if outcome.stdout.total_bytes + outcome.stderr.total_bytes > _MUCH_BYTES:
        return Answer(text=await to_thread.run_sync(present, outcome))
    return Answer(text=present(outcome))


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


TOOLS = (
    Tool(
        name="exec",
        title="Run a command",
        description=(
            "Run a shell command in the sandbox (bash where there is one); returns exit code, stdout and stderr. "
            "Every call is a fresh shell: cd and export do not last. stdin is empty unless given: nothing can prompt. "
            "A command that takes long goes on as a job (job_id in the first line): see `job`. "
            "Background processes live on."
        ),
        handler=_exec,
        properties={
            "command": {"type": "string", "description": "Command line, of any length; heredocs work"},
            "cwd": {"type": "string", "description": "Directory; default /workspace"},
            "env": {
                "type": "object",
                "description": "Extra environment variables",
                "additionalProperties": {"type": "string"},
            },
            "stdin": {"type": "string", "description": "Text for standard input"},
            "timeout_s": {
                "type": "number",
                "description": (
                    f"Seconds until it is killed with all it started; default {DEFAULT_TIMEOUT_S:.0f}, in the "
                    "background none"
                ),
                "exclusiveMinimum": 0,
            },
            "run_in_background": {
                "type": "boolean",
                "description": "Return at once with a job_id; stdin stays open for `job`",
                "default": False,
            },
            "sandbox": _SANDBOX,
        },
        required=("command",),
        profile=Profile.MINIMAL,
        destructive=True,
    ),
    Tool(
        name="job",
        title="Watch or steer a background command",
        description=(
            "Follow a job that `exec` started. output: all it has said. wait: until it ends (then all) or wait_s is "
            "over (then what is new). input: write `input` to it and return its reply. kill: end it with all it "
            "started, or send `signal`. list: all jobs, also finished ones."
        ),
        handler=_job,
        properties={
            "job_id": {"type": "string", "description": "As in j3; not for list"},
            "action": {
                "type": "string",
                "description": "What to do",
                "enum": ["output", "wait", "input", "kill", "list"],
                "default": "output",
            },
            "input": {"type": "string", "description": "Text, with its own newline at the end"},
            "close_stdin": {"type": "boolean", "description": "End its input after that", "default": False},
            "wait_s": {"type": "number", "description": "Seconds to wait at most", "minimum": 0},
            "signal": {"type": "string", "description": "kill: which signal", "enum": list(_SIGNALS)},
            "sandbox": _SANDBOX,
        },
        profile=Profile.DEFAULT,
        destructive=True,
    ),
)
