"""Where manifests and configurations are found, and how their bytes are read; loads nothing that reads them.

A project's file is written by whoever writes the project, so it is opened like a trap: no link, no pipe, no device. A
user's or an administrator's file says what holds, so nobody else may be able to write it.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from mcp_sandbox.core.errors import ConfigError

__all__ = ["ADMIN_FILE", "PROJECT_NAMES", "FoundFile", "find_files", "has_files", "user_directory", "user_file"]

PROJECT_NAMES: Final = ("mcp-sandbox.yaml", "agent.manifest")
_MISSPELT: Final = ("mcp-sandbox.yml", ".mcp-sandbox.yaml", ".mcp-sandbox.yml", "mcp_sandbox.yaml")
ADMIN_FILE: Final = "/etc/mcp-sandbox/config.yaml"
_MOST_BYTES: Final = 256 * 1024


class FoundFile(NamedTuple):
    """A file that says something."""

    layer: str
    """admin, user or project."""
    name: str
    """What it is called, for a reader: of a project's file the name alone, of a user's without whose it is."""
    data: bytes


def user_directory() -> Path:
    """Return where a user's own files are, whether or not it exists."""
    if (configured := os.environ.get("XDG_CONFIG_HOME", "")).startswith("/"):
        return Path(configured, "mcp-sandbox")
    home = os.environ.get("HOME", "")
    if not home.startswith("/"):  # a client may start a server without it, and what the user decided holds all the same
        import pwd

        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            home = "/nonexistent"
    return Path(home, ".config", "mcp-sandbox")


def user_file() -> Path:
    """Return a user's configuration, whether or not it exists."""
    return user_directory() / "config.yaml"


def has_files(project: str) -> bool:
    """Whether anything may be there; says so of what cannot be used, too."""
    places = [ADMIN_FILE, str(user_file())]
    if project:
        places += [os.path.join(project, name) for name in (*PROJECT_NAMES, *_MISSPELT)]  # noqa: PTH118
    return any(map(_may_be_there, places))


def _may_be_there(path: str) -> bool:
    """Whether there is something, or this user may not even look: what it says would hold."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def find_files(project: str, *, admin: str = ADMIN_FILE, user: Path | None = None) -> "list[FoundFile]":
    """Return what there is of administrator, user and project, in this order.

    Args:
        project: Real path of the project; empty without one.
        admin: The administrator's file.
        user: The user's file; `None` is the usual one.

    Raises:
        ConfigError: One is there and cannot be used.
    """
    found: list[FoundFile] = []
    user = user or user_file()
    for layer, path in (("admin", admin), ("user", str(user))):
        if (data := _owned(path, administrator=layer == "admin")) is not None:
            found.append(FoundFile(layer, _called(path), data))
    if project and (own := _of_project(project)) is not None:
        found.append(own)
    return found


def _called(path: str) -> str:
    """Return a path as it may be told: without the name of whose home it is in."""
    home = os.environ.get("HOME", "")
    return f"~{path[len(home) :]}" if home.startswith("/") and path.startswith(f"{home}/") else path


def _of_project(project: str) -> FoundFile | None:
    there = [name for name in PROJECT_NAMES if os.path.lexists(os.path.join(project, name))]  # noqa: PTH118
    if len(there) > 1:
        raise ConfigError(
            "The project's manifest is not used", why=f"there are two, {' and '.join(there)}", fix="Remove one"
        )
    if not there:
        for name in _MISSPELT:
            if os.path.lexists(os.path.join(project, name)):  # noqa: PTH118
                raise ConfigError(
                    f"{name} is not used", why=f"a manifest is called {PROJECT_NAMES[0]}", fix="Rename or remove it"
                )
        return None
    (name,) = there
    try:
        descriptor = os.open(
            os.path.join(project, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY  # noqa: PTH118
        )  # fmt: skip
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else os.strerror(error.errno or 0).lower()
        raise ConfigError(f"{name} is not used", why=why, fix="Put a file there that can be read") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{name} is not used", why="it is no file", fix="Put a file there")
        return FoundFile("project", name, _read(descriptor))
    finally:
        os.close(descriptor)


def _owned(path: str, *, administrator: bool) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.lexists(path):
            raise _unusable(path, "it is a link to nothing") from None
        return None
    except OSError as error:
        raise _unusable(path, os.strerror(error.errno or 0).lower()) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _unusable(path, "it is no file")
        owners = (0,) if administrator else (0, os.geteuid())
        if found.st_uid not in owners:
            raise _unusable(path, f"it belongs to user {found.st_uid}, who is neither root nor you")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _unusable(path, f"others may write it (mode {stat.S_IMODE(found.st_mode):04o})")
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> bytes:
    """Return all of a file, or a byte more than it may have."""
    data = b""
    while len(data) <= _MOST_BYTES and (more := os.read(descriptor, _MOST_BYTES + 1 - len(data))):
        data += more
    return data


def _unusable(path: str, why: str) -> ConfigError:
    return ConfigError(
        f"{path} cannot be used", why=why, fix="Correct it, `chmod 0644` for example: what it says must hold"
    )
