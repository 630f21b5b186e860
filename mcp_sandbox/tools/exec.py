"""`exec` and `job`: commands, and those that run on."""

from mcp_sandbox.tools.tool import SANDBOX, Deferred, Tool

__all__ = ["TOOLS"]

_CALLS = "mcp_sandbox.tools.calls.exec"
_TIMEOUT_S = 600
_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")

TOOLS = (
    Tool(
        name="exec",
        title="Run a command",
        description=(
            "Run a shell command (bash where there is one); returns exit code, stdout and stderr. Every call is a "
            "fresh shell: cd and export do not last. stdin is empty unless given: nothing can prompt. What takes long "
            "goes on as a job (job_id in the first line): see `job`. Background processes live on."
        ),
        handler=Deferred(_CALLS, "exec_command"),
        properties={
            "command": {"type": "string", "description": "Of any length; heredocs work"},
            "cwd": {"type": "string", "description": "Default: /workspace"},
            "env": {
                "type": "object",
                "description": "Variables",
                "additionalProperties": {"type": "string"},
            },
            "stdin": {"type": "string", "description": "Text"},
            "timeout_s": {
                "type": "number",
                "description": (
                    f"Seconds until all it started is killed; default {_TIMEOUT_S}, in the background none"
                ),
                "exclusiveMinimum": 0,
            },
            "run_in_background": {
                "type": "boolean",
                "description": "Return a job_id at once; stdin stays open for `job`",
                "default": False,
            },
            "sandbox": SANDBOX,
        },
        required=("command",),
        profile="minimal",
        destructive=True,
    ),
    Tool(
        name="job",
        title="Follow a job",
        description=(
            "Follow a job of `exec`. output: all it has said. wait: until it ends (then all) or wait_s is over (then "
            "what is new). input: write `input` and return its reply. kill: end it with all it started, or send "
            "`signal`. list: all jobs, also finished ones."
        ),
        handler=Deferred(_CALLS, "job"),
        properties={
            "job_id": {"type": "string", "description": "As in j3; not for list"},
            "action": {
                "type": "string",
                "description": "What to do",
                "enum": ["output", "wait", "input", "kill", "list"],
                "default": "output",
            },
            "input": {"type": "string", "description": "Text with its newline"},
            "close_stdin": {"type": "boolean", "description": "End its input after that", "default": False},
            "wait_s": {"type": "number", "description": "Seconds at most", "minimum": 0},
            "signal": {"type": "string", "description": "kill: which signal", "enum": list(_SIGNALS)},
            "sandbox": SANDBOX,
        },
        profile="default",
        destructive=True,
    ),
)
