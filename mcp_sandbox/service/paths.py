"""Paths as a model gives them, and names as a model is shown them."""

import os
import posixpath
from dataclasses import dataclass

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.sandbox import WORKSPACE

__all__ = ["PATH_MAX_BYTES", "PathResolver", "display", "label", "resolve", "shorten"]

PATH_MAX_BYTES = 4096
"""`PATH_MAX` of Linux."""

_LABEL_MAX_CHARS = 300
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e", "'": "\\'", "\\": "\\\\"}


def resolve(path: str) -> str:
    """Return the absolute path in the sandbox that `path` names.

    A relative path starts at the workspace, and its `.` and `..` are taken away as text. An absolute one stays as it
    is: only the sandbox's kernel knows where its links lead.

    Raises:
        InvalidRequestError: It is empty, too long, or holds what no file name can.
    """
    if not path:
        raise _refusal(path, why="it is empty", fix=f"Give an absolute path, or one relative to {WORKSPACE}")
    if "\0" in path:
        raise _refusal(path, why="it holds a NUL character, which no file name can", fix="Leave the NUL out")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError as error:
        raise _refusal(path, why="it holds half of a surrogate pair", fix="Send it as valid Unicode") from error
    if size > PATH_MAX_BYTES:
        raise _refusal(path, why=f"it has {size:,} bytes, and {PATH_MAX_BYTES:,} is the most", fix="Shorten it")
    return path if path.startswith("/") else posixpath.normpath(posixpath.join(WORKSPACE, path))


def shorten(path: str) -> str:
    """Return `path` as short as any tool understands it: relative where it lies in the workspace."""
    return path.removeprefix(f"{WORKSPACE}/")


def display(name: str) -> str:
    r"""Return `name` for a reader: as it is, or in the shell's `$'...'` form where it holds unprintable characters.

    The shell form can be pasted into a command, and no name can imitate a line of our own output.
    """
    if name.isprintable() and not name.startswith(("$'", " ")) and not name.endswith(" "):
        return name
    return "$'" + "".join(_escape(character) for character in name) + "'"


def label(path: str) -> str:
    """Return a path for the first line of an answer: short, printable and of bounded length."""
    shown = display(shorten(path))
    return shown if len(shown) <= _LABEL_MAX_CHARS else f"...{shown[-_LABEL_MAX_CHARS:]}"


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def _refusal(path: str, *, why: str, fix: str) -> InvalidRequestError:
    shown = path if len(path) <= 100 else f"{path[:100]}..."
    return InvalidRequestError(f"Path {shown!r} cannot be used", why=why, fix=fix)


@dataclass(frozen=True, slots=True)
class PathResolver:
    """Resolves paths for a sandbox whose workspace started as a directory of the host."""

    project: str | None = None
    """Absolute real path of that directory, if there is one."""

    def resolve(self, path: str) -> str:
        """Return the absolute path in the sandbox that `path` names, as `resolve` does."""
        return resolve(path)

    def inside(self, path: str) -> str | None:
        """Return where a path of the host's project is in the sandbox, or `None` if it is not one."""
        project = (self.project or "/").rstrip("/")
        if not project or project == WORKSPACE or not path.startswith("/"):
            return None
        plain = posixpath.normpath(path)
        if plain != project and not plain.startswith(f"{project}/"):
            return None
        return WORKSPACE + plain[len(project) :]
