"""What is wrong with a manifest, so that its writer finds the line."""

from collections.abc import Sequence
from typing import NamedTuple

from mcp_sandbox.core.errors import ConfigError

__all__ = ["ManifestError", "Problem", "printable"]

_SHOWN = 5


class Problem(NamedTuple):
    """One thing that is wrong."""

    line: int
    """From 1; 0 where it has no line."""
    key: str
    """Dotted, as `sandbox.resources.cpu`; empty where it concerns the whole file."""
    what: str

    def __str__(self) -> str:
        """Return it for a reader."""
        place = f"line {self.line}: " if self.line else ""
        return printable(f"{place}{self.key}: {self.what}" if self.key else f"{place}{self.what}")


class ManifestError(ConfigError):
    """A manifest cannot be used.

    Args:
        name: What the file is called, for a reader.
        problems: All that is wrong, in the order of the lines.
    """

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        shown = [str(problem) for problem in self.problems[:_SHOWN]]
        if more := len(self.problems) - len(shown):
            shown.append(f"and {more} more")
        super().__init__(
            f"{name} cannot be used", why="; ".join(shown), fix="Correct it; `mcp-sandbox manifest check` tries it"
        )


def printable(text: str) -> str:
    """Return a text with everything escaped that a terminal or a reader could be misled by."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
