"""What the commands' options have in common."""

import argparse

__all__ = ["add_image", "add_json", "add_sandbox", "add_scope", "parser"]


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
    parser.add_argument("--provider", metavar="NAME", help="the provider of new sandboxes (default: local)")


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
        help="what new sandboxes start from: an image's name, or the path (./X) of a root file system or its archive",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for programs that read the output."""
    parser.add_argument("--json", action="store_true", help="print JSON")
