"""Limits as a client meets them: asked for at the start of a server, enforced, named as causes, told once."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interaction.wire_client import WireClient

__all__: list[str] = []

_TIGHT = (
    "--memory", "200MiB", "--pids=64", "--disk", "64MiB", "--inodes", "2000", "--best-effort",
)  # fmt: skip


@pytest.fixture
def tight(start: Callable[..., WireClient]) -> WireClient:
    """A server with every limit but one, as well as this machine can."""
    return start("serve", *_TIGHT)


def test_each_limit_is_a_cause_of_its_own_and_says_its_value(tight: WireClient) -> None:
    first = tight.exec("python3 -c 'x = bytearray(1 << 30)'")
    assert "200 MiB" in first.text or "MemoryError" in first.text
    if "limit memory is not enforced" not in first.text:
        assert "ended=oom" in first.header
    crowd = tight.exec("sh -c 'for n in $(seq 200); do sleep 1 & done; wait'", timeout_s=20)
    assert "ended=pids" in crowd.header
    assert "limit of 64 processes" in crowd.text
    assert not crowd.is_error
    full = tight.exec("head -c 100000000 /dev/zero > big")
    assert "ended=disk" in full.header
    assert "64 MiB" in full.text
    assert tight.exec("rm big; echo room > small; cat small").body.splitlines()[-1] == "room"


def test_no_command_outlives_the_limit_in_the_background_either(start: Callable[..., WireClient]) -> None:
    server = start("serve", "--command-time", "2s")
    late = server.exec("sleep 60")
    assert "ended=timeout" in late.header
    assert "longer than 2 s" in late.text
    job = server.exec("sleep 60", run_in_background=True)
    assert "status=running" in job.header
    assert "ended=timeout" in server.call("job", job_id="j1", action="wait", wait_s=30).text


def test_what_this_machine_cannot_enforce_is_told_once_and_listed(tight: WireClient) -> None:
    told = tight.exec("true").text
    weak = told.count("is not enforced")
    assert "is not enforced" not in tight.exec("true").text
    listed = tight.call("sandbox_list").text
    assert "memory 200 MiB" in listed
    assert "(best effort)" in listed
    assert weak <= 3


def test_other_limits_for_a_sandbox_that_exists_are_told(start: Callable[..., WireClient], project: Path) -> None:
    scope = ("serve", "--project", str(project))
    assert "ulimit" not in start(*scope, "--open-files", "300").exec("ulimit -n").text
    again = start(*scope, "--open-files=400").exec("ulimit -n")
    assert again.body.splitlines()[-1] == "300"
    assert "open files 300" in again.text
    assert "open files 400" in again.text
    assert "open files" not in start(*scope).exec("true").text, "nobody asked for anything else"


def test_a_limit_that_cannot_hold_is_refused_with_the_way_out(start: Callable[..., WireClient]) -> None:
    server = start("serve", "--disk", "64MiB")
    answer = server.exec("true")
    if not answer.is_error:
        pytest.skip("this machine enforces the limit of the disk")
    assert "Limit refused: disk 64 MiB" in answer.text
    assert "--best-effort" in answer.text
    assert "disk_bytes" not in answer.text
    assert server.call("sandbox_list").text.startswith("No sandboxes")


def test_limits_may_come_from_the_environment_and_forks_keep_them(start: Callable[..., WireClient]) -> None:
    server = start("serve", "--tools", "full", env={"MCP_SANDBOX_OPEN_FILES": "333"})
    assert server.exec("ulimit -n").body.strip() == "333"
    assert not server.call("sandbox_fork", name="twin").is_error
    assert server.exec("ulimit -n", sandbox="twin").body.strip() == "333"


def test_a_limit_that_cannot_be_understood_is_said_before_anything_is_served(home: Path) -> None:
    command = [sys.executable, "-m", "mcp_sandbox", "serve", "--memory", "plenty"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "", "MCP_SANDBOX_HOME": str(home)}
    done = subprocess.run(command, input=b"", capture_output=True, check=False, env=environment, cwd=Path.cwd())
    assert done.returncode == 2
    assert b"--memory='plenty'" in done.stderr
    assert done.stdout == b""
