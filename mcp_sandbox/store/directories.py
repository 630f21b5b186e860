"""Where state lives on the host: one private directory per OS user, found without trusting the environment blindly."""

import errno
import os
import pwd
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.store.atomic import write_atomically

__all__ = ["LAYOUT", "StateDirectories", "open_state", "state_root"]

LAYOUT = 1
"""Of the directories below the root. It rises when an older version would misread them; records have their own."""

_HOME_VARIABLE = "MCP_SANDBOX_HOME"
_FIX = f"Set {_HOME_VARIABLE} to the absolute path of a directory that belongs to you and that only you can write"


@dataclass(frozen=True, slots=True)
class StateDirectories:
    """The directories below one state root."""

    root: Path

    @property
    def registry(self) -> Path:
        """One directory per sandbox."""
        return self.root / "registry"

    @property
    def snapshots(self) -> Path:
        """One record per snapshot."""
        return self.root / "snapshots"

    @property
    def applied(self) -> Path:
        """What came home, one directory per project."""
        return self.root / "applied"

    def provider(self, name: str) -> Path:
        """Return the directory that belongs to one provider, made on first use."""
        path = self.root / "providers" / name
        _make_private(path)
        return path


def state_root(environ: Mapping[str, str]) -> Path:
    """Return the state root that an environment asks for, without touching it.

    `$MCP_SANDBOX_HOME`, else `$XDG_DATA_HOME/mcp-sandbox`, else `~/.local/share/mcp-sandbox`. Clients start servers
    with an empty `HOME`, `sudo` with somebody else's: then the password database says where home is.

    Raises:
        ConfigError: No place can be named.
    """
    if own := environ.get(_HOME_VARIABLE):
        if not own.startswith("/"):
            raise ConfigError("No state directory", why=f"{_HOME_VARIABLE} is not an absolute path ({own!r})", fix=_FIX)
        return Path(own)
    # The XDG base directory specification: a relative path is to be ignored.
    if (data := environ.get("XDG_DATA_HOME", "")).startswith("/"):
        return Path(data) / "mcp-sandbox"
    return _home(environ) / ".local" / "share" / "mcp-sandbox"


def open_state(environ: Mapping[str, str] = os.environ) -> StateDirectories:
    """Make the state directories where they are missing, 0700, and check that they are ours alone.

    Raises:
        ConfigError: They cannot be made, belong to another user, or can be written by others.
    """
    state = StateDirectories(state_root(environ))
    _make_private(state.root)
    _check_layout(state.root / "version")
    for path in (state.registry, state.snapshots, state.root / "providers"):
        _make_private(path)
    return state


def _check_layout(version: Path) -> None:
    """Refuse what a newer mcp-sandbox laid out; note the layout where none is noted, as the first versions did not."""
    try:
        text = version.read_text("ascii").strip()
    except FileNotFoundError:
        text = ""
    except (OSError, ValueError) as error:
        raise _unusable(version, f"it cannot be read ({error})") from error
    if text == str(LAYOUT):
        return
    if text and not text.isdecimal():
        raise _unusable(version, "it does not hold a number")
    if text and int(text) > LAYOUT:
        raise ConfigError(
            "State directory not used",
            why=f"a newer mcp-sandbox laid it out (layout {text}, this version knows {LAYOUT})",
            fix=f"Upgrade mcp-sandbox, or set {_HOME_VARIABLE} to another directory",
        )
    try:
        write_atomically(version, f"{LAYOUT}\n".encode())
    except OSError as error:
        raise _unusable(version, str(error.strerror)) from error


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "State directory unusable",
        why=f"{path.name!r}: {why}",
        fix=f"Make room or mend it, or set {_HOME_VARIABLE} to another directory",
    )


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME", "")
    if home.startswith("/") and home != "/" and _is_ours(home):
        return Path(home)
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        home = ""
    if home.startswith("/") and home != "/" and _is_ours(home):
        return Path(home)
    raise ConfigError(
        "No state directory",
        why=f"neither HOME nor the password database names a home directory of user {os.geteuid()}",
        fix=_FIX,
    )


def _is_ours(path: str) -> bool:
    try:
        return Path(path).stat().st_uid == os.geteuid()
    except OSError:
        return False


def _make_private(path: Path) -> None:
    """Make one directory with its parents and check it; an existing one is never changed."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.stat()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise _unusable(path, str(error.strerror)) from error
        raise ConfigError("State directory unusable", why=f"{path.name!r}: {error.strerror}", fix=_FIX) from error
    if found.st_uid != os.geteuid():
        raise ConfigError(
            "State directory unusable",
            why=f"{path.name!r} belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}",
            fix=_FIX,
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            "State directory unusable",
            why=f"others can write to {path.name!r}",
            fix="Run chmod go-w on it",
        )
