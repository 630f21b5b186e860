"""`mcp-sandbox ls`: the sandboxes of this user."""

import argparse
import os

from mcp_sandbox.cli.options import add_json, add_scope, parser
from mcp_sandbox.cli.running import run
from mcp_sandbox.cli.tables import print_json, print_table
from mcp_sandbox.service.quantities import age
from mcp_sandbox.service.sandboxes import SandboxService, SandboxSummary

__all__ = ["main"]

_EXAMPLE = "  mcp-sandbox ls --json | jq -r '.[].id'"
_SHORT = 12


def main(arguments: list[str]) -> int:
    """List sandboxes."""
    reader = parser("ls", "List the sandboxes of every project; * marks this project's own.", _EXAMPLE)
    add_json(reader)
    add_scope(reader)
    options = reader.parse_args(arguments)
    return run(options, lambda sandboxes: _list(sandboxes, options), only_looks=True)


async def _list(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    summaries = await sandboxes.list()
    if options.json:
        print_json([_facts(summary) for summary in summaries])
    elif not summaries:
        print("No sandboxes yet. `mcp-sandbox exec -- true` makes the project's own.")
    else:
        header = ("SANDBOX", "NAME", "PROVIDER", "STATE", "USED", "SNAPSHOT", "PROJECT")
        print_table(header, [_row(summary) for summary in summaries])
        for detail in sorted({summary.detail for summary in summaries if summary.detail}):
            print(detail)
    return 0


def _row(summary: SandboxSummary) -> tuple[str, ...]:
    record = summary.record
    return (
        record.id[:_SHORT] + " *" * summary.is_current,
        record.name or ("(default)" if record.is_default else "-"),
        f"{record.provider} ({summary.runtime})" if summary.runtime else record.provider,
        summary.state or "unknown",
        f"{age(record.last_used_at)} ago",
        (record.parent or "-")[:_SHORT],
        _home_relative(record.project) or "-",
    )


def _home_relative(path: str) -> str:
    home = os.path.expanduser("~")  # noqa: PTH111 (pathlib raises for a user without a home)
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path


def _facts(summary: SandboxSummary) -> dict[str, object]:
    facts = {**summary.record.to_json(), "state": summary.state or "unknown", "is_current": summary.is_current}
    facts["runtime"] = summary.runtime
    facts["env"] = sorted(summary.record.env)  # names only: values are nobody's business who looks at a list
    return {**facts, "detail": summary.detail}
