"""`serve --pool N`: sandboxes that are ready when somebody asks for another one, and of which nothing is left."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.interaction.wire_client import WireClient, processes_below, wait_until_gone

BLANK = "providers/local/sandboxes/ready-*"
READY_S = 60.0


def _ready(home: Path, count: int) -> "set[str]":
    """Return the directories of blank sandboxes, as soon as there are so many that were started."""
    end = time.monotonic() + READY_S
    while (
        len(found := {path.parent.name for path in home.glob("providers/local/sandboxes/ready-*/agent.sock")}) != count
    ):
        assert time.monotonic() < end, found
        time.sleep(0.01)
    return found


def test_the_next_sandboxes_are_ready_and_go_with_the_server(
    start: Callable[..., WireClient], home: Path, project: Path
) -> None:
    server = start("serve", "--pool", "2", "--project", str(project))
    server.exec("true")
    ready = _ready(home, 2)
    (project / "late").write_text("written later\n")
    made = server.call("sandbox_create", name="second")
    assert not made.is_error, made.text
    assert len(ready & _ready(home, 2)) == 1
    assert server.exec("cat late", sandbox="second").body.strip() == "written later"
    listed = server.call("sandbox_list").text
    assert "second" in listed
    assert "ready-" not in listed
    left = processes_below(server.process.pid)
    assert server.close() == 0
    assert not wait_until_gone(left, 5)
    assert _ready(home, 0) == set()


def test_of_a_killed_server_s_pool_nothing_is_left(start: Callable[..., WireClient], home: Path) -> None:
    server = start("serve", env={"MCP_SANDBOX_POOL": "2"})
    server.exec("true")
    _ready(home, 2)
    left = processes_below(server.process.pid)
    server.process.kill()
    server.process.wait()
    assert not wait_until_gone(left, 5)
    command = [sys.executable, "-m", "mcp_sandbox", "gc"]
    assert len(list(home.glob(BLANK))) == 2
    subprocess.run(command, env=_environment(home), check=True, capture_output=True)
    assert not list(home.glob(BLANK))


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
    return {"PATH": "/usr/bin:/bin", "HOME": "", "MCP_SANDBOX_HOME": str(home), **kept}


def test_a_pool_that_is_no_number_is_refused(home: Path) -> None:
    command = [sys.executable, "-m", "mcp_sandbox", "serve", "--pool", "many"]
    done = subprocess.run(command, env=_environment(home), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode != 0
    assert "--pool='many' cannot be used" in done.stderr.decode()
