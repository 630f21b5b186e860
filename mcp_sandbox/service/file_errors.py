"""What a failing path means to whoever gave it: the file system's error numbers in words, with the nearest names."""

import difflib
import errno
import os
import posixpath

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import FileKind, ListRequest, StatRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import WORKSPACE
from mcp_sandbox.service.paths import PathResolver, display, shorten

__all__ = ["explain_path_error"]

_KINDS = {
    FileKind.FIFO: "a FIFO (named pipe)",
    FileKind.SOCKET: "a socket",
    FileKind.DEVICE: "a device",
    FileKind.DIRECTORY: "a directory",
}
_OTHERS = {
    errno.EACCES: ("the sandbox's user may not", "Look at the modes with `ls -ld` on it and the directories above"),
    errno.EPERM: ("the sandbox's kernel does not permit it", "Work on another path"),
    errno.EROFS: ("that part of the sandbox is read-only", f"Use a path below {WORKSPACE} or /tmp"),
    errno.ENOSPC: ("the sandbox's disk is full", "Remove files that are not needed; `du -sh` finds the big ones"),
    errno.EDQUOT: ("the sandbox's disk quota is used up", "Remove files that are not needed"),
    errno.ELOOP: ("its symbolic links lead in a circle", "Look at them with `ls -l`"),
    errno.ENAMETOOLONG: ("a name in it has more than 255 bytes", "Shorten it"),
    errno.EFBIG: ("it would become larger than the sandbox allows", "Write less"),
}


async def explain_path_error(
    error: OSError, sandbox: Sandbox, path: str, *, doing: str, resolver: PathResolver
) -> InvalidRequestError:
    """Return the error to raise instead of what a file verb raised for `path`.

    Args:
        error: What the verb raised.
        sandbox: Where it happened; it is looked at for names like the one that is missing.
        path: The absolute path that the caller gave.
        doing: The verb, as in "Cannot read".
        resolver: Knows where the host's project is.
    """
    what = f"Cannot {doing} {display(path)}"
    if isinstance(error, FileNotFoundError):
        why, fix = await _missing(sandbox, path, resolver)
    elif isinstance(error, IsADirectoryError):
        why, fix = "it is a directory", "Use `list_files` to see what is in it"
    elif isinstance(error, FileExistsError):
        why, fix = "it exists", "Read it first, and give the text to replace"
    elif isinstance(error, NotADirectoryError):
        why, fix = await _no_directory(sandbox, path)
    elif error.errno in (errno.EINVAL, errno.ENXIO, errno.ENODEV):
        why, fix = await _not_regular(sandbox, path)
    elif isinstance(error, PermissionError) and path.startswith("/proc/"):
        program = "tee" if doing == "write" else "cat"
        why, fix = "files of /proc are for commands only", f"Use a command such as `{program} {display(path)}`"
    else:
        number = error.errno or errno.EIO
        why, fix = _OTHERS.get(number, (f"the sandbox says: {os.strerror(number)}", "Check the path"))
    return InvalidRequestError(what, why=why, fix=fix)


async def _missing(sandbox: Sandbox, path: str, resolver: PathResolver) -> tuple[str, str]:
    if (inside := resolver.inside(path)) is not None:
        return (
            "that is a path of the user's machine, which cannot be seen from the sandbox",
            f"The project is at {WORKSPACE} here, so use {display(inside)}",
        )
    parent, name = posixpath.split(path.rstrip("/") or "/")
    while True:
        try:
            listing = await sandbox.list(ListRequest(path=parent, limit=2_000))
            break
        except FileNotFoundError:
            if parent == "/":
                return "it does not exist", "Check the path"
            parent, name = posixpath.split(parent)
        except OSError:
            return "it does not exist", "Check the path"
    names = [posixpath.basename(entry.path) for entry in listing.entries]
    if name in names:
        return "a symbolic link on the way leads to nothing", "Look at the link with `ls -l`"
    by_folded = {candidate.casefold(): candidate for candidate in sorted(names, reverse=True)}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=3, cutoff=0.6)
    if near:
        shown = ", ".join(display(shorten(posixpath.join(parent, by_folded[folded]))) for folded in near)
        return f"there is no {display(name)} in {display(parent)}", f"Did you mean {shown}? Or look with `list_files`"
    return f"there is no {display(name)} in {display(parent)}", "Look for it with `list_files`, or create it"


async def _no_directory(sandbox: Sandbox, path: str) -> tuple[str, str]:
    parts = path.strip("/").split("/")
    for end in range(1, len(parts) + 1):
        above = "/" + "/".join(parts[:end])
        try:
            found = await sandbox.stat(StatRequest(path=above))
        except OSError:
            break
        if found.kind is not FileKind.DIRECTORY:
            return f"{display(above)} is not a directory but {_KINDS.get(found.kind, 'a file')}", "Correct the path"
    return "a part of it is not a directory", "Correct the path"


async def _not_regular(sandbox: Sandbox, path: str) -> tuple[str, str]:
    fix = "Use a command with a timeout if you need what is in it"
    try:
        found = await sandbox.stat(StatRequest(path=path))
    except OSError:
        return "it is not a regular file", fix
    if found.kind is FileKind.FILE:
        return "its file system does not allow it", "Use a command instead"
    return f"it is {_KINDS.get(found.kind, 'a link')}, not a regular file", fix
