"""A manifest for a project that has none, from what is found in it. Nothing of the project is run."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from mcp_sandbox.hostfs.beneath import read_beneath

__all__ = ["Proposal", "propose"]

_MOST_BYTES: Final = 1 << 20
_SECRETS: Final = (".env", ".env.local", ".netrc", ".npmrc", ".pypirc", "secrets", "credentials.json", ".aws", ".ssh")
_SECRET_ENDINGS: Final = (".pem", ".key", ".p12", ".pfx")
_VERSION: Final = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class _Language:
    name: str
    markers: tuple[str, ...]
    preset: str
    setup: tuple[tuple[str, str], ...]
    """A file, and the command that its presence asks for; the first one counts."""
    version: Callable[[str], str]
    """Returns the version that the project asks for, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to write, and why."""

    text: str
    found: tuple[str, ...]
    """The languages, with what told them."""


def propose(project: str) -> Proposal:
    """Return a commented manifest for a project. Blocks."""
    names = {path.name for path in Path(project).iterdir()}
    languages = [
        (each, next(name for name in each.markers if name in names)) for each in _LANGUAGES if names & {*each.markers}
    ]
    secrets = [name for name in sorted(names) if name in _SECRETS or name.endswith(_SECRET_ENDINGS)]
    runtimes = [f"{each.name}{version}" for each, _ in languages if (version := each.version(project))]
    presets = [each.preset for each, _ in languages] + ["@github"] * (".git" in names)
    setup = [next(command for file, command in each.setup if not file or file in names) for each, _ in languages]
    return Proposal(
        text="\n".join(_lines(project, runtimes, secrets, presets, setup)) + "\n",
        found=tuple(f"{each.name} ({marker})" for each, marker in languages),
    )


def _lines(
    project: str, runtimes: "list[str]", secrets: "list[str]", presets: "list[str]", setup: "list[str]"
) -> "list[str]":
    name = "".join(letter for letter in Path(project).name if letter.isprintable()) or "project"
    return [
        "# What the sandboxes of this project are. `mcp-sandbox manifest explain` says what each key means and what",
        "# becomes of it here; configs/manifests/schema.json of mcp-sandbox is the schema for editors.",
        f"name: {json.dumps(name, ensure_ascii=False)}",
        'version: "1.0"',
        "",
        "environment:",
        *_runtime(runtimes),
        "  # An image instead of the programs of this machine (`mcp-sandbox image build`; with docker any image):",
        "  # image: dev",
        "",
        "sandbox:",
        "  provider: local          # or gvisor, docker",
        "  # fallback: [docker]     # taken where that one does not work, and told",
        "  timeout: 30min           # of any one command",
        "  # resources: {cpu: 2core, memory: 4GB, disk: 10GB}   # refused where this machine cannot hold them",
        "",
        "limits:",
        "  pids: 512                # processes and threads",
        "",
        "# The project, of which nothing on this machine changes; copy, mount (the project itself) or empty instead.",
        "workspace: overlay",
        "",
        "capabilities:",
        "  filesystem:",
        "    # Not in the sandbox, for tools and commands alike:",
        f"    denied: {json.dumps(secrets or ['.env'], ensure_ascii=False)}",
        *(
            [
                "  # What this project is set up from. It is not carried out yet, and would be refused:",
                f"  # network: {{allowed: {json.dumps(presets)}}}",
            ]
            if presets
            else []
        ),
        '  # commands: {ask: [git push], denied: ["rm -rf /"]}   # rules for the agent, not a wall',
        "",
        *_setup(setup),
        "# env: {APP_ENV: test}      # variables of every command",
        "# allowed_env: [LANG]       # variables of yours that pass, if your own configuration lists them, too",
    ]


def _runtime(runtimes: "list[str]") -> "list[str]":
    if not runtimes:
        return ["  # runtime: python3.11      # compared with what is inside, and refused where it is not"]
    return [f"  runtime: {runtimes[0]}{' ' * max(1, 16 - len(runtimes[0]))}# compared with what is inside"]


def _setup(setup: "list[str]") -> "list[str]":
    if not setup:
        return ["# setup: [make assets]      # run once; new sandboxes start from the result", ""]
    return [
        "# Run once in a new sandbox; the next ones start from the result. Nothing can be reached over the network",
        "# yet, so what is installed must be there already, in a cache or as files of the project.",
        "# setup:",
        *(f"#   - {command}" for command in setup),
        "",
    ]


def _text(project: str, name: str) -> str:
    try:
        return read_beneath(project, name, most_bytes=_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _plain(text: str, parts: int = 2) -> str:
    """Return the version that a text begins with, as far as a runtime is named by it."""
    found = _VERSION.match(text.strip().removeprefix("v").removeprefix("go"))
    return ".".join(found[0].split(".")[:parts]) if found else ""


def _python(project: str) -> str:
    return _plain(_text(project, ".python-version"))


def _node(project: str) -> str:
    if version := _plain(_text(project, ".nvmrc") or _text(project, ".node-version"), 1):
        return version
    try:
        described: Any = json.loads(_text(project, "package.json"))
        engines = cast("dict[str, Any]", described)["engines"]["node"]
    except (ValueError, KeyError, TypeError):
        return ""
    return _plain(str(engines), 1) if re.fullmatch(r"v?\d+(\.[\dx]+)*", str(engines)) else ""


def _go(project: str) -> str:
    found = re.search(r"^toolchain go(\d+\.\d+)", _text(project, "go.mod"), re.MULTILINE)
    return found[1] if found else ""


def _rust(project: str) -> str:
    found = re.search(r"^\s*(?:channel\s*=\s*\")?(\d+\.\d+)", _text(project, "rust-toolchain.toml"), re.MULTILINE)
    return found[1] if found else ""


_LANGUAGES: Final = (
    _Language(
        "python", ("pyproject.toml", "requirements.txt", "setup.py", "Pipfile"), "@pypi",
        (
            ("uv.lock", "uv sync --frozen"), ("poetry.lock", "poetry install"),
            ("requirements.txt", "python3 -m pip install -r requirements.txt"), ("", "python3 -m pip install -e ."),
        ),
        _python,
    ),
    _Language(
        "node", ("package.json",), "@npm",
        (
            ("package-lock.json", "npm ci"), ("pnpm-lock.yaml", "pnpm install --frozen-lockfile"),
            ("yarn.lock", "yarn install --frozen-lockfile"), ("", "npm install"),
        ),
        _node,
    ),
    _Language("go", ("go.mod",), "@golang", (("", "go mod download"),), _go),
    _Language("rust", ("Cargo.toml",), "@crates", (("", "cargo fetch"),), _rust),
)  # fmt: skip
