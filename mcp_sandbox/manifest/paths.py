"""What globs of files mean: those of the workspace, and those of the machine, which never come in."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.globs import glob_regex
from mcp_sandbox.core.sandbox import WORKSPACE

__all__ = ["glob_problem", "is_whole", "of_workspace", "shows_usr"]

_MAGIC: Final = re.compile(r"[*?\[{\\\\]")


def of_workspace(globs: Sequence[str], project: str, home: str) -> "tuple[str, ...]":
    """Return those globs that are about the workspace, relative to it.

    Args:
        globs: Absolute ones, of the workspace or of the machine; `~` is the user's home; others are relative to the
            workspace.
        project: Its real path; a glob of the machine that is about something in there is about the workspace, too.
        home: The user's.
    """
    found: list[str] = []
    for glob in globs:
        path = f"{home}{glob[1:]}" if glob.startswith("~/") and home else glob
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not path.startswith(("/", "~")):
            found.append("/".join(parts))
            continue
        found += _below(parts, WORKSPACE[1:].split("/"))
        inside = [part for part in project.split("/") if part]
        if inside and parts[: len(inside)] == inside and len(parts) > len(inside):
            found.append("/".join(parts[len(inside) :]))
    return tuple(dict.fromkeys(found))


def _below(parts: Sequence[str], root: Sequence[str]) -> Iterator[str]:
    """Yield what an absolute glob says about paths below a directory; `/**` alone is about the machine."""
    reached = {0}
    for name in root:
        reached = {after for place in reached for after in _steps(parts, place, name)}
    for place in sorted(reached):
        rest = parts[place:]
        if not rest:
            yield "*"
        elif rest != ["**"] or "**" not in parts[: place + 1] or parts[: len(root)] == list(root):
            yield "/".join(rest)


def _steps(parts: Sequence[str], place: int, name: str) -> Iterator[int]:
    """Yield where a glob goes on after a name; `**` may stand for any number of them."""
    while place < len(parts) and parts[place] == "**":
        yield place
        place += 1
    if place < len(parts) and glob_regex(parts[place]).fullmatch(name):
        yield place + 1


def is_whole(globs: Sequence[str]) -> bool:
    """Whether a list of what is allowed has the whole workspace in it."""
    return any(glob in (WORKSPACE, f"{WORKSPACE}/", f"{WORKSPACE}/**") for glob in globs)


def shows_usr(glob: str) -> bool:
    """Whether a glob of the machine is about /usr, or about something that it is in."""
    literal = _MAGIC.split(glob)[0]
    if literal == "/usr" or literal.startswith("/usr/"):
        return True
    return literal == "/" or (literal != glob and literal.startswith("/") and "/usr".startswith(literal))


def glob_problem(glob: str) -> str:
    """Return what is wrong with a glob; nothing if it can be used."""
    if ".." in glob.split("/"):
        return f"{glob!r} leads upwards"
    try:
        glob_regex(glob.lstrip("/"))
    except InvalidRequestError as error:
        return f"{glob!r} is no glob: {error.why}"
    return ""
