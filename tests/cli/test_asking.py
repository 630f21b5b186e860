"""Rules for commands at the command line: the person who typed one is the one to ask."""

import os
import pty
import subprocess
import sys

import pytest
from command_line import CommandLine

__all__: list[str] = []

MANIFEST = "capabilities: {commands: {ask: [echo], denied: [dd]}}\n"


@pytest.fixture
def ruled(machine: CommandLine) -> CommandLine:
    (machine.project / "mcp-sandbox.yaml").write_text(MANIFEST)
    return machine


def at_terminal(machine: CommandLine, answer: str, *command: str) -> tuple[int, str]:
    """Run a command with a terminal of its own, answer its question, and return its status and all that was shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(machine.project)
        os.execve(sys.executable, [sys.executable, "-m", "mcp_sandbox", "exec", "--", *command], machine.environment)
    shown = b""
    try:
        while b"[y/N]" not in shown and (chunk := _more(terminal)):
            shown += chunk
        os.write(terminal, answer.encode())
        while chunk := _more(terminal):
            shown += chunk
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), shown.decode().replace("\r\n", "\n")


def _more(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO is how a terminal says that nobody is there any more
        return b""


@pytest.mark.parametrize(
    ("answer", "status", "said"), [("y\n", 0, "\nran\n"), ("\n", 2, "said no"), ("n\n", 2, "said no")]
)
def test_a_command_that_a_rule_wants_asked_about_is_asked_about_at_the_terminal(
    ruled: CommandLine, answer: str, status: int, said: str
) -> None:
    ended, shown = at_terminal(ruled, answer, "echo", "ran")
    assert "  | echo ran" in shown
    assert "meets the rule `echo`" in shown
    assert ended == status
    assert said in shown


@pytest.mark.parametrize(
    ("command", "said"), [(("sh", "-c", "true | dd"), "rule `dd`"), (("echo", "x"), "cannot be done here")]
)
def test_without_a_terminal_or_against_a_rule_nothing_runs(
    ruled: CommandLine, command: tuple[str, ...], said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mcp_sandbox", "exec", "--", *command], cwd=ruled.project, env=ruled.environment,
        stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr.decode()
    assert ruled.sandboxes() == []
