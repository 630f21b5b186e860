"""`mcp-sandbox gc`: remove what killed processes left behind."""

import argparse
from dataclasses import asdict

from mcp_sandbox.app import DEFAULT_PROVIDER
from mcp_sandbox.cli.options import add_json, add_scope, parser
from mcp_sandbox.cli.running import run
from mcp_sandbox.cli.tables import print_json, print_table
from mcp_sandbox.core.leftovers import Leftover
from mcp_sandbox.service.sandboxes import SandboxService

__all__ = ["main"]

_EXAMPLE = "  mcp-sandbox gc --dry-run"


def main(arguments: list[str]) -> int:
    """Remove leftovers, or list them."""
    reader = parser(
        "gc",
        "Remove what killed processes left: sandboxes and snapshots of the engine that no record names, layers, "
        "unfinished files. Servers do so by themselves, but keep whole sandboxes for a week. What is in use stays.",
        _EXAMPLE,
    )
    reader.add_argument("-n", "--dry-run", action="store_true", help="only say what would go")
    add_json(reader)
    add_scope(reader)
    options = reader.parse_args(arguments)
    return run(options, lambda sandboxes: _collect(sandboxes, options), only_looks=True)


async def _collect(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    reaper = sandboxes.housekeeping.reaper(max_age_s=None)
    names = {options.provider or DEFAULT_PROVIDER, *(summary.record.provider for summary in await sandboxes.list())}
    found: list[Leftover] = []
    for name in sorted(names):
        found += await reaper.collect(name, kept_s=0, dry_run=options.dry_run)
    if options.json:
        print_json([asdict(leftover) for leftover in found])
    elif found:
        print_table(("KIND", "NAME", "WHY"), [(one.kind, one.name, one.why) for one in found])
    else:
        print("Nothing is left over.")
    return 0
