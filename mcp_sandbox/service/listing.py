"""Find files by a glob, newest first, without walking into what nobody means."""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import FileInfo, FileKind, ListRequest, StatRequest
from mcp_sandbox.core.globs import glob_regex, has_magic, pruned_for, skipped, split_glob
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.service.paging import ANSWER_MAX_CHARS, ANSWER_MAX_LINES
from mcp_sandbox.service.paths import display, label, resolve, shorten

__all__ = ["TREE_DEPTH", "TREE_MAX_ENTRIES", "GlobQuery", "list_matching"]

TREE_DEPTH = 64
TREE_MAX_ENTRIES = 50_000

_FRAME_CHARS = 1_500
_FRAME_LINES = 5
_NAMED_SKIPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobQuery:
    """A glob below a directory, with its plain beginning made part of the directory."""

    base: str
    components: tuple[str, ...]
    """None where the glob is a plain path."""
    directories_only: bool = False

    @classmethod
    def parse(cls, pattern: str, directory: str) -> "GlobQuery":
        """Return the query for a pattern that starts at `directory`, or is absolute.

        Raises:
            InvalidRequestError: The pattern is no glob.
        """
        base = "/" if pattern.startswith("/") else directory
        components = split_glob(pattern)
        while components and not has_magic(components[0]):
            base = posixpath.join(base, components.pop(0))
        if ".." in components:
            raise InvalidRequestError(
                f"Glob {pattern!r} cannot be used", why="'..' follows a wildcard", fix="Give the directory as `path`"
            )
        resolve(base)
        return cls(base=base, components=tuple(components), directories_only=pattern.endswith("/") and bool(components))

    @property
    def deep(self) -> bool:
        """Whether it reaches down any number of directories."""
        return any("**" in component or "/" in component for component in self.components)


async def list_matching(sandbox: Sandbox, query: GlobQuery) -> str:
    """Return an answer with the paths that match; for the plain path of a directory, with its entries.

    Raises:
        OSError: As `Sandbox.list` for the base.
    """
    components = list(query.components)
    if not components:
        found = await sandbox.stat(StatRequest(path=query.base))
        if found.kind is not FileKind.DIRECTORY:
            return _answer(query.base, [found], skips=[])
        components = ["*"]
    depth = TREE_DEPTH if query.deep else len(components)
    pruned = pruned_for(components) if depth > 1 else frozenset[str]()
    listing = await sandbox.list(ListRequest(path=query.base, depth=depth, limit=TREE_MAX_ENTRIES, prune=pruned))
    regex = glob_regex("/".join(components))
    start = len(query.base.rstrip("/")) + 1
    matches: list[FileInfo] = []
    skips: list[str] = []
    for entry in listing.entries:
        relative = entry.path[start:]
        if skipped(relative, components, pruned):
            continue
        is_directory = entry.kind is FileKind.DIRECTORY
        if is_directory and relative.count("/") < depth - 1 and skipped(f"{relative}/", components, pruned):
            skips.append(entry.path)
        if regex.fullmatch(relative) and (is_directory or not query.directories_only):
            matches.append(entry)
    matches.sort(key=lambda entry: (-entry.modified_ns, entry.path))
    looked_at = len(listing.entries) if listing.truncated else None
    return _answer(query.base, matches, skips=sorted(skips), looked_at=looked_at)


def _answer(base: str, matches: Sequence[FileInfo], *, skips: Sequence[str], looked_at: int | None = None) -> str:
    lines: list[str] = []
    chars_left = ANSWER_MAX_CHARS - _FRAME_CHARS
    for entry in matches[: ANSWER_MAX_LINES - _FRAME_LINES]:
        line = _line(entry)
        chars_left -= len(line) + 1
        if chars_left < 0:
            break
        lines.append(line)
    notes: list[str] = []
    if len(lines) < len(matches):
        notes.append(f"[{len(matches) - len(lines):,} older entries not shown; narrow the pattern]")
    if looked_at is not None:
        notes.append(f"[only {looked_at:,} entries were looked at; narrow the pattern or the path]")
    if skips:
        named = ", ".join(f"{label(path)}/" for path in skips[:_NAMED_SKIPS])
        more = f" and {len(skips) - _NAMED_SKIPS:,} more" if len(skips) > _NAMED_SKIPS else ""
        notes.append(f"[not entered: {named}{more}; name one in the pattern to look inside]")
    if not matches:
        notes.insert(0, "[nothing matches]")
    return "\n".join([f"path={label(base)} entries={len(matches)}", *lines, *notes])


def _line(entry: FileInfo) -> str:
    name = display(shorten(entry.path))
    if entry.kind is FileKind.DIRECTORY:
        return f"{name}/"
    if entry.kind is FileKind.SYMLINK:
        return f"{name} -> {display(entry.link_target or '')}"
    return name if entry.kind is FileKind.FILE else f"{name} ({entry.kind})"
