"""From files, options and the user's answers to the layers that are narrowed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from mcp_sandbox.manifest.discovery import ADMIN_FILE, FoundFile, find_files
from mcp_sandbox.manifest.keys import flat
from mcp_sandbox.manifest.narrowing import COMMAND_LINE, Layer
from mcp_sandbox.manifest.problems import ManifestError, Problem
from mcp_sandbox.manifest.reading import ReadManifest, parse_manifest
from mcp_sandbox.manifest.trust import is_trusted
from mcp_sandbox.settings.limits import WantedLimits
from mcp_sandbox.settings.starting import Start

__all__ = ["LIMIT_KEYS", "command_line", "layer_of", "read_layers"]

LIMIT_KEYS: Final[Mapping[str, str]] = {
    "sandbox.resources.memory": "memory_bytes",
    "sandbox.resources.cpu": "cpu_count",
    "sandbox.resources.disk": "disk_bytes",
    "sandbox.timeout": "command_s",
    "limits.pids": "pids",
    "limits.open_files": "open_files",
    "limits.inodes": "inodes",
}
"""Which field of `Limits` a key is."""
_ORDER: Final = ("admin", "user", "command line", "project")


def command_line(
    provider: str, image: str, wanted: WantedLimits | None, start: Start, idle_s: float | None
) -> "dict[str, object]":
    """Return what options and variables say, by key."""
    values: dict[str, object] = {
        "sandbox.provider": provider or None,
        "environment.image": image or None,
        "workspace.mode": start.asked_workspace or None,
        "sandbox.options.docker.runtime": start.runtime or None,
        "capabilities.network.allowed": () if start.network == "none" else None,
        "sandbox.idle": idle_s,
    }
    if wanted is not None:
        values |= {key: getattr(wanted.limits, name) for key, name in LIMIT_KEYS.items() if name in wanted.given}
        values["limits.best_effort"] = wanted.best_effort or None
    return {key: value for key, value in values.items() if value is not None}


def read_layers(
    project: str, options: Mapping[str, object], *, admin: str = ADMIN_FILE, user: Path | None = None
) -> "list[Layer]":
    """Return the layers from the top down.

    Args:
        project: Real path of the project; empty without one.
        options: What the command line says, by key.
        admin: The administrator's file.
        user: The user's file; `None` is the usual one.

    Raises:
        ConfigError: A file cannot be used.
    """
    layers = [layer_of(file, project) for file in find_files(project, admin=admin, user=user)]
    if options:
        layers.append(Layer(name=COMMAND_LINE, source="the command line", values=dict(options)))
    return sorted(layers, key=lambda layer: _ORDER.index(layer.name))


def layer_of(file: FoundFile, project: str) -> Layer:
    """Return what one file says.

    Raises:
        ManifestError: It cannot be used.
    """
    read = parse_manifest(file.data, file.name)
    values = flat(read.manifest)
    if "all" in _words(values.get("capabilities.network.denied")):
        values.setdefault("capabilities.network.allowed", ())
    trusted = True
    if file.layer == "project":
        if problems := _beyond_a_project(read, values):
            raise ManifestError(file.name, problems)
        trusted = is_trusted(project, file.name, read.digest)
    return Layer(name=file.layer, source=file.name, values=values, trusted=trusted)


def _words(value: object) -> Sequence[object]:
    return cast("tuple[object, ...]", value) if isinstance(value, tuple) else ()


def _beyond_a_project(read: ReadManifest, values: Mapping[str, object]) -> "list[Problem]":
    """Return what no project may say, whatever upper layers allow."""
    found: list[Problem] = []
    for key, value in values.items():
        why = _why_not(key, value)
        if why:
            line = read.tree.line(
                tuple(key.split(".", 1)) if key.startswith(("env.", "files.")) else tuple(key.split("."))
            )
            found.append(Problem(line, key, why))
    return found


def _why_not(key: str, value: object) -> str:
    match key.partition(".")[0]:
        case "secrets" | "policy":
            return "a project may not say this; it belongs into ~/.config/mcp-sandbox/config.yaml"
        case "env" if "secret://" in str(value):
            return "a project may not name secrets; a user's own file may"
        case "files":
            origin = cast("dict[str, object]", value).get("from") if isinstance(value, dict) else None
            if origin is not None and not _is_inside(str(origin)):
                return "`from` is a path in the project, relative to it and without `..`"
        case "environment":
            if key == "environment.image" and str(value).startswith(("/", "./", "../", "~")):
                return "a project may name an image, no path"
            if key == "environment.wheels" and not _is_inside(str(value)):
                return "it is a directory of the project, relative to it and without `..`"
        case "sandbox":
            if key in ("sandbox.provider", "sandbox.fallback") and "memory" in (value, *_words(value)):
                return "it runs no programs"
        case "capabilities":
            if key == "capabilities.filesystem.allowed":
                outside = [each for each in _words(value) if not _is_own(str(each))]
                return (
                    f"{outside[0]} is a directory of the machine; of these only the project comes in" if outside else ""
                )
        case _:
            pass
    return ""


def _is_inside(path: str) -> bool:
    return not path.startswith(("/", "~")) and ".." not in path.split("/")


def _is_own(glob: str) -> bool:
    """Whether a glob is about what a sandbox has anyway: its workspace and its own temporary directories."""
    roots = ("/workspace", "/tmp", "/var/tmp")  # noqa: S108 (inside a sandbox)
    return ".." not in glob.split("/") and any(glob == root or glob.startswith(f"{root}/") for root in roots)
