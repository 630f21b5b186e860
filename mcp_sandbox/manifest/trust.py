"""Which manifests of projects a user said yes to: by path and digest, so that a changed file is a stranger again."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.manifest.discovery import user_directory
from mcp_sandbox.store.atomic import write_atomically

__all__ = ["forget_trust", "is_trusted", "trust", "trusted_file"]

_SCHEMA: Final = 1


def trusted_file() -> Path:
    """Return where the answers are."""
    return user_directory() / "trusted.json"


def is_trusted(project: str, name: str, digest: str) -> bool:
    """Whether the user said yes to a project's file as it is now."""
    return _read().get(_key(project, name)) == digest


def trust(project: str, name: str, digest: str) -> None:
    """Remember the user's yes to a file with this digest."""
    _write({**_read(), _key(project, name): digest})


def forget_trust(project: str, names: Sequence[str]) -> bool:
    """Take back every yes to files of a project; return whether there was one."""
    answers = _read()
    kept = {path: digest for path, digest in answers.items() if path not in [_key(project, name) for name in names]}
    if kept != answers:
        _write(kept)
    return kept != answers


def _key(project: str, name: str) -> str:
    return os.path.join(project, name)  # noqa: PTH118


def _read() -> "dict[str, str]":
    path = trusted_file()
    try:
        found = path.stat()
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            raise ConfigError(
                f"{path} cannot be used", why="others may write it", fix="`chmod 0600` it if it is yours, or remove it"
            )
        data: Any = json.loads(path.read_bytes())
        if data["schema"] > _SCHEMA:
            raise ConfigError(f"{path} cannot be used", why="a newer mcp-sandbox wrote it", fix="Upgrade mcp-sandbox")
        return {str(name): str(digest) for name, digest in data["trusted"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be used", why=f"it is damaged ({error!r})", fix="Remove it") from error


def _write(answers: "dict[str, str]") -> None:
    path = trusted_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"schema": _SCHEMA, "trusted": answers}, indent=1).encode(), durable=False)
    path.chmod(0o600)
