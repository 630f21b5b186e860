"""Preparing one sandbox: is the runtime there, then files, packages and commands, each told by its key if it fails."""

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.core.exec import ExecRequest, Exited, Termination
from mcp_sandbox.core.files import WriteRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import WORKSPACE
from mcp_sandbox.service.paths import resolve
from mcp_sandbox.service.preparation import Preparation
from mcp_sandbox.service.shell import FIXED_ENV

__all__ = ["prepare"]

_RUNTIME: Final = re.compile(r"([a-z]+(?:[+#]+)?)-?([0-9]+(?:\.[0-9]+)*)?")
_VERSION: Final = re.compile(r"[0-9]+(?:\.[0-9]+)+|[0-9]+")
_ASKED: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "python": (("python3", "--version"), ("python", "--version")),
    "go": (("go", "version"),),
    "rust": (("rustc", "--version"),),
    "java": (("java", "-version"),),
}
"""How the version of a runtime is asked for, where it is not `NAME --version`."""
_STEP_S: Final = 3600.0
_LOOK_S: Final = 30.0
_KEPT_BYTES: Final = 4000
_TOLD_CHARACTERS: Final = 600
_REMEDY: Final = "Use an image that has it (environment.image; `mcp-sandbox image build` makes one), or correct it"


class _Ran(NamedTuple):
    status: int
    """As a shell has it; 127 if there is no such program."""
    said: str
    """The end of what it said, in one line."""


async def prepare(
    sandbox: Sandbox,
    preparation: Preparation,
    files: Mapping[str, bytes],
    env: Mapping[str, str],
    tell: Callable[[str], None],
) -> None:
    """Carry out a preparation.

    Args:
        sandbox: A new one.
        preparation: What to do.
        files: The content of the files to write, by their paths.
        env: Variables of the manifest.
        tell: Is told what is being done.

    Raises:
        ConfigError: The runtime is not there, or a step failed; names the key.
    """
    python = "python3"
    if preparation.runtime:
        tell(f"looking for {preparation.runtime}")
        python = await _runtime(sandbox, preparation, env)
    for path, content in files.items():
        await sandbox.write(WriteRequest(path=resolve(path), mode=preparation.files[path].mode), content)
    if preparation.dependencies:
        tell("installing the dependencies")
        await _install(sandbox, preparation, python, env)
    for number, step in enumerate(preparation.steps):
        tell(f"running setup command {number + 1} of {len(preparation.steps)}")
        ran = await _run(sandbox, ("sh", "-c", step.run), env)
        if ran.status:
            key = f"setup[{number}] in {preparation.sources.get('setup', 'the manifest')}"
            why = f"it ended with status {ran.status}, saying: {ran.said or 'nothing'}"
            raise ConfigError(f"{key} failed", why=why, fix="Correct the command; nothing can be reached from inside")


async def _runtime(sandbox: Sandbox, preparation: Preparation, env: Mapping[str, str]) -> str:
    """Return the program of the runtime that is wanted."""
    key, wanted = preparation.said("environment.runtime"), preparation.runtime
    named = _RUNTIME.fullmatch(wanted)
    if named is None:
        raise ConfigError(
            f"{key} cannot be used",
            why=f"{wanted!r} is not understood",
            fix="Write it like python3.11, node22 or go1.24",
        )
    name, version = named[1], named[2] or ""
    asked = (*(((wanted, "--version"),) if version else ()), *_ASKED.get(name, ((name, "--version"),)))
    there: list[str] = []
    for program in asked:
        ran = await _run(sandbox, program, env, _LOOK_S)
        found = _VERSION.search(ran.said)
        if ran.status or found is None:
            continue
        if not version or found[0] == version or found[0].startswith(f"{version}."):
            return program[0]
        there.append(f"{program[0]} there is {found[0]}")
    why = f"{wanted} is not inside; {' and '.join(dict.fromkeys(there)) or f'there is no {name} at all'}"
    raise ConfigError(f"{key} cannot be carried out", why=why, fix=_REMEDY)


async def _install(sandbox: Sandbox, preparation: Preparation, python: str, env: Mapping[str, str]) -> None:
    key = preparation.said("environment.dependencies")
    named = _RUNTIME.fullmatch(preparation.runtime or "python")
    if named is None or named[1] != "python":
        raise ConfigError(
            f"{key} cannot be carried out", why=f"packages of {preparation.runtime} cannot be installed by themselves",
            fix="Leave it out, and install them by `setup`",
        )  # fmt: skip
    found = ("--find-links", str(PurePosixPath(WORKSPACE, preparation.wheels))) if preparation.wheels else ()
    pip = (python, "-m", "pip", "install", "--quiet", "--no-index", *found, "--", *preparation.dependencies)
    ran = await _run(sandbox, pip, env)
    if ran.status:
        raise ConfigError(
            f"{key} cannot be installed",
            why=f"nothing can be reached from inside, and pip says: {ran.said or f'nothing (status {ran.status})'}",
            fix="Put wheels into a directory of the project and name it in environment.wheels, or use an image that "
            "has them (environment.image)",
        )


async def _run(sandbox: Sandbox, argv: "tuple[str, ...]", env: Mapping[str, str], timeout_s: float = _STEP_S) -> _Ran:
    said = bytearray()
    request = ExecRequest(argv=argv, cwd=WORKSPACE, env={**FIXED_ENV, **env}, timeout_s=timeout_s)
    try:
        async with await sandbox.exec(request) as execution:
            while not isinstance(event := await execution.receive(), Exited):
                said += event.data
                del said[:-_KEPT_BYTES]
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return _Ran(127, "there is no such program")
    result = event.result
    text = " ".join(said.decode("utf-8", "replace").split())[-_TOLD_CHARACTERS:]
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if result.termination is not Termination.EXITED:
        return _Ran(result.exit_code or 128, f"{text} ({result.termination.value})".strip())
    return _Ran(result.exit_code or 0, text)
