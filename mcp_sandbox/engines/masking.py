"""What a sandbox must not see of its project, as a layer of its own right above it.

Overlayfs takes a whiteout there for the end of a path, whatever is below. A mount over the path would move along with a
directory that somebody renames, and be missing at its old place when the sandbox starts again; this holds for renamed
directories, too, because what they were is looked up through all the layers.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from mcp_sandbox.engines.identity import Identity
from mcp_sandbox.hostfs.denied import denied_paths

__all__ = ["fill_mask"]


def fill_mask(mask: Path, project: str, globs: Sequence[str], identity: Identity) -> None:
    """Make a directory with a whiteout for everything that globs deny of a project. Blocks.

    Args:
        mask: The directory.
        project: What it will lie on.
        globs: Relative to the project.
        identity: Whose the directories on the way are to be: overlayfs shows the upper one's look.
    """
    mask.mkdir()
    if identity.is_range:
        os.chown(mask, identity.start, identity.gid)
    for relative in denied_paths(project, globs):
        hidden = mask / relative
        hidden.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mknod(hidden, stat.S_IFCHR)  # device 0:0, which anybody may make (Linux 5.8)
    for directory, _, _ in os.walk(mask, topdown=False):
        if (path := Path(directory)) != mask:
            _look_like(path, Path(project, path.relative_to(mask)), identity)


def _look_like(directory: Path, original: Path, identity: Identity) -> None:
    with contextlib.suppress(FileNotFoundError):
        found = original.lstat()
        if identity.is_range:
            inside = (found.st_uid, found.st_gid)
            uid, gid = (identity.start + (each if each < identity.count else 0) for each in inside)
            os.chown(directory, uid, gid)
        shutil.copystat(original, directory, follow_symlinks=False)
