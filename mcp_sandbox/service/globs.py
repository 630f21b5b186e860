"""Globs over paths, as shells and ripgrep know them, and the directories that nobody means when they say `**`.

`*`, `?` and `[...]` stay within a name, `**` as a whole component is any number of directories, `{a,b}` is either.
"""

import re
from dataclasses import dataclass

from mcp_sandbox.core.errors import InvalidRequestError

__all__ = [
    "HEAVY_DIRECTORIES",
    "CompiledFilter",
    "GlobFilter",
    "asks_for_hidden",
    "glob_regex",
    "has_magic",
    "pruned_for",
    "skipped",
    "split_glob",
]

HEAVY_DIRECTORIES = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".jj",
        "node_modules",
        "bower_components",
        "__pycache__",
        ".venv",
        "venv",
        ".tox",
        ".nox",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".hypothesis",
        ".cache",
        ".gradle",
        ".terraform",
        ".next",
        ".nuxt",
        "site-packages",
    }
)
"""Directories with thousands of files that nobody wrote by hand."""

_GLOB_MAX_CHARS = 1_000


def has_magic(component: str) -> bool:
    """Whether a component of a glob is more than a name."""
    return any(character in component for character in "*?[{\\")


def split_glob(glob: str) -> list[str]:
    """Split a glob at the slashes that are not inside braces; empty and `.` components are left out.

    Raises:
        InvalidRequestError: It is too long, or its brackets or braces do not match.
    """
    glob_regex(glob)
    parts, depth, start = [""], 0, 0
    while start < len(glob):
        character = glob[start]
        if character == "\\":
            parts[-1] += glob[start : start + 2]
            start += 2
            continue
        depth += (character == "{") - (character == "}" and depth > 0)
        if character == "/" and not depth:
            parts.append("")
        else:
            parts[-1] += character
        start += 1
    return [part for part in parts if part not in ("", ".")]


def glob_regex(glob: str) -> re.Pattern[str]:
    """Compile a glob to an expression that a whole relative path must match.

    Raises:
        InvalidRequestError: It is too long, or its brackets or braces do not match.
    """
    if len(glob) > _GLOB_MAX_CHARS:
        raise _bad_glob(glob, f"it has more than {_GLOB_MAX_CHARS:,} characters")
    pattern, depth, at = "", 0, 0
    while at < len(glob):
        character = glob[at]
        starts_name = at == 0 or glob[at - 1] in ("/{," if depth else "/")
        at += 1
        if character == "*" and glob[at : at + 1] == "*":
            after = glob[at + 1 : at + 2]
            at += 1
            if starts_name and after == "/":
                pattern, at = pattern + r"(?:[^/]+/)*", at + 1
            elif starts_name and (not after or (depth and after in "},")):
                pattern += r".+"
            else:
                pattern += r"[^/]*"
        elif character == "*":
            pattern += r"[^/]*"
        elif character == "?":
            pattern += r"[^/]"
        elif character == "[":
            members, at = _members(glob, at)
            pattern += members
        elif character == "{":
            pattern, depth = pattern + "(?:", depth + 1
        elif character == "}" and depth:
            pattern, depth = pattern + ")", depth - 1
        elif character == "," and depth:
            pattern += "|"
        elif character == "\\" and at < len(glob):
            pattern, at = pattern + re.escape(glob[at]), at + 1
        else:
            pattern += re.escape(character)
    if depth:
        raise _bad_glob(glob, "a '{' is not closed")
    return re.compile(pattern, re.DOTALL)


def _members(glob: str, at: int) -> tuple[str, int]:
    """Translate a character class whose opening bracket is just before `at`."""
    negated = glob[at : at + 1] in ("!", "^")
    start = at + negated
    end = glob.find("]", start + 1)
    if end < 0:
        raise _bad_glob(glob, "a '[' is not closed")
    members = re.sub(r"([\\\[\]^&~|])", r"\\\1", glob[start:end])
    expression = f"[{'^/' if negated else ''}{members}]"
    try:
        re.compile(expression)
    except re.error as error:
        raise _bad_glob(glob, f"the range in '[{glob[at:end]}]' is not one") from error
    return f"(?!/){expression}", end + 1


def _bad_glob(glob: str, why: str) -> InvalidRequestError:
    shown = glob if len(glob) <= 100 else f"{glob[:100]}..."
    return InvalidRequestError(f"Glob {shown!r} cannot be used", why=why, fix="Correct it, or put '\\' before the sign")


def pruned_for(components: list[str]) -> frozenset[str]:
    """Return the heavy directories that a glob with these components does not ask for."""
    asked = [glob_regex(component) for component in components if component.strip("*")]
    return frozenset(name for name in HEAVY_DIRECTORIES if not any(regex.fullmatch(name) for regex in asked))


def asks_for_hidden(components: list[str]) -> bool:
    """Whether a glob with these components names something hidden."""
    return any(re.search(r"(^|[{,])\.", component) for component in components)


def skipped(relative: str, components: list[str], pruned: frozenset[str]) -> bool:
    """Whether a path lies in a heavy or hidden directory that a glob with these components does not ask for."""
    hidden_asked = asks_for_hidden(components)
    return any(name in pruned or (name.startswith(".") and not hidden_asked) for name in relative.split("/")[:-1])


@dataclass(frozen=True, slots=True)
class GlobFilter:
    """Which files of a tree a search looks at, as `rg --glob` says it.

    Without a slash the glob is for names at any depth, else for the path below the searched directory. One that begins
    with `!` leaves files out.
    """

    glob: str = ""

    @property
    def negated(self) -> bool:
        """Whether it leaves out what it matches."""
        return self.glob.startswith("!")

    @property
    def components(self) -> list[str]:
        """The names in it, for `pruned_for` and `skipped`."""
        return [] if self.negated else split_glob(self.glob)

    def compiled(self) -> "CompiledFilter":
        """Return it ready for use.

        Raises:
            InvalidRequestError: It is not a glob.
        """
        glob = self.glob.removeprefix("!")
        directories_only = glob.endswith("/")
        glob = glob.rstrip("/")
        if "/" not in glob:
            glob = f"**/{glob}"
        regex = glob_regex(glob.removeprefix("/")) if self.glob else None
        return CompiledFilter(regex, negated=self.negated, directories_only=directories_only)


@dataclass(frozen=True, slots=True)
class CompiledFilter:
    """A filter ready for use."""

    regex: re.Pattern[str] | None
    negated: bool
    directories_only: bool

    def admits(self, relative: str) -> bool:
        """Whether the file at this path, relative to the searched directory, is looked at."""
        if self.regex is None:
            return True
        if not self.negated:
            return not self.directories_only and self.regex.fullmatch(relative) is not None
        parts = relative.split("/")
        candidates = ["/".join(parts[:end]) for end in range(1, len(parts) + (not self.directories_only))]
        return not any(self.regex.fullmatch(candidate) for candidate in candidates)
