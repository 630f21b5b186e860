"""`mcp-sandbox fork`: new sandboxes from a live one."""

import argparse
import sys

from mcp_sandbox.cli.options import add_scope, parser
from mcp_sandbox.cli.running import run, tell
from mcp_sandbox.service.forking import fork
from mcp_sandbox.service.sandboxes import SandboxService

__all__ = ["main"]

_EXAMPLE = "  mcp-sandbox fork --count 3 --name variant"


def main(arguments: list[str]) -> int:
    """Fork a sandbox."""
    summary = "Make new sandboxes that start as a live one is now, all or none, and print their ids."
    reader = parser("fork", summary, _EXAMPLE)
    reader.add_argument("sandbox", nargs="?", default="", help="id, id prefix or name (default: the project's own)")
    reader.add_argument("--count", type=int, default=1, metavar="N", help="how many (default: 1)")
    reader.add_argument("--name", default="", metavar="X", help="name; with several, X-1, X-2, ...")
    add_scope(reader)
    options = reader.parse_args(arguments)
    return run(options, lambda sandboxes: _fork(sandboxes, options))


async def _fork(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    forks = await fork(sandboxes, options.sandbox, count=options.count, name=options.name)
    tell(forks.source.notices)
    for live in forks.made:
        print(live.record.id)
    if forks.paused_s:
        print(f"mcp-sandbox: its commands stood still for {forks.paused_s:.3f} s", file=sys.stderr)
    return 0
