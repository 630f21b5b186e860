"""PRIV-05: a server that a person started in a terminal, and programs that would type there."""

import os
import pty
import signal
import sys
from pathlib import Path

from mcp_sandbox.testing.probes import TERMINALS

COMMAND = """
import os, subprocess, sys
terminal = os.open(os.ttyname(0), os.O_RDWR)
control = subprocess.run(["python3", "-c", sys.argv[1]], stdout=subprocess.PIPE, stdin=terminal).stdout
inside = subprocess.run(
    [sys.executable, "-m", "mcp_sandbox", "exec", "--project", sys.argv[2], "--", "python3", "-c", sys.argv[1]],
    stdout=subprocess.PIPE, stdin=terminal, stderr=terminal,
).stdout
with open(sys.argv[3], "wb") as file:
    file.write(control + b"=====" + inside)
"""
"""Started with a controlling terminal, which every program outside can open, and with it as input."""


def test_priv05_a_program_inside_does_not_have_the_terminal_of_its_server(
    home: Path, project: Path, tmp_path: Path
) -> None:
    """PRIV-05, CVE-2017-5226: `/dev/tty` is nobody's there, and no descriptor leads to it."""
    told = tmp_path / "told"
    pid, master = pty.fork()
    if pid == 0:
        os.environ["MCP_SANDBOX_HOME"] = str(home)
        os.execv(sys.executable, [sys.executable, "-c", COMMAND, TERMINALS, str(project), str(told)])
    seen = b""
    try:
        while True:
            seen += os.read(master, 65536)
    except OSError:  # the terminal's last program has ended
        pass
    finally:
        os.close(master)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGHUP), seen
    control, _, inside = told.read_bytes().partition(b"=====")
    assert b"/dev/tty [Errno" not in control or b"INJECTED" in control, "the control: outside it can be opened"
    assert b"/dev/tty" in inside
    assert b"INJECTED" not in inside
    assert b"No such device or address: '/dev/tty'" in inside, "there is no controlling terminal"
