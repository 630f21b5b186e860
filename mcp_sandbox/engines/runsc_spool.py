"""The names of spool files, which are in no snapshot.

gVisor opens again by name what was open when it wrote down what ran: what is missing then is made, and empty.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from mcp_sandbox.engines.identity import Identity

__all__ = ["spool_files", "supply_spool_files"]

DEPTH: Final = 4
_INTO: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def spool_files(directory: Path) -> Sequence[str]:
    """Return the files below a spool directory, relative to it. Blocks."""
    return [str(path.relative_to(directory)) for path in _below(directory, DEPTH)]


def _below(directory: Path, depth: int) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            elif entry.is_dir(follow_symlinks=False) and depth:
                yield from _below(Path(entry.path), depth - 1)


def supply_spool_files(directory: Path, names: Sequence[str], identity: Identity) -> None:
    """Make those that are missing. Whoever had the sandbox may have put links there: none is followed. Blocks."""
    for name in names:
        *above, last = Path(name).parts
        if ".." in above or last == "..":
            continue
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
            at = _open(directory, None, opened)
            for part in above:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=at)
                    _give(part, at, identity)
                at = _open(part, at, opened)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(last, flags, 0o600, dir_fd=at))
            _give(last, at, identity)


def _open(path: str | Path, at: int | None, opened: contextlib.ExitStack) -> int:
    descriptor = os.open(path, _INTO, dir_fd=at)
    opened.callback(os.close, descriptor)
    return descriptor


def _give(name: str, at: int, identity: Identity) -> None:
    if identity.is_range:
        os.chown(name, identity.start, identity.gid, dir_fd=at, follow_symlinks=False)
