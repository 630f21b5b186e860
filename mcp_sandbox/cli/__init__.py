"""The command line. A command is a module that is imported only when it is chosen; `--help` imports none."""

import sys

from mcp_sandbox import __version__

__all__ = ["COMMANDS", "Command", "main"]

_USAGE = """\
usage: mcp-sandbox [COMMAND] [OPTIONS]

Gives any MCP-capable agent a sandbox. Without a command: `serve` if standard
input is not a terminal, else this help.

commands:
{commands}

  mcp-sandbox COMMAND --help   what a command takes, with an example
  mcp-sandbox --version

example, in the configuration of an MCP client:
  {{"mcpServers": {{"sandbox": {{"command": "mcp-sandbox", "args": ["serve"]}}}}}}
"""


class Command:
    """What is known of a command without importing it."""

    __slots__ = ("module", "summary")

    def __init__(self, module: str, summary: str) -> None:
        self.module = module
        self.summary = summary


COMMANDS = {
    "serve": Command("mcp_sandbox.cli.serve", "serve the tools over standard input and output"),
    "exec": Command("mcp_sandbox.cli.exec", "run a command in a sandbox"),
    "ls": Command("mcp_sandbox.cli.ls", "list sandboxes"),
    "diff": Command("mcp_sandbox.cli.diff", "show what changed since the start or a snapshot"),
    "apply": Command("mcp_sandbox.cli.apply", "bring changes home into the project, or take the last ones back"),
    "fork": Command("mcp_sandbox.cli.fork", "make new sandboxes from a live one"),
    "expose": Command("mcp_sandbox.cli.expose", "reach a server in a sandbox from this machine"),
    "rm": Command("mcp_sandbox.cli.rm", "destroy sandboxes"),
    "gc": Command("mcp_sandbox.cli.gc", "remove what killed processes left behind"),
    "snapshot": Command("mcp_sandbox.cli.snapshot", "create, list, restore, delete, export and import snapshots"),
    "image": Command("mcp_sandbox.cli.image", "build, import, list and remove what sandboxes start from"),
    "init": Command("mcp_sandbox.cli.init", "write a manifest for what is found in a project"),
    "manifest": Command("mcp_sandbox.cli.manifest", "check and explain what a project's manifest says"),
    "policy": Command("mcp_sandbox.cli.policy", "say what holds for sandboxes here, and who said it"),
    "trust": Command("mcp_sandbox.cli.trust", "say yes to a project's manifest as it is now"),
    "doctor": Command("mcp_sandbox.cli.doctor", "try every provider and say what is wrong"),
    "demo": Command("mcp_sandbox.cli.demo", "show what a sandbox can do"),
}


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status: 2 for a mistake of the caller, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _silence_stdout()
        return 141
    except SystemExit as error:  # argparse
        return error.code if isinstance(error.code, int) else 2
    except (Exception, BaseExceptionGroup) as error:
        from mcp_sandbox.core.errors import SandboxError

        if isinstance(cause := _single(error), SandboxError):
            from mcp_sandbox.cli.wording import for_people

            return _fail(for_people(cause))
        raise


def _run(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help", "help") or (not first and _is_terminal()):
        print(_usage())
        return 0
    if first in ("-V", "--version"):
        print(f"mcp-sandbox {__version__}")
        return 0
    if not first or first.startswith("-"):
        arguments = ["serve", *arguments]
        first = "serve"
    if first not in COMMANDS:
        return _fail(f"There is no command {first!r}.{_nearest(first)} `mcp-sandbox --help` lists them all.")
    return int(__import__(COMMANDS[first].module, fromlist=["main"]).main(arguments[1:]))


def _is_terminal() -> bool:
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # it is closed
        return False


def _usage() -> str:
    lines = (f"  {name:<10} {command.summary}" for name, command in COMMANDS.items())
    return _USAGE.format(commands="\n".join(lines)).rstrip("\n")


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def _fail(message: str) -> int:
    print(f"mcp-sandbox: {message}", file=sys.stderr)
    return 2


def _single(error: BaseException) -> BaseException:
    """Return what task groups wrapped, if that is one error."""
    from typing import cast

    while isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        if len(inner) != 1:
            break
        error = inner[0]
    return cast("BaseException", error)


def _silence_stdout() -> None:
    """Keep the interpreter from complaining at its end that nobody reads."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
