"""`mcp-sandbox apply`: bring changes home into the project, or take back what came home last."""

import argparse

from mcp_sandbox.app import apply_service
from mcp_sandbox.cli.options import add_sandbox, add_scope, parser
from mcp_sandbox.cli.running import run, tell
from mcp_sandbox.service.applied_lines import applied_lines
from mcp_sandbox.service.paths import display
from mcp_sandbox.service.quantities import local_time
from mcp_sandbox.service.sandboxes import SandboxService

__all__ = ["main"]

_SUMMARY = """\
Bring what changed in the sandbox home into the project: the PATHs and what is
below them, or everything. Look at it with `mcp-sandbox diff` first. All of it
is applied or nothing: if the project itself changed where the sandbox did,
nothing is, and you are told what and how (exit status 2). What makes programs
of yours do something (.git/hooks, .vscode, .mcp.json, ...) stays in the sandbox
unless you say --protected; devices, setuid files and links that lead out of
the project always do. Files keep their owner and access lists.

--undo puts back what was there before the last apply, of the last 10, unless
it was changed since."""
_EXAMPLE = """\
  mcp-sandbox apply --dry-run
  mcp-sandbox apply src/ README.md
  mcp-sandbox apply --undo"""


def main(arguments: list[str]) -> int:
    """Apply or undo."""
    reader = parser("apply", _SUMMARY, _EXAMPLE)
    reader.add_argument("paths", nargs="*", metavar="PATH", help="what to bring (default: everything)")
    reader.add_argument("--dry-run", action="store_true", help="only say what would happen")
    reader.add_argument("--undo", action="store_true", help="take back what was applied last")
    reader.add_argument("--protected", action="store_true", help="bring files that programs on this machine obey, too")
    reader.add_argument(
        "--overwrite", action="store_true", help="take the sandbox's version where the project changed (--undo has it)"
    )
    add_sandbox(reader)
    add_scope(reader)
    options = reader.parse_args(arguments)
    if options.undo and (options.paths or options.dry_run or options.protected or options.overwrite or options.sandbox):
        reader.error("--undo takes back the last apply as a whole, and goes with no other option")
    return run(options, lambda sandboxes: (_undo if options.undo else _apply)(sandboxes, options))


async def _apply(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    applied = await apply_service(sandboxes).apply(
        options.sandbox, options.paths, dry_run=options.dry_run, protected=options.protected,
        overwrite=options.overwrite,
    )  # fmt: skip
    tell(applied.sandbox.notices)
    print("\n".join(applied_lines(applied, dry_run=options.dry_run, most=1_000)))
    return 1 if applied.plan.conflicts else 0


async def _undo(sandboxes: SandboxService, _: argparse.Namespace) -> int:
    undone = await apply_service(sandboxes).undo(sandboxes.owner.project)
    print(f"Put back as it was before {local_time(undone.at)}:")
    print("\n".join(f"  {display(path)}" for path in undone.paths))
    return 0
