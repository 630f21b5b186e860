"""`doctor` on machines that lack something: it names the step, reason and remedy. The lack is real each time."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, CommandLine

from mcp_sandbox.engines.fences import FENCES, LIMIT_FENCES

__all__: list[str] = []

pytestmark = pytest.mark.timeout(180)  # a base is built and removed for some of them

RESTRICTED = Path(__file__).parent / "restricted.py"


def _doctor(cli: CommandLine, *steps: str, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what doctor finds where the steps took something away."""
    command = [sys.executable, "-m", "mcp_sandbox", "doctor", "local", "--json"]
    restricted = [sys.executable, str(RESTRICTED), *steps, "--", *prefix, *command]
    done = subprocess.run(
        restricted, cwd=cli.project, env=cli.environment, capture_output=True, check=False, timeout=60
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    (finding,) = json.loads(done.stdout)
    assert done.returncode == (0 if finding["ok"] else 1)
    assert "docker`" not in json.dumps(finding)
    return finding


@pytest.fixture
def cli(tmp_path: Path, state_directory: Path) -> CommandLine:
    """A command line whose state directory can hold layers."""
    project = tmp_path / "project"
    project.mkdir()
    (state_directory / "doctor").mkdir(exist_ok=True)
    return CommandLine(home=state_directory / "doctor" / "state", project=project)


def test_doctor_shows_every_fence_and_what_each_step_took(cli: CommandLine) -> None:
    finding = _doctor(cli)  # in a user namespace of its own, as in a container
    assert finding["ok"], finding
    names = [fence["name"] for fence in finding["fences"]]
    limits = {name for name, _ in LIMIT_FENCES.values()}  # where this machine can enforce them
    assert [name for name in names if name not in limits] == list(FENCES)
    assert all(fence["holds"] for fence in finding["fences"])
    assert list(finding["milliseconds"]) == ["state", "load", "open", "self-test", "create", "exec", "destroy"]
    done = cli.run("doctor", "local")
    assert done.stdout.decode().count("\n  holds ") >= len(FENCES)


def test_hidden_parts_of_proc(cli: CommandLine) -> None:
    """As in a container without `systempaths=unconfined`."""
    finding = _doctor(cli, "mask:/proc/timer_list")
    assert finding["failed_at"] == "self-test"
    assert "mount proc" in finding["why"]
    assert "/proc are hidden" in finding["why"]
    assert "systempaths=unconfined" in finding["fix"]


def test_a_seccomp_profile_that_refuses_namespaces(cli: CommandLine) -> None:
    finding = _doctor(cli, "refuse-namespaces")
    assert "may not make user namespaces" in finding["why"]
    assert "seccomp=unconfined" in finding["fix"]


def test_user_namespaces_that_are_switched_off(cli: CommandLine) -> None:
    finding = _doctor(cli, "sysctl:user.max_user_namespaces=0")
    assert "user.max_user_namespaces is 0" in finding["why"]
    assert "sysctl -w user.max_user_namespaces=" in finding["fix"]


def test_no_more_namespaces_by_a_limit_further_out(cli: CommandLine) -> None:
    finding = _doctor(cli, "sysctl:user.max_net_namespaces=0")
    assert "no more namespaces" in finding["why"]


def test_a_state_directory_on_overlayfs(cli: CommandLine, tmp_path: Path) -> None:
    cli.home = tmp_path / "overlay" / "state"
    cli.home.parent.mkdir()
    finding = _doctor(cli, f"overlay:{cli.home.parent}")
    assert "the state directory is on overlay" in finding["why"]
    assert "MCP_SANDBOX_HOME" in finding["fix"]


@pytest.mark.parametrize("size", ["16k", "300k", "1m"])
def test_a_full_state_directory(cli: CommandLine, tmp_path: Path, size: str) -> None:
    cli.home = tmp_path / "small" / "state"
    cli.home.parent.mkdir()
    finding = _doctor(cli, f"tmpfs:{size}:{cli.home.parent}")
    assert "No space left" in finding["why"]
    assert "Make room" in finding["fix"] or "larger disk" in finding["fix"]


def test_a_state_directory_that_is_read_only(cli: CommandLine, tmp_path: Path) -> None:
    cli.home = tmp_path / "fixed"
    cli.home.mkdir(mode=0o700)
    finding = _doctor(cli, f"read-only:{cli.home}")
    assert finding["failed_at"] == "state"
    assert "Read-only file system" in finding["why"]
    assert "MCP_SANDBOX_HOME" in finding["fix"]


def test_a_machine_that_says_it_has_32_bits(cli: CommandLine) -> None:
    if (linux32 := shutil.which("linux32")) is None:
        pytest.skip("no linux32 here")
    finding = _doctor(cli, prefix=(linux32,))
    assert "64-bit" in finding["fix"]


def test_a_missing_guest_program(cli: CommandLine, tmp_path: Path) -> None:
    package = tmp_path / "installed" / "mcp_sandbox"
    shutil.copytree(ROOT / "mcp_sandbox", package, ignore=shutil.ignore_patterns("bin", "__pycache__"))
    environment = {**cli.environment}
    elsewhere = [path for path in environment["PYTHONPATH"].split(os.pathsep) if path != str(ROOT)]
    environment["PYTHONPATH"] = os.pathsep.join([str(package.parent), *elsewhere])
    command = [sys.executable, "-m", "mcp_sandbox", "doctor", "local", "--json"]
    done = subprocess.run(command, cwd=cli.project, env=environment, capture_output=True, check=False)
    (finding,) = json.loads(done.stdout)
    assert done.returncode == 1
    assert "guest agent is missing" in finding["why"]
    assert "Install it again" in finding["fix"]
