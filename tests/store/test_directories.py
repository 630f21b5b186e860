"""Where state lives."""

import os
import pwd
import stat
from pathlib import Path

import pytest

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.store.directories import LAYOUT, open_state, state_root

__all__: list[str] = []


def test_own_variable_comes_first(tmp_path: Path) -> None:
    environ = {"MCP_SANDBOX_HOME": str(tmp_path / "own"), "XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    assert state_root(environ) == tmp_path / "own"


def test_xdg_data_home_comes_second(tmp_path: Path) -> None:
    assert state_root({"XDG_DATA_HOME": str(tmp_path), "HOME": "/nowhere"}) == tmp_path / "mcp-sandbox"


def test_a_relative_xdg_data_home_is_ignored(tmp_path: Path) -> None:
    root = state_root({"XDG_DATA_HOME": "data", "HOME": str(tmp_path)})
    assert root == tmp_path / ".local" / "share" / "mcp-sandbox"


def _has_home() -> bool:
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir).stat().st_uid == os.geteuid()
    except (KeyError, OSError):
        return False


@pytest.mark.skipif(not _has_home(), reason="this user has no home in the password database")
@pytest.mark.parametrize(
    "environ", [{}, {"HOME": ""}, {"HOME": "/"}, {"HOME": "relative"}, {"HOME": "/nowhere/at/all"}]
)
def test_b123_without_a_usable_home_the_password_database_decides(environ: dict[str, str]) -> None:
    root = state_root(environ)
    assert root.is_absolute()
    assert root.parts[-3:] == (".local", "share", "mcp-sandbox")
    assert root.parents[2].stat().st_uid == os.geteuid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can own something as somebody else")
def test_the_home_of_another_user_is_not_used(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    assert tmp_path not in state_root({"HOME": str(tmp_path)}).parents


def test_a_relative_own_variable_is_refused_and_names_itself() -> None:
    with pytest.raises(ConfigError, match="MCP_SANDBOX_HOME"):
        state_root({"MCP_SANDBOX_HOME": "state"})


def test_directories_are_made_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        state = open_state({"MCP_SANDBOX_HOME": str(tmp_path / "deep" / "state")})
    finally:
        os.umask(old)
    for path in (state.root, state.registry, state.snapshots, state.provider("memory")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    assert open_state({"MCP_SANDBOX_HOME": str(state.root)}) == state


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can own something as somebody else")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "state"
    root.mkdir(mode=0o700)
    os.chown(root, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        open_state({"MCP_SANDBOX_HOME": str(root)})


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "state"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(ConfigError, match="others can write"):
        open_state({"MCP_SANDBOX_HOME": str(root)})
    assert stat.S_IMODE(root.stat().st_mode) == 0o777


@pytest.mark.skipif(_has_home(), reason="this user has a home")
def test_b123_a_user_without_a_home_is_told_what_to_set() -> None:
    with pytest.raises(ConfigError, match="MCP_SANDBOX_HOME"):
        state_root({})


def test_errors_do_not_tell_host_paths(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        open_state({"MCP_SANDBOX_HOME": str(tmp_path / "file" / "state")})
    assert str(tmp_path) not in str(caught.value)
    assert "MCP_SANDBOX_HOME" in caught.value.fix


def _opened(root: Path) -> Path:
    return open_state({"MCP_SANDBOX_HOME": str(root)}).root / "version"


def test_the_layout_is_noted_once_and_found_again(tmp_path: Path) -> None:
    version = _opened(tmp_path / "state")
    assert version.read_text() == f"{LAYOUT}\n"
    before = version.stat().st_ino
    assert _opened(tmp_path / "state").stat().st_ino == before


def test_a_directory_of_the_first_versions_is_accepted(tmp_path: Path) -> None:
    """They noted no layout."""
    record = tmp_path / "state" / "registry" / "sb_aaaaaaaaaaaaaaaaaaaaaaaaaa"
    record.mkdir(parents=True)
    (tmp_path / "state").chmod(0o700)
    assert _opened(tmp_path / "state").read_text() == f"{LAYOUT}\n"
    assert record.is_dir()


@pytest.mark.parametrize(("text", "why"), [("2\n", "newer mcp-sandbox"), ("\0", "not hold a number"), ("x", "number")])
def test_a_newer_or_damaged_layout_is_refused_and_left_alone(tmp_path: Path, text: str, why: str) -> None:
    version = _opened(tmp_path / "state")
    version.write_text(text)
    with pytest.raises(ConfigError, match=why):
        _opened(tmp_path / "state")
    assert version.read_text() == text
