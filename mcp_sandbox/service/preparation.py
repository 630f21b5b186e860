"""What a manifest wants done in a new sandbox before anybody uses it, and what its result depends on."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.core.globs import HEAVY_DIRECTORIES, glob_regex
from mcp_sandbox.hostfs.beneath import read_beneath

__all__ = ["Preparation", "PreparedFile", "Step", "file_contents", "inputs_digest"]

USUAL_INPUTS: Final = (
    "requirements*.txt", "pyproject.toml", "setup.py", "setup.cfg", "poetry.lock", "uv.lock", "Pipfile.lock",
    "package.json", "package-lock.json", "yarn.lock", "pnpm-lock.yaml", "go.mod", "go.sum", "Cargo.toml", "Cargo.lock",
    "Makefile", "Gemfile.lock",
)  # fmt: skip
"""At the top of the project: what commands that name no inputs depend on."""
_MOST_FILE_BYTES: Final = 16 << 20
_MOST_FILES: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFile:
    """A file to write."""

    content: str | None = None
    source: str | None = None
    """A file of the project instead, relative to it."""
    mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command to run."""

    run: str
    inputs: tuple[str, ...] | None = None
    """Globs of the files of the project that its result depends on; `None` is the usual ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Without any, nothing is done."""

    runtime: str = ""
    """What must be inside, such as `python3.11`."""
    dependencies: tuple[str, ...] = ()
    wheels: str = ""
    """Directory of the project that holds them."""
    files: Mapping[str, PreparedFile] = field(default_factory=dict[str, PreparedFile])
    """By path; relative ones are in the workspace."""
    steps: tuple[Step, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Who said each key."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do and nothing to look at."""
        return not (self.runtime or self.changes_files)

    @property
    def changes_files(self) -> bool:
        """Whether a sandbox is another one afterwards."""
        return bool(self.dependencies or self.files or self.steps)

    def said(self, key: str) -> str:
        """Return a key with who said it, for an error."""
        return f"{key} in {self.sources.get(key, 'the manifest')}"


def inputs_digest(preparation: Preparation, project: str, facts: Mapping[str, object], *, whole: bool) -> str:
    """Return the digest of all that the result of a preparation depends on. Blocks.

    Args:
        preparation: What is done.
        project: Real path of the project; empty without one.
        facts: What else it depends on: the provider, its image, variables.
        whole: Whether the result holds a copy of the whole project.

    Raises:
        ConfigError: A file that it takes from the project cannot be read.
    """
    digest = hashlib.sha256(json.dumps([1, asdict(preparation), facts], sort_keys=True, default=str).encode())
    for path, content in sorted(file_contents(preparation, project).items()):
        digest.update(json.dumps([path, hashlib.sha256(content).hexdigest()]).encode())
    for line in _input_lines(preparation, project, whole=whole):
        digest.update(line)
    return digest.hexdigest()


def file_contents(preparation: Preparation, project: str) -> "dict[str, bytes]":
    """Return the content of every file to write. Blocks.

    Raises:
        ConfigError: One that comes from the project cannot be read.
    """
    found: dict[str, bytes] = {}
    for path, file in preparation.files.items():
        if file.source is None:
            found[path] = (file.content or "").encode()
            continue
        try:
            found[path] = read_beneath(project, file.source, most_bytes=_MOST_FILE_BYTES)
        except OSError as error:
            raise ConfigError(
                f"{preparation.said(f'files.{path}')} cannot be carried out",
                why=f"{file.source!r} cannot be read from the project ({error.strerror or error})",
                fix="Correct `from`; it is a file of the project, and no link",
            ) from None
    return found


def _input_lines(preparation: Preparation, project: str, *, whole: bool) -> Iterator[bytes]:
    """Yield a line for every file of the project that counts, in a fixed order."""
    if not project:
        return
    globs = [glob for step in preparation.steps for glob in (USUAL_INPUTS if step.inputs is None else step.inputs)]
    globs += [f"{preparation.wheels.strip('/')}/**"] if preparation.wheels else []
    patterns = [glob_regex(glob.removeprefix("/workspace/")) for glob in dict.fromkeys(globs)]
    seen = 0
    for path, name in _walk(project, every_directory=whole):
        relative = f"{path}/{name}" if path else name
        chosen = any(pattern.fullmatch(relative) for pattern in patterns)
        if not (chosen or whole):
            continue
        seen += 1
        if seen > _MOST_FILES and not whole:
            raise ConfigError(
                f"{preparation.said('setup')} cannot be carried out",
                why=f"its inputs are more than {_MOST_FILES} files", fix="Name a file that lists the others",
            )  # fmt: skip
        yield _line(project, relative, content=chosen)


def _walk(project: str, *, every_directory: bool) -> Iterator[tuple[str, str]]:
    for directory, names, files in os.walk(project):
        names[:] = sorted(name for name in names if every_directory or name not in HEAVY_DIRECTORIES)
        relative = os.path.relpath(directory, project)
        for name in sorted(files):
            yield "" if relative == "." else relative, name


def _line(project: str, relative: str, *, content: bool) -> bytes:
    try:
        found = os.lstat(os.path.join(project, relative))  # noqa: PTH118
        facts: list[object] = [relative, stat.S_IMODE(found.st_mode), found.st_size]
        if content and stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_FILE_BYTES:
            facts.append(hashlib.sha256(read_beneath(project, relative, most_bytes=_MOST_FILE_BYTES)).hexdigest())
        else:
            facts.append(found.st_mtime_ns)
    except OSError:
        return b""  # it went meanwhile
    return json.dumps(facts).encode("utf-8", "surrogateescape") + b"\n"
