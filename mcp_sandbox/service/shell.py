"""How a command line becomes a program and its arguments, in whatever a sandbox has for a shell."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import FileKind, RemoveRequest, StatRequest, WriteRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.service.spool import SpoolRooms, fresh_name

__all__ = ["FIXED_ENV", "Invocation", "Shells", "checked_env"]

FIXED_ENV: Mapping[str, str] = MappingProxyType(
    {
        "CI": "1",
        "DEBIAN_FRONTEND": "noninteractive",
        "GIT_EDITOR": "true",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        # Else what Python printed before a timeout is lost in its buffer, and a job says nothing until it ends.
        "PYTHONUNBUFFERED": "1",
        "SUDO_ASKPASS": "/bin/false",
        "TERM": "dumb",
    }
)
"""Variables of every command, so that nothing waits for a person, pages or paints."""

_ARGUMENT_BYTES = 96 * 1024
"""Linux takes 128 KiB (`MAX_ARG_STRLEN`, man 2 execve) with the final zero; some engines add a little."""

_PLACES = ("/bin", "/usr/bin", "/usr/local/bin")


@dataclass(frozen=True, slots=True)
class Invocation:
    """What to run for a command line."""

    argv: tuple[str, ...]
    script: str = ""
    """A file to remove afterwards, if one was made."""
    note: str = ""
    """What a reader should know about the way it is run."""


def checked_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables that a process can be given.

    Raises:
        InvalidRequestError: A name or a value is none.
    """
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidRequestError(
                f"Variable {name!r} refused",
                why="names are not empty and hold no `=`, and neither names nor values hold NUL",
                fix="Correct `env`",
            )
        if len(value.encode("utf-8", "surrogateescape")) > _ARGUMENT_BYTES:
            raise InvalidRequestError(
                f"Variable {name!r} refused",
                why=f"its value is longer than {_ARGUMENT_BYTES:,} bytes, more than a process can be given",
                fix="Write it to a file and pass the path",
            )
    return dict(env)


class Shells:
    """Finds out, once per sandbox, which shell there is."""

    def __init__(self, rooms: SpoolRooms) -> None:
        self._rooms = rooms
        self._known: dict[SandboxId, str] = {}

    async def invocation(self, sandbox: Sandbox, command: str) -> Invocation:
        """Return how to run a command line.

        Raises:
            InvalidRequestError: It is empty, holds NUL, or cannot be split where there is no shell.
        """
        if not command.strip() or "\0" in command:
            raise InvalidRequestError(
                "Nothing was run",
                why="the command holds a NUL character" if "\0" in command else "the command is empty",
                fix="Give a command line for the shell",
            )
        shell = self._known.get(sandbox.id)
        if shell is None:
            shell = self._known[sandbox.id] = await _find_shell(sandbox)
        if not shell:
            return Invocation(_words(command), note="no shell in this sandbox: the command was split into words")
        note = "" if shell.endswith("bash") else f"no bash in this sandbox: ran with {shell}"
        encoded = command.encode("utf-8", "surrogateescape")
        if len(encoded) > _ARGUMENT_BYTES:
            script = f"{await self._rooms.directory(sandbox)}/{fresh_name()}.sh"
            await sandbox.write(WriteRequest(path=script, mode=0o600), encoded)
            return Invocation((shell, script), script=script, note=note)
        # Without `--` a command that begins with - or + would be taken for options.
        options = ("-c", "--") if command[0] in "-+" else ("-c",)
        return Invocation((shell, *options, command), note=note)

    def forget(self, sandbox: Sandbox) -> None:
        """Look again at the next command: the shell was not where it had been."""
        self._known.pop(sandbox.id, None)

    async def clean_up(self, sandbox: Sandbox, invocation: Invocation) -> None:
        """Remove what `invocation` made."""
        if invocation.script:
            await sandbox.remove(RemoveRequest(path=invocation.script, missing_ok=True))


async def _find_shell(sandbox: Sandbox) -> str:
    for name in ("bash", "sh"):
        for place in _PLACES:
            path = f"{place}/{name}"
            try:
                found = await sandbox.stat(StatRequest(path=path))
            except OSError:
                continue
            if found.kind is FileKind.FILE and found.mode & 0o111:
                return path
    return ""


def _words(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidRequestError(
            "Nothing was run",
            why=f"this sandbox has no shell, and the command cannot be split into words ({error})",
            fix="Balance the quotes",
        ) from error
    if not words:
        raise InvalidRequestError("Nothing was run", why="the command is empty", fix="Give a program to run")
    return words
