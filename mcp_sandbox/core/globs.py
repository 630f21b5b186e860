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
_ALTERNATIVES = 100


def has_magic(component: str) -> bool:
    """Whether a component of a glob is more than a name."""
    return any(character in component for character in "*?[{\\")


def split_glob(glob: str) -> list[str]:
    """Split a glob at the slashes that are not inside braces; empty and `.` components are left out.

    Raises:
        InvalidRequestError: It is too long, or its brackets or braces do not match.
    """
    glob_regex(glob)
    parts, depth = [""], 0
    for piece in _pieces(glob):
        depth += (piece == "{") - (piece == "}")
        if piece == "/" and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [part for part in parts if part not in ("", ".")]


def glob_regex(glob: str) -> re.Pattern[str]:
    """Compile a glob to an expression that a whole relative path must match, in time linear in its length.

    Raises:
        InvalidRequestError: It is too long, or its brackets or braces do not match.
    """
    if len(glob) > _GLOB_MAX_CHARS:
        raise _bad_glob(glob, f"it has more than {_GLOB_MAX_CHARS:,} characters")
    alternatives = _expanded(glob)
    return re.compile("|".join(_path_expression(alternative, glob) for alternative in alternatives), re.DOTALL)


def _pieces(glob: str) -> list[str]:
    """Split a glob into escapes, character classes and single characters."""
    pieces: list[str] = []
    at = 0
    while at < len(glob):
        size = 1
        if glob[at] == "\\":
            size = 2
            if at + 1 == len(glob):
                raise _bad_glob(glob, "a '\\' at its end escapes nothing")
        elif glob[at] == "[":
            end = glob.find("]", at + 2 + (glob[at + 1 : at + 2] in ("!", "^")))
            if end < 0:
                raise _bad_glob(glob, "a '[' is not closed")
            size = end + 1 - at
        pieces.append(glob[at : at + size])
        at += size
    return pieces


def _expanded(glob: str) -> list[list[str]]:
    """Return the pieces of each alternative that the braces of a glob stand for."""
    done: list[list[str]] = [[]]
    stack: list[tuple[list[list[str]], list[list[str]]]] = []
    for piece in _pieces(glob):
        if piece == "{":
            stack.append((done, []))
            done = [[]]
        elif piece in ("}", ",") and stack:
            before, alternatives = stack[-1]
            alternatives += done
            done = [[]]
            if piece == "}":
                stack.pop()
                done = [first + second for first in before for second in alternatives]
        elif piece == "}":
            raise _bad_glob(glob, "a '}' closes nothing")
        else:
            for alternative in done:
                alternative.append(piece)
        if len(done) > _ALTERNATIVES or (stack and len(stack[-1][1]) > _ALTERNATIVES):
            raise _bad_glob(glob, f"its braces stand for more than {_ALTERNATIVES} globs")
    if stack:
        raise _bad_glob(glob, "a '{' is not closed")
    return done


def _path_expression(pieces: list[str], glob: str) -> str:
    """Translate a glob without braces. What follows a `**` is sought at its first place, with no way back."""
    names: list[list[str]] = [[]]
    for piece in pieces:
        if piece == "/":
            names.append([])
        else:
            names[-1].append(piece)
    runs: list[list[str]] = [[]]
    last = len(names) - 1
    for index, name in enumerate(names):
        if name == ["*", "*"] and index < last:
            runs.append([])
        else:
            everything = name == ["*", "*"]
            runs[-1].append(r".+" if everything else _name_expression(name, glob) + ("" if index == last else "/"))
    first, *others = ["".join(run) for run in runs]
    if not others:
        return first
    middle = "".join(rf"(?>(?:[^/]+/)*?{run})" for run in others[:-1])
    return rf"{first}{middle}(?:[^/]+/)*{others[-1]}"


def _name_expression(pieces: list[str], glob: str) -> str:
    """Translate one component; what follows a star is sought at its first place, with no way back but the last one."""
    runs: list[str] = [""]
    for piece in pieces:
        if piece == "*":
            runs.append("")
        elif piece == "?":
            runs[-1] += r"[^/]"
        elif len(piece) > 1 and piece[0] == "[":
            runs[-1] += _class_expression(piece, glob)
        else:
            runs[-1] += re.escape(piece[-1])
    first, *others = runs
    if not others:
        return first
    return first + "".join(rf"(?>[^/]*?{run})" for run in others[:-1] if run) + r"[^/]*" + others[-1]


def _class_expression(piece: str, glob: str) -> str:
    negated = piece[1] in "!^"
    members = re.sub(r"([\\\[\]^&~|])", r"\\\1", piece[1 + negated : -1])
    expression = f"(?!/)[{'^' if negated else ''}{members}]"
    try:
        re.compile(expression)
    except re.error as error:
        raise _bad_glob(glob, f"the range in {piece!r} is not one") from error
    return expression


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
