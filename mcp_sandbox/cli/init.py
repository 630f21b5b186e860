"""`mcp-sandbox init`: a manifest for a project that has none, shown before it is written."""

import os
import sys
from pathlib import Path
from typing import Final

from mcp_sandbox.cli.options import parser
from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.manifest.discovery import PROJECT_NAMES
from mcp_sandbox.manifest.problems import printable
from mcp_sandbox.manifest.proposal import propose
from mcp_sandbox.settings.project import find_project

__all__ = ["main"]

_EXAMPLE: Final = """\
  mcp-sandbox init
  mcp-sandbox init --project ~/src/app --yes

It looks for Python, Node, Go and Rust, and for files that look like secrets, and runs nothing."""


def main(arguments: list[str]) -> int:
    """Show a manifest, and write it if somebody wants it; 1 if nobody does."""
    reader = parser("init", "Write a commented manifest for what is found in a project.", _EXAMPLE)
    reader.add_argument("--project", metavar="DIR", help="the project (default: the current directory)")
    reader.add_argument("--yes", action="store_true", help="write it without asking")
    options = reader.parse_args(arguments)
    project = find_project(options.project)
    if not project:
        raise ConfigError("No manifest written", why="there is no project here", fix="Name one with --project")
    if there := [name for name in PROJECT_NAMES if os.path.lexists(Path(project, name))]:
        raise ConfigError(
            "No manifest written", why=f"the project has {there[0]}", fix="Change that one, or remove it first"
        )
    proposal = propose(project)
    print(proposal.text, end="")
    found = ", ".join(map(printable, proposal.found)) or "nothing that it knows"
    print(f"\nfound: {found}", file=sys.stderr)
    if not (options.yes or _agreed(PROJECT_NAMES[0])):
        print(f"mcp-sandbox: {PROJECT_NAMES[0]} was not written", file=sys.stderr)
        return 1
    path = Path(project, PROJECT_NAMES[0])
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            "No manifest written", why=os.strerror(error.errno or 0).lower(), fix="Make the directory writable"
        ) from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(proposal.text)
    print(f"mcp-sandbox: wrote {PROJECT_NAMES[0]}; `mcp-sandbox manifest explain` says what it means", file=sys.stderr)
    return 0


def _agreed(name: str) -> bool:
    """Ask the person; where there is nobody to ask, the answer is no."""
    if not sys.stdin.isatty():
        print(f"mcp-sandbox: `mcp-sandbox init --yes` writes {name} without asking", file=sys.stderr)
        return False
    print(f"\nWrite it to {name}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
