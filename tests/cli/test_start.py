"""What the command line says and loads before it does anything."""

import os
import pty
import subprocess
import sys

import pytest
from command_line import ROOT, CommandLine

from mcp_sandbox import __version__
from mcp_sandbox.cli import COMMANDS

__all__: list[str] = []

_HEAVY = {"mcp", "mcp_types", "pydantic", "docker", "e2b", "starlette", "httpx", "regex", "pytest"}
_NOT_FOR_HELP = _HEAVY | {"asyncio", "anyio", "argparse", "dataclasses", "pathlib", "importlib.metadata", "inspect"}
_OURS = sorted(set(COMMANDS) - {"demo"})


def _loaded(*arguments: str, **variables: str) -> set[str]:
    """Return the modules that a run of the command line loads."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('\\nLOADED', *sys.modules, file=sys.stderr))\n"
        "from mcp_sandbox.cli import main\n"
        f"main({list(arguments)!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "LOADED" in done.stderr, done.stderr
    return set(done.stderr.rpartition("LOADED")[2].split())


@pytest.mark.parametrize("option", ["--help", "-h", "help"])
def test_help_lists_every_command_with_an_example(cli: CommandLine, option: str) -> None:
    text = cli.say(option)
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert "example" in text
    assert max(len(line) for line in text.split("\n")) <= 80


@pytest.mark.parametrize("command", _OURS)
def test_the_help_of_a_command_has_an_example(cli: CommandLine, command: str) -> None:
    text = cli.say(command, "--help")
    assert text.startswith(f"usage: mcp-sandbox {command}")
    assert f"example:\n  mcp-sandbox {command}" in text or "| mcp-sandbox" in text


def test_the_version_is_that_of_the_package(cli: CommandLine) -> None:
    assert cli.say("--version") == f"mcp-sandbox {__version__}\n"


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("exce",)])
def test_help_and_version_load_next_to_nothing(arguments: tuple[str, ...]) -> None:
    assert not _NOT_FOR_HELP & _loaded(*arguments)


@pytest.mark.parametrize("command", ["ls", "rm", "exec", "snapshot"])
def test_commands_load_neither_the_protocol_nor_an_sdk(command: str, cli: CommandLine) -> None:
    arguments = {"ls": ["ls"], "rm": ["rm", "x"], "exec": ["exec", "--", "true"], "snapshot": ["snapshot", "list"]}
    loaded = _loaded(*arguments[command], **cli.environment)
    assert not _HEAVY & loaded
    others = {f"mcp_sandbox.cli.{name}" for name in COMMANDS} - {f"mcp_sandbox.cli.{command}"}
    assert not others & loaded
    assert not {"mcp_sandbox.tools", "mcp_sandbox.transport", "mcp_sandbox.service.execution"} & loaded


@pytest.mark.parametrize(("given", "meant"), [("exce", "exec"), ("snapshots", "snapshot"), ("doctr", "doctor")])
def test_an_unknown_command_suggests_the_nearest(cli: CommandLine, given: str, meant: str) -> None:
    done = cli.run(given)
    assert done.returncode == 2
    assert f"Did you mean {meant!r}?".encode() in done.stderr
    assert done.stdout == b""


@pytest.mark.parametrize(
    "arguments",
    [
        ("exec",),
        ("exec", "--timeout", "x", "--", "true"),
        ("exec", "--timeout", "-1", "--", "true"),
        ("exec", "--cwd", "a\nb" * 5000, "--", "true"),
        ("exec", "--sandbox", "nosuch", "--", "true"),
        ("exec", "--provider", "nosuch", "--", "true"),
        ("exec", "--project", "/nowhere", "--", "true"),
        ("rm",),
        ("rm", "nosuch"),
        ("snapshot",),
        ("snapshot", "crate"),
        ("snapshot", "restore", "abc"),
        ("snapshot", "restore", "abc", "/"),
        ("snapshot", "delete", "abc"),
        ("snapshot", "create", "--note", "x" * 501),
        ("serve", "--tools", "most"),
        ("serve", "--tool-prefix", "a b"),
        ("serve", "--nosuch"),
        ("serve", "--project", "/nowhere"),
        ("--nosuch",),
    ],
)
def test_b129_a_mistake_is_one_message_and_status_2(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    done = cli.run(*arguments)
    assert done.returncode == 2, done
    assert done.stdout == b""
    assert done.stderr


@pytest.mark.parametrize("command", [("ls",), ("exec", "--", "true"), ("doctor",), ("snapshot", "list")])
def test_b129_a_state_directory_that_cannot_be_used_is_a_message(cli: CommandLine, command: tuple[str, ...]) -> None:
    cli.variables["MCP_SANDBOX_HOME"] = "relative"
    done = cli.run(*command)
    assert done.returncode == 2
    assert b"MCP_SANDBOX_HOME" in done.stderr


def test_an_unknown_provider_leaves_no_directory(cli: CommandLine) -> None:
    assert cli.run("exec", "--provider", "bogus", "--", "true").returncode == 2
    assert not list(cli.home.glob("providers/*"))


def test_a_project_that_holds_the_state_is_refused(cli: CommandLine) -> None:
    cli.variables["MCP_SANDBOX_HOME"] = str(cli.project / "state")
    done = cli.run("exec", "--", "true")
    assert done.returncode == 2
    assert b"holds the state" in done.stderr
    assert cli.run("ls").returncode == 0, "what only looks makes nothing that could show it"


def test_without_a_command_a_terminal_gets_help(cli: CommandLine) -> None:
    ours, theirs = pty.openpty()
    try:
        with cli.start(stdin=theirs) as process:
            out, _ = process.communicate(timeout=20)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 0
    assert out.startswith(b"usage: mcp-sandbox")


_INITIALIZE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
    b'"clientInfo":{"name":"t","version":"1"}}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}\n'
)


@pytest.mark.parametrize(
    "arguments", [(), ("serve",), ("--tools=full", "--tool-prefix", "sb_"), ("serve", "--project", ".")]
)
def test_without_a_command_a_pipe_gets_a_server(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    done = cli.run(*arguments, stdin=_INITIALIZE)
    assert done.returncode == 0, done.stderr
    assert b'"exec"' in done.stdout or b'"sb_exec"' in done.stdout
    assert (b"snapshot_delete" in done.stdout) is ("--tools=full" in arguments)
    assert done.stderr == b""


def test_b129_a_server_that_cannot_work_says_why_on_stderr_and_in_every_answer(cli: CommandLine) -> None:
    cli.variables["MCP_SANDBOX_HOME"] = "relative"
    call = b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"sandbox_list","arguments":{}}}\n'
    done = cli.run("serve", stdin=_INITIALIZE + call * 2)
    assert done.returncode == 0
    assert done.stderr.count(b"MCP_SANDBOX_HOME") == 2  # once as the cause, once as the remedy
    assert done.stdout.count(b'"isError":true') == 2


def test_b077_a_server_that_is_only_verified_makes_nothing(cli: CommandLine) -> None:
    for _ in range(3):
        cli.run("serve", stdin=_INITIALIZE)
    assert not cli.home.exists()


def test_the_real_server_loads_of_the_sdk_what_it_needs_and_the_rest_is_still_there() -> None:
    code = (
        "import sys\n"
        "from mcp_sandbox.cli.loading import load_real_server\n"
        "load_real_server()\n"
        "print(*sys.modules)\n"
        "from mcp import Client\n"
        "from mcp.server import MCPServer\n"
        "import mcp\n"
        "print(mcp.Client is Client, mcp.server.MCPServer is MCPServer, mcp.server.lowlevel.Server.__name__)\n"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    loaded, rest = shown.stdout.splitlines()
    assert "mcp.server.lowlevel.server" in loaded.split()
    assert not {"mcp.client", "mcp.server.mcpserver", "httpx2"} & set(loaded.split())
    assert rest == "True True Server"
