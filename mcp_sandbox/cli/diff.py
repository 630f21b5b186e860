"""`mcp-sandbox diff`: what changed between snapshots, a sandbox as it is, and what it started as."""

import argparse
import sys
from collections import Counter
from typing import Any

from anyio import to_thread

from mcp_sandbox.cli.options import add_json, add_sandbox, add_scope, parser
from mcp_sandbox.cli.running import run
from mcp_sandbox.cli.tables import print_json
from mcp_sandbox.core.differences import Action, Change, Differences, Side
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.service.differences import LIVE, START, compare
from mcp_sandbox.service.paths import display, resolve
from mcp_sandbox.service.quantities import size
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.unified import unified

__all__ = ["main", "show"]

_SUMMARY = """\
Show what changed from A to B, each of them the id of a snapshot, `live` (the
sandbox as it is) or `start` (what it started as: the project, or a snapshot).
Without B it is `live`, without both `start` to `live`. What follows is a
PATH; put `--` before PATHs that could be ids. Of binary files and those above
256 KiB a diff only says that they differ, which `git apply` does not take;
`mcp-sandbox exec -- tar c .` brings everything home. What changed outside of
/workspace is shown behind `#`, which `git apply` skips."""
_EXAMPLE = """\
  mcp-sandbox diff
  mcp-sandbox diff 1f2e3d --stat
  mcp-sandbox diff 1f2e3d 9c8b7a src/
  mcp-sandbox diff -- src/ | git apply"""
_TEXT_BYTES = 256 << 10
_MOST = 100_000
_LETTERS = {Action.ADDED: "A", Action.DELETED: "D", Action.MODIFIED: "M", Action.TYPE_CHANGED: "T"}
_HEX = frozenset("0123456789abcdefABCDEF")


def main(arguments: list[str]) -> int:
    """Compare two states."""
    reader = parser("diff", _SUMMARY, _EXAMPLE)
    reader.add_argument("state", nargs="*", metavar="A B PATH", help="what to compare, and where")
    reader.add_argument("--stat", action="store_true", help="one line for each path instead of a diff")
    add_sandbox(reader)
    add_json(reader)
    add_scope(reader)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = reader.parse_intermixed_args(arguments[:end])
    rest: list[str] = [*options.state]
    named = [rest.pop(0) for _ in range(2) if rest and _is_state(rest[0])]
    options.before, options.after = [*named, LIVE][:2] if named else (START, LIVE)
    options.paths = [*rest, *arguments[end + 1 :]]
    return run(options, lambda sandboxes: _diff(sandboxes, options))


def _is_state(word: str) -> bool:
    return word in (LIVE, START) or (4 <= len(word) <= 64 and set(word) <= _HEX)


async def _diff(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    found = await compare(
        sandboxes,
        options.before,
        options.after,
        handle=options.sandbox,
        paths=options.paths,
        limit=_MOST,
        text_bytes=0 if options.stat or options.json else _TEXT_BYTES,
    )
    await to_thread.run_sync(show, found, options)
    if options.paths and not found.changes and not found.unseen:
        where = ", ".join(display(resolve(path)) for path in options.paths)
        print(f"mcp-sandbox: taken for paths, at which nothing changed: {where}", file=sys.stderr)
    return 0


def show(found: Differences, options: argparse.Namespace) -> None:
    """Print the changes as the options say, and on standard error what is missing of them."""
    if options.json:
        changes = [_facts(change) for change in found.changes]
        print_json({"changes": changes, "truncated": found.truncated, "unseen": found.unseen})
    elif options.stat:
        for change in found.changes:
            print(_line(change))
        print(_total(Counter(change.action for change in found.changes)))
    else:
        for change in found.changes:
            sys.stdout.write(unified(change))
    for path in found.unseen:
        print(f"mcp-sandbox: could not be looked at, so what changed is not known: {display(path)}", file=sys.stderr)
    if found.truncated:
        print("mcp-sandbox: there is more; name PATHs to see it", file=sys.stderr)


def _line(change: Change) -> str:
    details = ", ".join([_sizes(change), *_modes(change), *["owner"] * change.owner_differs])
    return f"{_LETTERS[change.action]} {display(change.path)}  {details}"


def _sizes(change: Change) -> str:
    shown = [_size(side) for side in (change.before, change.after) if side is not None]
    return shown[0] if len(set(shown)) == 1 else " -> ".join(shown)


def _size(side: Side) -> str:
    return size(side.size_bytes) if side.kind is FileKind.FILE else side.kind


def _modes(change: Change) -> list[str]:
    if change.before is None or change.after is None or change.before.mode == change.after.mode:
        return []
    return [f"mode {change.before.mode:04o} -> {change.after.mode:04o}"]


def _total(counts: "Counter[Action]") -> str:
    words = [f"{count} {action.replace('_', ' ')}" for action, count in sorted(counts.items())]
    return ", ".join(words) or "nothing changed"


def _facts(change: Change) -> dict[str, Any]:
    return {
        "path": change.path,
        "action": change.action,
        "before": _side(change.before),
        "after": _side(change.after),
        "content_differs": change.content_differs,
        "owner_differs": change.owner_differs,
    }


def _side(side: Side | None) -> dict[str, Any] | None:
    return None if side is None else {"kind": side.kind, "mode": f"{side.mode:04o}", "size_bytes": side.size_bytes}
