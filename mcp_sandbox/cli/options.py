"""What the commands' options have in common."""

import argparse

from mcp_sandbox.settings.limits import BEST_EFFORT, LIMIT_OPTIONS, WantedLimits, find_limits
from mcp_sandbox.settings.starting import NETWORKS, WORKSPACES, Start, find_start

__all__ = [
    "add_image",
    "add_json",
    "add_limits",
    "add_sandbox",
    "add_scope",
    "add_start",
    "limits_of",
    "parser",
    "start_of",
]


def parser(command: str, summary: str, example: str) -> argparse.ArgumentParser:
    """Return the parser of a command, with an example in its help."""
    return argparse.ArgumentParser(
        prog=f"mcp-sandbox {command}",
        description=summary,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_scope(parser: argparse.ArgumentParser) -> None:
    """Add the options that say whose sandboxes are meant."""
    parser.add_argument("--project", metavar="DIR", help="the project (default: the current directory)")
    parser.add_argument(
        "--provider", metavar="NAME", help="what runs new sandboxes; `mcp-sandbox doctor` lists them (default: local)"
    )


def add_sandbox(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a sandbox."""
    parser.add_argument(
        "--sandbox", metavar="H", default="", help="id, id prefix or name (default: the project's own sandbox)"
    )


def add_image(parser: argparse.ArgumentParser) -> None:
    """Add the option that says what new sandboxes start from."""
    parser.add_argument(
        "--image",
        metavar="X",
        default="",
        help="what new sandboxes start from: an image's name (docker: any, pulled if it is missing), or the path (./X) "
        "of a root file system or its archive",
    )


def add_start(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what new sandboxes start as and run on."""
    parser.add_argument(
        "--workspace",
        choices=WORKSPACES,
        help="what /workspace is in new sandboxes: the project, of which nothing on this machine changes (overlay, the "
        "default); a copy of it; the project itself (mount); nothing. Provider docker can do each, others overlay and "
        "empty. Also MCP_SANDBOX_WORKSPACE",
    )
    parser.add_argument(
        "--runtime",
        metavar="R",
        help="the container engine's runtime for new sandboxes, such as runsc (provider docker). Also "
        "MCP_SANDBOX_RUNTIME",
    )
    parser.add_argument(
        "--network", choices=NETWORKS, help="none: do without what the manifest would reach. Also MCP_SANDBOX_NETWORK"
    )


def start_of(options: argparse.Namespace) -> Start:
    """Return what the options or variables ask for; `ConfigError` if that cannot be."""
    return find_start(options.workspace, options.runtime, options.network)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that limit new sandboxes."""
    group = parser.add_argument_group(
        "limits of a new sandbox", "Also as variables: MCP_SANDBOX_MEMORY, MCP_SANDBOX_OPEN_FILES, ..."
    )
    for name, option in LIMIT_OPTIONS.items():
        group.add_argument(f"--{name}", metavar=option.metavar, help=option.summary)
    group.add_argument(
        f"--{BEST_EFFORT}", action="store_true", help="accept limits that this machine cannot enforce, and say which"
    )


def limits_of(options: argparse.Namespace) -> WantedLimits | None:
    """Return the limits that the options or variables ask for; `ConfigError` if one cannot be understood."""
    names = (*LIMIT_OPTIONS, BEST_EFFORT)
    return find_limits({name: getattr(options, name.replace("-", "_")) for name in names})


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for programs that read the output."""
    parser.add_argument("--json", action="store_true", help="print JSON")
