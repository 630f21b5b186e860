"""Which project a server belongs to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.settings.project import find_project

__all__: list[str] = []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = (tmp_path / "project").resolve()
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a directory that is a project too."""
    here = (tmp_path / "here").resolve()
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def test_b123_the_order_is_argument_own_variable_client_directory(
    project: Path, tmp_path: Path, elsewhere: Path
) -> None:
    own, client = tmp_path / "own", tmp_path / "client"
    own.mkdir()
    client.mkdir()
    environ = {"MCP_SANDBOX_PROJECT": str(own), "CLAUDE_PROJECT_DIR": str(client)}
    assert find_project(str(project), environ) == str(project)
    assert find_project(None, environ) == str(own.resolve())
    del environ["MCP_SANDBOX_PROJECT"]
    assert find_project(None, environ) == str(client.resolve())
    assert find_project(None, {}) == str(elsewhere)


def test_the_path_is_real(project: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(project)
    assert find_project(str(tmp_path / "link"), {}) == str(project)


def test_a_relative_argument_starts_here_and_a_tilde_at_home(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "sub").mkdir()
    monkeypatch.setenv("HOME", str(elsewhere))
    assert find_project("sub", {}) == str(elsewhere / "sub")
    assert find_project("~/sub", {}) == str(elsewhere / "sub")


@pytest.mark.parametrize("where", ["/", "/tmp", "/usr", "/etc", "/proc"])
def test_b123_a_directory_of_the_system_is_no_project(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(where)
    assert find_project(None, {}) == ""
    assert find_project(None, {"CLAUDE_PROJECT_DIR": where}) == ""


def test_b123_the_home_directory_and_what_holds_it_are_no_project(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"HOME": str(project)}
    for where in (project, tmp_path):
        monkeypatch.chdir(where)
        assert find_project(None, environ) == ""
        assert find_project(None, {**environ, "CLAUDE_PROJECT_DIR": str(where)}) == ""
    (project / "app").mkdir()
    monkeypatch.chdir(project / "app")
    assert find_project(None, environ) == str(project / "app")


def test_the_home_of_the_password_database_counts_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    home = os.path.expanduser("~")
    if not os.path.isdir(home):
        pytest.skip("this user has no home")
    monkeypatch.chdir(home)
    assert find_project(None, {}) == ""


@pytest.mark.parametrize("named", ["/", "/nowhere", "${workspaceFolder}", "/etc/passwd"])
def test_what_was_named_on_purpose_must_be_a_directory(named: str) -> None:
    with pytest.raises(ConfigError, match="--project"):
        find_project(named, {})
    with pytest.raises(ConfigError, match="MCP_SANDBOX_PROJECT"):
        find_project(None, {"MCP_SANDBOX_PROJECT": named})


@pytest.mark.parametrize("found", ["/nowhere", "relative", "${workspaceFolder}", "/etc/passwd"])
def test_what_a_client_says_wrongly_is_passed_over(found: str) -> None:
    assert find_project(None, {"CLAUDE_PROJECT_DIR": found}) == ""


def test_a_current_directory_that_was_removed_is_no_project(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os; os.rmdir(os.getcwd()); from mcp_sandbox.settings.project import find_project; "
        "print([find_project(None, {})])"
    )
    root = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=gone, env=environ, capture_output=True, text=True, timeout=20
    )
    assert done.stdout == "['']\n", done.stderr


def test_it_imports_next_to_nothing() -> None:
    code = "import sys; import mcp_sandbox.settings.project; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=20, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    assert not {"pydantic", "asyncio", "anyio", "argparse", "pathlib", "dataclasses", "mcp"} & set(done.stdout.split())
