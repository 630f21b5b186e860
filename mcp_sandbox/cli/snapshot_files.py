"""`mcp-sandbox snapshot export`, `import` and `verify`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from anyio import to_thread

from mcp_sandbox.cli.wording import for_people
from mcp_sandbox.core.errors import InvalidRequestError, SandboxError
from mcp_sandbox.service.exporting import export_snapshot, import_snapshot, verify_file, verify_snapshot
from mcp_sandbox.service.paths import display
from mcp_sandbox.service.quantities import size
from mcp_sandbox.service.sandboxes import SandboxService

__all__ = ["export", "export_options", "import_", "import_options", "verify", "verify_options"]

_MOST_NAMED = 20
_SHORT = 12


def export_options(reader: argparse.ArgumentParser) -> None:
    """Add the options of `export`."""
    reader.add_argument("snapshot", help="id or unique prefix")
    reader.add_argument(
        "file", type=Path, help="what to write; holds /workspace and /root, nothing of this machine or an image"
    )
    reader.add_argument("--path", action="append", default=[], metavar="DIR", help="carry this directory too")
    reader.add_argument("--force", action="store_true", help="replace a file that is there")


async def export(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    """Write a snapshot into a file."""
    if options.file == Path("-"):
        why = "it is written into a file, whole or not at all, never to standard output"
        raise InvalidRequestError("Nothing exported", why=why, fix="Name a file")
    exported = await export_snapshot(
        sandboxes, options.snapshot, options.file, paths=options.path, replace_file=options.force
    )
    _tell_left_out(exported.left_out)
    if exported.snapshot.env:
        names = ", ".join(display(name) for name, _ in exported.snapshot.env)
        print(f"mcp-sandbox: the file holds the values of these variables: {names}", file=sys.stderr)
    if image := exported.snapshot.image:
        print(
            f"mcp-sandbox: it lies on image {display(image)}, which the file names and does not hold", file=sys.stderr
        )
    print(f"Wrote {', '.join(exported.trees)} of {exported.snapshot.id[:_SHORT]}, {size(exported.size_bytes)}.")
    return 0


def import_options(reader: argparse.ArgumentParser) -> None:
    """Add the options of `import`."""
    reader.add_argument("file", type=Path, help="what `export` wrote, here or on another machine")


async def import_(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    """Take in a snapshot."""
    imported = await import_snapshot(sandboxes, options.file)
    _tell_left_out(imported.left_out)
    if imported.lacks_image:
        print(
            f"mcp-sandbox: it lies on an image called {display(imported.snapshot.image)}, which is neither in the file "
            "nor here: make one of that name before it is used (`mcp-sandbox image build` or `image import`), else its "
            "files lie on what sandboxes start from here",
            file=sys.stderr,
        )
    if imported.lacks_attributes:
        print(
            "mcp-sandbox: some of its files have extended attributes, which the provider that uses it does not keep",
            file=sys.stderr,
        )
    if imported.known:
        print("mcp-sandbox: it is here already", file=sys.stderr)
    print(imported.snapshot.id)
    return 0


def _tell_left_out(left_out: Sequence[str]) -> None:
    if not left_out:
        return
    print("mcp-sandbox: changed in the sandbox, and not in the file:", file=sys.stderr)
    for path in left_out[:_MOST_NAMED]:
        print(f"  {display(path)}", file=sys.stderr)
    if len(left_out) > _MOST_NAMED:
        print(f"  and {len(left_out) - _MOST_NAMED} more", file=sys.stderr)


def verify_options(reader: argparse.ArgumentParser) -> None:
    """Add the options of `verify`."""
    reader.add_argument("what", nargs="*", metavar="ID|FILE", help="snapshots or files (default: all snapshots)")


async def verify(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    """Check snapshots and files; say what is wrong with each."""
    faults: list[str] = []
    checked = 0
    for what in options.what or await _all(sandboxes, faults):
        checked += 1
        if _is_file(what):
            faults += await _file_faults(Path(what))
        else:
            faults += await _snapshot_faults(sandboxes, what)
    for fault in faults:
        print(fault)
    if not faults:
        print(f"{checked} checked, nothing is wrong.")
    return 1 if faults else 0


def _is_file(what: str) -> bool:
    return "/" in what or "." in what or os.path.exists(what)  # noqa: PTH110 (a word that may be no path at all)


async def _all(sandboxes: SandboxService, faults: list[str]) -> list[str]:
    damaged = await to_thread.run_sync(sandboxes.snapshots.damaged)
    faults += [f"{snapshot_id[:_SHORT]}: {why}" for snapshot_id, why in sorted(damaged.items())]
    principal = sandboxes.owner.principal
    return [stored.id for stored in await to_thread.run_sync(lambda: sandboxes.snapshots.list(principal=principal))]


async def _file_faults(path: Path) -> list[str]:
    try:
        await verify_file(path)
    except (SandboxError, OSError) as error:
        return [f"{path.name}: {for_people(error)}"]
    return []


async def _snapshot_faults(sandboxes: SandboxService, prefix: str) -> list[str]:
    try:
        stored = await sandboxes.snapshot(prefix)
    except SandboxError as error:
        return [f"{prefix[:_SHORT]}: {for_people(error)}"]
    return [f"{stored.id[:_SHORT]}: {fault}" for fault in await verify_snapshot(sandboxes, stored)]
