"""What we remember of containers on this side: variables and limits, which labels would show to whoever looks.

owner                 names this state directory; a label of everything that is made for it
sandboxes/<id>.json   written when a container is ready: one without was never finished
"""

import json
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mcp_sandbox.core.errors import NotFoundError, StateError
from mcp_sandbox.core.sandbox import Limits, SandboxId
from mcp_sandbox.hostfs.atomic import write_atomically, write_once

__all__ = ["ContainerState", "ContainerStates"]

SCHEMA: Final = 1
_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """One sandbox."""

    id: str
    created_at: str
    image: str
    """As it was asked for."""
    image_id: str
    """The engine's own name for its content."""
    uid: int
    gid: int
    user: str
    home: str
    env: dict[str, str]
    """Of every command: ours, the image's, the sandbox's."""
    limits: Limits
    workspace: str
    """The mode of its workspace."""
    runtime: str = ""
    """That it runs on, as the engine names it; empty is the engine's default."""
    engine_id: str = ""
    """Of the engine that has it; empty if that has none."""
    schema: int = SCHEMA


class ContainerStates:
    """All of one state directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / "sandboxes").mkdir(parents=True, exist_ok=True, mode=0o700)
        root.chmod(0o700)
        write_once(root / "owner", secrets.token_hex(10).encode())
        self.owner = (root / "owner").read_text("ascii")

    def save(self, state: ContainerState) -> None:
        """Write the state of a sandbox, in place of an older one."""
        write_atomically(self._path(state.id), json.dumps(asdict(state)).encode(), durable=False)

    def load(self, sandbox: SandboxId) -> ContainerState:
        """Return the state of a sandbox.

        Raises:
            NotFoundError: There is none: it was never finished, or belongs to another state directory.
            StateError: It is damaged.
        """
        path = self._path(sandbox)
        try:
            fields: dict[str, Any] = json.loads(path.read_bytes())
            fields["limits"] = Limits(**fields["limits"])
            return ContainerState(**fields)
        except FileNotFoundError:
            raise NotFoundError(
                f"No sandbox {sandbox!r}", why="provider 'docker' has no record of it", fix="Create another one"
            ) from None
        except (ValueError, TypeError, KeyError) as error:
            raise StateError(
                f"Sandbox {sandbox!r} cannot be used", why=f"its record is damaged ({error})", fix="Destroy it"
            ) from error

    def has(self, sandbox: str) -> bool:
        """Whether a sandbox was finished."""
        return bool(_ID.fullmatch(sandbox)) and self._path(sandbox).exists()

    def forget(self, sandbox: str) -> None:
        """Remove what is remembered of a sandbox. No-op if that is nothing."""
        self._path(sandbox).unlink(missing_ok=True)

    def names(self) -> "list[SandboxId]":
        """Return every sandbox that was finished."""
        return [SandboxId(path.stem) for path in sorted((self._root / "sandboxes").glob("*.json"))]

    def _path(self, sandbox: str) -> Path:
        if not _ID.fullmatch(sandbox):
            raise NotFoundError(f"No sandbox {sandbox!r}", why="no id looks like that", fix="Correct it")
        return self._root / "sandboxes" / f"{sandbox}.json"
