"""Diffs in colour, for a terminal; what stands in them cannot make it do anything."""

import argparse
import os
import sys
from typing import Final

from mcp_sandbox.service.change_lines import visible

__all__ = ["add_colour", "coloured", "wants_colour"]

_BOLD, _RED, _GREEN, _CYAN, _GREY, _END = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[90m", "\x1b[m"
_HEADS: Final = (
    *("diff --git ", "--- ", "+++ ", "old mode ", "new mode ", "new file mode ", "deleted file mode "),
    *("similarity index ", "rename from ", "rename to ", "Binary files "),
)


def add_colour(parser: argparse.ArgumentParser) -> None:
    """Add the option that says when there is colour."""
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour, with control characters made visible (default: on a terminal, unless NO_COLOR is set)",
    )


def wants_colour(options: argparse.Namespace) -> bool:
    """Whether there is to be colour."""
    if options.color != "auto":
        return options.color == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def coloured(diff: str) -> str:
    """Return the diff of one path in colour. A carriage return, an escape and the like are shown, not obeyed."""
    lines: list[str] = []
    inside = False
    for line in diff.removesuffix("\n").split("\n"):
        inside = line.startswith("@@ ") or (inside and line[:1] in ("+", "-", " ", "\\"))
        lines.append(f"{_colour_of(line, inside)}{visible(line)}{_END}\n")
    return "".join(lines)


def _colour_of(line: str, inside: bool) -> str:
    if line.startswith("@@ "):
        return _CYAN
    if not inside:
        return _BOLD if line.startswith(_HEADS) else _GREY
    return {"+": _GREEN, "-": _RED}.get(line[:1], "")
