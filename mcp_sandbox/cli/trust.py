"""`mcp-sandbox trust`: a person's yes to a project's manifest as it is now."""

from mcp_sandbox.cli.options import parser
from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.manifest.discovery import PROJECT_NAMES, find_files
from mcp_sandbox.manifest.keys import shown
from mcp_sandbox.manifest.layers import layer_of
from mcp_sandbox.manifest.narrowing import Layer, narrow
from mcp_sandbox.manifest.reading import parse_manifest
from mcp_sandbox.manifest.trust import forget_trust, trust
from mcp_sandbox.settings.project import find_project

__all__ = ["main"]

_EXAMPLE = """\
  mcp-sandbox trust
  mcp-sandbox trust --undo

A yes lets the file go beyond what holds where nobody says anything: mount the project itself, get an image from a
registry, raise the number of processes, pass on variables. It never lets it go beyond your own configuration or the
administrator's, and it ends as soon as the file changes."""


def main(arguments: list[str]) -> int:
    """Remember a yes, or take it back."""
    reader = parser("trust", "Say yes to the manifest of a project, as it is now.", _EXAMPLE)
    reader.add_argument("--project", metavar="DIR", help="the project (default: the current directory)")
    reader.add_argument("--undo", action="store_true", help="take it back")
    options = reader.parse_args(arguments)
    project = find_project(options.project)
    if options.undo:
        had = forget_trust(project, PROJECT_NAMES)
        print("Taken back." if had else "There was no yes to take back.")
        return 0
    file = next((each for each in find_files(project) if each.layer == "project"), None)
    if file is None:
        raise ConfigError(
            "There is nothing to trust",
            why=f"the project has no {' and no '.join(PROJECT_NAMES)}",
            fix="Name a project",
        )
    layer = layer_of(file, project)
    read = parse_manifest(file.data, file.name)
    trust(project, file.name, read.digest)
    print(f"Trusted: {project}/{file.name}, SHA-256 {read.digest[:16]}. What it goes beyond the usual with:")
    beyond = _beyond(layer)
    print(*(beyond or ["  nothing"]), sep="\n")
    return 0


def _beyond(layer: Layer) -> "list[str]":
    """Return what the yes makes a difference for."""
    alone = narrow([Layer(name=layer.name, source=layer.source, values=layer.values, trusted=False)])
    keys = [each.key for each in alone.refused]
    keys += [key for key in ("allowed_env", "environment.image") if key in layer.values]
    return [f"  {key}: {shown(key, layer.values.get(key, ()))}" for key in keys]
