"""`mcp-sandbox diff`: what changed between snapshots, a sandbox as it is, and what it started as."""

import argparse
import sys
from typing import Any

from anyio import to_thread

from mcp_sandbox.cli.colours import add_colour, coloured, wants_colour
from mcp_sandbox.cli.options import add_json, add_sandbox, add_scope, parser
from mcp_sandbox.cli.running import run
from mcp_sandbox.cli.tables import print_json
from mcp_sandbox.core.differences import Differences, Side
from mcp_sandbox.service.change_lines import diff_of, summary_line, totals
from mcp_sandbox.service.changes import TEXT_BYTES, is_told_by_others
from mcp_sandbox.service.differences import LIVE, START, compare
from mcp_sandbox.service.paths import display, resolve
from mcp_sandbox.service.renames import Entry, with_renames
from mcp_sandbox.service.sandboxes import SandboxService

__all__ = ["main", "show"]

_SUMMARY = """\
Show what changed from A to B, each of them the id of a snapshot, `live` (the
sandbox as it is) or `start` (what it started as: the project, or a snapshot).
Without B it is `live`, without both `start` to `live`. What follows is a
PATH; put `--` before PATHs that could be ids. Of binary files and those above
256 KiB a diff only says that they differ, which `git apply` does not take;
`mcp-sandbox apply` brings everything home. What changed outside of /workspace
is shown behind `#`, which `git apply` skips."""
_EXAMPLE = """\
  mcp-sandbox diff
  mcp-sandbox diff 1f2e3d --stat
  mcp-sandbox diff 1f2e3d 9c8b7a src/
  mcp-sandbox diff -- src/ | git apply"""
_MOST = 100_000
_HEX = frozenset("0123456789abcdefABCDEF")


def main(arguments: list[str]) -> int:
    """Compare two states."""
    reader = parser("diff", _SUMMARY, _EXAMPLE)
    reader.add_argument("state", nargs="*", metavar="A B PATH", help="what to compare, and where")
    reader.add_argument("--stat", action="store_true", help="one line for each path instead of a diff")
    add_colour(reader)
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
        text_bytes=TEXT_BYTES,
    )
    await to_thread.run_sync(show, found, options)
    if options.paths and not found.changes and not found.unseen:
        where = ", ".join(display(resolve(path)) for path in options.paths)
        print(f"mcp-sandbox: taken for paths, at which nothing changed: {where}", file=sys.stderr)
    return 0


def show(found: Differences, options: argparse.Namespace) -> None:
    """Print the changes as the options say, and on standard error what is missing of them."""
    entries = with_renames(found.changes)
    if options.json:
        changes = [_facts(entry) for entry in entries]
        print_json({"changes": changes, "truncated": found.truncated, "unseen": found.unseen})
    elif options.stat:
        for entry in entries:
            print(summary_line(entry))
        print(totals(entries))
    else:
        in_colour = wants_colour(options)
        for entry in entries:
            if not is_told_by_others(entry.change):
                text = diff_of(entry)
                sys.stdout.write(coloured(text) if in_colour else text)
    for path in found.unseen:
        print(f"mcp-sandbox: could not be looked at, so what changed is not known: {display(path)}", file=sys.stderr)
    if found.truncated:
        print("mcp-sandbox: there is more; name PATHs to see it", file=sys.stderr)


def _facts(entry: Entry) -> dict[str, Any]:
    change = entry.change
    renamed = {"renamed_from": entry.source, "similarity": entry.similarity} if entry.source else {}
    return {
        "path": change.path,
        "action": change.action,
        "before": _side(change.before),
        "after": _side(change.after),
        "content_differs": change.content_differs,
        "owner_differs": change.owner_differs,
        **renamed,
    }


def _side(side: Side | None) -> dict[str, Any] | None:
    return None if side is None else {"kind": side.kind, "mode": f"{side.mode:04o}", "size_bytes": side.size_bytes}
