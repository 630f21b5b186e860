"""The directories that every layer and every start of a sandbox begins with, on the path of each `create` and `fork`.

Paths are text here: a dozen of them are made each time, and objects for them took as long as the kernel.
"""

# ruff: noqa: PTH101, PTH102, PTH116

import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mcp_sandbox.engines.identity import Identity

__all__ = ["VOLUMES", "LayerDirectories", "holds_anything", "holds_attributes"]

VOLUMES: Final = {"root": "/", "usr": "/usr", "workspace": "/workspace"}
"""Directories of a layer and where each one is mounted."""
_FRESH_MODE: Final = 0o755


class LayerDirectories:
    """Makes and looks at the directories of layers.

    Args:
        root: The store's directory.
        identity: Whose everything is.
    """

    def __init__(self, root: str, identity: Identity) -> None:
        self._root = root
        self._is_range = identity.is_range
        self._owner = (identity.start, identity.gid)

    def make(self, path: str) -> None:
        """Make a directory as a volume's or a spool's is, whatever the umask is."""
        os.mkdir(path)
        os.chmod(path, _FRESH_MODE)
        if self._is_range:
            os.chown(path, *self._owner)

    def new_layer(self, above: Sequence[str] = ()) -> str:
        """Make an empty layer; return its id.

        Args:
            above: The layers below it, from the bottom up. `/`, `/usr` and `/workspace` look as in the topmost one:
                overlayfs takes all that its root shows from the layer that is written.
        """
        name = secrets.token_hex(6)
        directory = f"{self._root}/layers/{name}"
        os.mkdir(directory)
        for volume in VOLUMES:
            path = f"{directory}/{volume}"
            if not above:
                self.make(path)
                continue
            os.mkdir(path)
            below = f"{self._root}/layers/{above[-1]}/{volume}"
            look = os.stat(below)
            for attribute, value in _attributes(below):
                os.setxattr(path, attribute, value)
            if self._is_range:
                os.chown(path, look.st_uid, look.st_gid)
            os.chmod(path, stat.S_IMODE(look.st_mode))
            os.utime(path, ns=(look.st_atime_ns, look.st_mtime_ns))
        return name

    def is_empty(self, layer: str, above: Sequence[str] = ()) -> bool:
        """Whether a layer says nothing that those below it do not say."""
        for volume in VOLUMES:
            path = f"{self._root}/layers/{layer}/{volume}"
            if holds_anything(path):
                return False
            look = os.stat(path)
            if above:
                lower = f"{self._root}/layers/{above[-1]}/{volume}"
                below = os.stat(lower)
                if (look.st_mode, look.st_uid, look.st_gid, look.st_mtime_ns, _attributes(path)) != (
                    below.st_mode, below.st_uid, below.st_gid, below.st_mtime_ns, _attributes(lower),
                ):  # fmt: skip
                    return False
            elif stat.S_IMODE(look.st_mode) != _FRESH_MODE or look.st_uid != self._owner[0] or _attributes(path):
                return False
        return True

    def lowers(self, layers: Sequence[str], volume: str) -> list[str]:
        """Return the frozen layers of a volume that hold anything, from the top down, relative to the store."""
        below = [f"layers/{layer}/{volume}" for layer in reversed(layers)]
        return [path for path in below if holds_anything(f"{self._root}/{path}")]

    def work(self, sandbox: str) -> Mapping[str, str]:
        """Make fresh work directories, which overlayfs wants beside every top; relative to the store, by volume."""
        work = f"sandboxes/{sandbox}/work-{secrets.token_hex(4)}"
        os.mkdir(f"{self._root}/{work}")
        made = {volume: f"{work}/{volume}" for volume in (*VOLUMES, "spool")}
        for path in made.values():
            self.make(f"{self._root}/{path}")
        return made


def _attributes(directory: str) -> list[tuple[str, bytes]]:
    """Return the extended attributes of programs that a volume's root has; overlayfs writes its own marks beside."""
    try:
        names = os.listxattr(directory)
    except OSError:
        return []
    own = sorted(name for name in names if name.startswith("user.") and not name.startswith("user.overlay."))
    return [(name, os.getxattr(directory, name)) for name in own]


def holds_anything(directory: str) -> bool:
    """Whether there is anything in a directory; one that its sandbox has locked counts as full."""
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is not None
    except PermissionError:
        return True


def holds_attributes(directory: Path) -> bool:
    """Whether the file system of a directory keeps extended attributes of programs: tmpfs does since Linux 6.6."""
    try:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        os.setxattr(descriptor, "user.mcp-sandbox", b"1")
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
