"""Which parts of a project a sandbox must not see: the topmost paths that globs name; no link is followed."""

import os
from collections.abc import Iterator, Sequence

from mcp_sandbox.core.globs import glob_regex, has_magic, split_glob

__all__ = ["Denied", "denied_paths"]


class Denied:
    """Globs over paths relative to a project. What names a directory, or all that is in it, is about the whole of it.

    Args:
        globs: As `.env`, `secrets/**` or `**/*.pem`.
    """

    def __init__(self, globs: Sequence[str]) -> None:
        self._globs = [split_glob(glob) for glob in globs]
        self._globs = [[*parts[:-1]] if len(parts) > 1 and parts[-1] == "**" else parts for parts in self._globs]
        self._patterns = [glob_regex("/".join(parts)) for parts in self._globs]
        self.depth = 0 if any("**" in parts for parts in self._globs) else max(map(len, self._globs), default=0)
        """How many names the longest path has that can be meant; 0 is any number."""

    def hides(self, relative: str) -> bool:
        """Whether a path, with everything below it, is not to be seen. Of what is below it nobody need ask."""
        return any(pattern.fullmatch(relative) for pattern in self._patterns)

    @property
    def literal(self) -> "list[str]":
        """The paths that are named without any pattern."""
        return ["/".join(parts) for parts in self._globs if not any(map(has_magic, parts))]


def denied_paths(project: str, globs: Sequence[str]) -> "list[str]":
    """Return the paths that are hidden, each without those below it, parents before what is beside them. Blocks.

    What is named without a pattern counts although it does not exist, as long as its directory does: nothing that comes
    there later is seen.
    """
    denied = Denied(globs)
    found = list(_walk(project, denied))
    for path in denied.literal:
        parents = path.split("/")[:-1]
        above = ["/".join(parents[:count]) for count in range(1, len(parents) + 1)]
        is_there = all(_is_directory(os.path.join(project, each)) for each in above)  # noqa: PTH118
        if is_there and path not in found and not any(each in found for each in above):
            found.append(path)
    return found


def _walk(project: str, denied: Denied) -> Iterator[str]:
    waiting = [("", 1)]
    while waiting:
        relative, depth = waiting.pop()
        try:
            with os.scandir(os.path.join(project, relative)) as entries:  # noqa: PTH118
                for entry in entries:
                    path = f"{relative}/{entry.name}" if relative else entry.name
                    if denied.hides(path):
                        yield path
                    elif entry.is_dir(follow_symlinks=False) and (not denied.depth or depth < denied.depth):
                        waiting.append((path, depth + 1))
        except OSError:  # it went meanwhile, or is nobody's to look into, so that no sandbox does either
            continue


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)  # noqa: PTH112, PTH114
