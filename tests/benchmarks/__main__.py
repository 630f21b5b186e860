"""Print a table of medians. `--json` prints records instead, `--quick` takes fewer samples of smaller trees."""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mcp_sandbox.cli.demo.stage import file_system, remove_tree
from tests.benchmarks.cases import exec_rows, file_rows, first_row, sandbox_rows, snapshot_rows, start_rows
from tests.benchmarks.measuring import Row, table
from tests.interaction.wire_client import WireClient


def main() -> int:
    """Run everything once, in a temporary state directory below $TMPDIR."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print records instead of a table")
    parser.add_argument("--quick", action="store_true", help="fewer samples, smaller trees")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="mcp-sandbox-bench-"))
    try:
        conditions = _conditions(scratch)
        rows = _measured(scratch, quick=options.quick)
    finally:
        remove_tree(scratch)
    if options.json:
        print(json.dumps({**conditions, "rows": [row.as_json() for row in rows]}, indent=1))
    else:
        print(", ".join(f"{value}" for value in conditions.values()) + "\n")
        print(table(rows))
    return 0


def _measured(scratch: Path, *, quick: bool) -> list[Row]:
    count = 5 if quick else 30
    home = scratch / "state"
    with WireClient(home) as client:
        first = first_row(client)
        rows = [
            first,
            *exec_rows(client, count * 5),
            *sandbox_rows(client, count),
            *file_rows(client, scratch, count),
            *snapshot_rows(
                client,
                scratch,
                max(3, count // 3),
                files=2_000 if quick else 50_000,
                size_mib=64 if quick else 1024,
            ),
        ]
    return [*start_rows(home, max(5, count // 2)), *rows]


def _conditions(scratch: Path) -> dict[str, str]:
    """Return what one must know to compare the numbers."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": described.stdout.strip() or "no commit",
        "system": f"Linux {platform.release()}",
        "cores": f"{os.cpu_count()} cores",
        "python": f"Python {platform.python_version()}",
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
        "file_system": f"state on {file_system(scratch)}",
        "load": f"load {os.getloadavg()[0]:.1f} before",
    }


if __name__ == "__main__":
    sys.exit(main())
