"""`mcp-sandbox snapshot`: create, list, restore and delete snapshots; as files, export, import and verify them."""

import argparse
import sys

from mcp_sandbox.cli.options import add_json, add_sandbox, add_scope
from mcp_sandbox.cli.running import run, tell
from mcp_sandbox.cli.snapshot_files import export, export_options, import_, import_options, verify, verify_options
from mcp_sandbox.cli.tables import print_json, print_table
from mcp_sandbox.cli.verbs import Verb, read_verb
from mcp_sandbox.cli.wording import for_people
from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.service.paths import display
from mcp_sandbox.service.quantities import local_time, size
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.snapshots import KEPT_BEFORE_RESTORES, Branch, SnapshotService

__all__ = ["main"]

_EXAMPLE = """\
  mcp-sandbox snapshot create --note "before the upgrade"
  mcp-sandbox snapshot list
  mcp-sandbox snapshot restore 1f2e3d src/app.py
  mcp-sandbox snapshot export 1f2e3d work.snapshot"""
_SHORT = 12


_SUMMARY = "Create, list, restore and delete snapshots; export, import and verify them as files."


def main(arguments: list[str]) -> int:
    """Carry out one of the verbs."""
    verb, options = read_verb("snapshot", _SUMMARY, _EXAMPLE, _VERBS, add_scope, arguments)
    return run(options, lambda sandboxes: verb.carry_out(sandboxes, options))


def _create_options(reader: argparse.ArgumentParser) -> None:
    reader.add_argument("--note", default="", help="what this state is")
    add_sandbox(reader)


async def _create(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    taken = await SnapshotService(sandboxes).create(options.sandbox, options.note)
    tell(taken.sandbox.notices)
    print(taken.snapshot.id)
    return 0


def _list_options(reader: argparse.ArgumentParser) -> None:
    reader.add_argument("--sandbox", metavar="H", default="", help="only those of this one (default: every project's)")
    add_json(reader)


async def _list(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    snapshots = SnapshotService(sandboxes)
    branches = await snapshots.measured(await snapshots.list(options.sandbox))
    if options.json:
        print_json([_facts(branch) for branch in branches])
    elif not branches:
        print("No snapshots yet. `mcp-sandbox snapshot create` takes one.")
    else:
        header = ("SNAPSHOT", "WHEN", "SIZE", "OF", "HERE", "NOTE")
        print_table(header, [_row(branch) for branch in branches])
    return 0


def _row(branch: Branch) -> tuple[str, ...]:
    snapshot = branch.snapshot
    return (
        "  " * branch.depth + snapshot.id[:_SHORT] + " *" * branch.is_here,
        local_time(snapshot.created_at),
        "?" if branch.size_bytes is None else size(branch.size_bytes),
        "(file)" if branch.imported else snapshot.sandbox[:_SHORT],
        ",".join(branch.sandboxes) or "-",
        display(" ".join(snapshot.note.split())),
    )


def _facts(branch: Branch) -> dict[str, object]:
    snapshot = branch.snapshot
    return {
        "id": snapshot.id,
        "parent": snapshot.parent,
        "sandbox": snapshot.sandbox,
        "created_at": snapshot.created_at,
        "note": snapshot.note,
        "provider": snapshot.native.provider,
        "holds": sorted(snapshot.native.holds),
        "size_bytes": branch.size_bytes,
        "paused_s": snapshot.native.paused_s,
        "method": snapshot.native.method,
        "here": branch.is_here,
        "sandboxes": list(branch.sandboxes),
        "imported": branch.imported,
    }


def _restore_options(reader: argparse.ArgumentParser) -> None:
    reader.add_argument("snapshot", help="id or unique prefix")
    reader.add_argument("paths", nargs="*", metavar="PATH", help="what to put back (default: everything)")
    add_sandbox(reader)


async def _restore(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    restored = await SnapshotService(sandboxes).restore(options.snapshot, options.sandbox, options.paths)
    tell(restored.sandbox.notices)
    print(f"Restored {', '.join(map(display, restored.paths)) or 'everything'}; what was there before is:")
    print(restored.before.id)
    return 0


def _delete_options(reader: argparse.ArgumentParser) -> None:
    reader.add_argument("snapshot", nargs="+", help="id or unique prefix")


async def _delete(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    status = 0
    for prefix in options.snapshot:
        try:
            print((await SnapshotService(sandboxes).delete(prefix)).id)
        except SandboxError as error:
            print(f"mcp-sandbox: {for_people(error)}", file=sys.stderr)
            status = 2
    return status


_VERBS: dict[str, Verb[SandboxService]] = {
    "create": Verb("keep the state of a sandbox, and print its id", 'create --note "x"', _create_options, _create),
    "list": Verb(
        "list snapshots under their parents, with the sandboxes that go on from each; * marks this project's own",
        "list",
        _list_options,
        _list,
    ),
    "restore": Verb(
        f"put a state back; what was there is kept as a snapshot, of each sandbox the newest {KEPT_BEFORE_RESTORES}",
        "restore 1f2e3d src/app.py",
        _restore_options,
        _restore,
    ),
    "delete": Verb("delete snapshots for good", "delete 1f2e3d 9c8b7a", _delete_options, _delete),
    "export": Verb("write a snapshot into one file", "export 1f2e3d work.snapshot", export_options, export),
    "import": Verb("take in a snapshot from a file; print its id", "import work.snapshot", import_options, import_),
    "verify": Verb(
        "check snapshots or files to the last byte; exit status 1 if something is wrong",
        "verify",
        verify_options,
        verify,
    ),
}
