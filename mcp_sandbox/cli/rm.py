"""`mcp-sandbox rm`: destroy sandboxes."""

import argparse
import sys

from mcp_sandbox.cli.options import add_scope, parser
from mcp_sandbox.cli.running import run
from mcp_sandbox.cli.wording import for_people
from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.service.sandboxes import SandboxService

__all__ = ["main"]

_EXAMPLE = """\
  mcp-sandbox rm box sb_3k7q
  mcp-sandbox rm --own"""


def main(arguments: list[str]) -> int:
    """Destroy sandboxes."""
    reader = parser("rm", "End everything in sandboxes and delete their files; snapshots stay.", _EXAMPLE)
    reader.add_argument("sandbox", nargs="*", help="id, id prefix or name")
    reader.add_argument("--own", action="store_true", help="the project's own sandbox")
    reader.add_argument(
        "--forget",
        action="store_true",
        help="forget it even if its engine cannot be reached; its files then stay there",
    )
    add_scope(reader)
    options = reader.parse_args(arguments)
    if not options.sandbox and not options.own:
        reader.error("name sandboxes, or give --own")
    return run(options, lambda sandboxes: _destroy(sandboxes, options), only_looks=True)


async def _destroy(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    status = 0
    handles: list[str] = [*options.sandbox]
    if options.own:
        own = await sandboxes.find()
        if own is None:
            print("mcp-sandbox: this project has no sandbox of its own yet", file=sys.stderr)
            status = 2
        else:
            handles.append(own.id)
    for handle in handles:
        try:
            record = await sandboxes.destroy(handle, forget=options.forget)
        except SandboxError as error:
            print(f"mcp-sandbox: {for_people(error)}", file=sys.stderr)
            status = 2
        else:
            print(record.id)
    return status
