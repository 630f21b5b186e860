"""What things cost, as medians beside the floor of the same run: a Markdown table.

As root on ext4 the state lies in a new file system, since a used one may make every new file dear; nothing of it stays.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import anyio

from mcp_sandbox.providers.local import LocalProvider
from tests.benchmarks.alive import alive_rows
from tests.benchmarks.changes import change_rows
from tests.benchmarks.commands import command_rows, engine_command_rows, flood_rows
from tests.benchmarks.files import engine_file_rows, file_rows
from tests.benchmarks.gvisor import gvisor_rows
from tests.benchmarks.measuring import Row
from tests.benchmarks.peers.comparing import compare
from tests.benchmarks.place import described, new_files, scratch_directory
from tests.benchmarks.sandboxes import engine_fork_rows, engine_sandbox_rows, fork_rows, sandbox_rows
from tests.benchmarks.servers import first_row, start_rows
from tests.benchmarks.snapshots import engine_snapshot_rows, snapshot_rows
from tests.benchmarks.tables import conditions_line, joined_table, run_from_json, table
from tests.interaction.wire_client import WireClient

__all__: list[str] = []


def main() -> int:
    """Run everything once, in a temporary state directory below $TMPDIR."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print records instead of a table")
    parser.add_argument("--quick", action="store_true", help="fewer samples, smaller trees, fewer sandboxes")
    parser.add_argument("--used", action="store_true", help="measure in the file system of $TMPDIR as it is")
    parser.add_argument(
        "--join", nargs="+", type=Path, metavar="FILE", help="measure nothing; print what --json printed, side by side"
    )
    parser.add_argument("--peers", action="store_true", help="measure other servers and libraries beside us instead")
    parser.add_argument("--peers-home", type=Path, metavar="DIR", help="where --peers installs them, once")
    options = parser.parse_args()
    if options.peers and options.peers_home is None:
        parser.error("--peers needs --peers-home: a directory to install them into, from PyPI and npm")
    if options.join:
        print(joined_table([run_from_json(path) for path in options.join]))
        return 0
    load = os.getloadavg()[0]
    with scratch_directory(fresh=not options.used) as scratch:
        conditions = {**_conditions(), "file_system": described(scratch), "load": f"load {load:.1f} before"}
        if options.peers:
            shown = compare(options.peers_home, scratch, 3 if options.quick else 10)
            print(f"{conditions_line(conditions)}\n\n{shown}")
            return 0
        rows = _measured(scratch, quick=options.quick)
        if options.json:
            shown = json.dumps({**conditions, "rows": [row.as_json() for row in rows]}, indent=1)
        else:
            shown = f"{conditions_line(conditions)}\n\n{table(rows)}"
        print(shown, flush=True)  # before everything is removed, which takes long
    return 0


def _measured(scratch: Path, *, quick: bool) -> list[Row]:
    """Measure what makes few files first: on a file system in which many were deleted every new one is dear."""
    count = 5 if quick else 30
    home = scratch / "state"
    engine_root = home / "providers" / "local"
    before = Row.of(
        "beside it: a new empty file in the state's file system, at the start", new_files(scratch, count * 10)
    )
    with WireClient(home, "serve", "--tools", "full") as client:
        rows = [
            first_row(client),
            *command_rows(client, count * 5),
            *sandbox_rows(client, engine_root, count),
            *fork_rows(client, count),
        ]
    rows += anyio.run(_engine_rows, engine_root, scratch, count)
    rows += alive_rows(engine_root, 100 if quick else 1000, count * 3)
    with WireClient(home) as client:
        rows += [
            *flood_rows(client, 64 if quick else 1024),
            *file_rows(client, scratch, count),
            *snapshot_rows(
                client,
                scratch,
                max(3, count // 3),
                files=2_000 if quick else 50_000,
                size_mib=64 if quick else 1024,
            ),
        ]
    rows += change_rows(home, scratch, max(3, count // 3), files=5_000 if quick else 50_000)
    rows += gvisor_rows(home.with_name("gvisor"), count)  # a sandbox of its own: the other one is of provider local
    after = Row.of("beside it: a new empty file there, at the end", new_files(scratch, count * 10))
    return [before, *start_rows(home, max(5, count // 2)), *rows, after]


async def _engine_rows(engine_root: Path, scratch: Path, count: int) -> list[Row]:
    async with LocalProvider(engine_root) as provider:
        return [
            *await engine_command_rows(provider, count * 5),
            *await engine_sandbox_rows(provider, engine_root, count),
            *await engine_fork_rows(provider, count),
            *await engine_snapshot_rows(provider, max(3, count // 2)),
            *await engine_file_rows(provider, scratch, count),
        ]


def _conditions() -> dict[str, str]:
    """Return what one must know to compare the numbers."""
    described_commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": described_commit.stdout.strip() or "no commit",
        "system": f"Linux {platform.release()}",
        "cores": f"{os.cpu_count()} cores",
        "python": f"Python {platform.python_version()}",
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
    }


if __name__ == "__main__":
    sys.exit(main())
