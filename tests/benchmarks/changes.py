"""A project of many files: opening it, seeing what changed in it, and bringing that home."""

import subprocess
from pathlib import Path

from tests.benchmarks.calls import call
from tests.benchmarks.measuring import Row, Samples
from tests.interaction.wire_client import WireClient

__all__ = ["change_rows"]

_EDITS = "for d in d1 d2 d3 d4 d5; do echo {0} >> $d/xaaa; echo {0} > $d/new{0}; done"


def change_rows(home: Path, scratch: Path, count: int, *, files: int) -> list[Row]:
    """Through MCP: of a project with so many files, in directories of a thousand."""
    project = scratch / "project"
    project.mkdir()
    directories = max(5, files // 1000)
    fill = f"for i in $(seq {directories}); do mkdir d$i; (cd d$i && seq 1000 | split -l 1 -a 3 -); done"
    subprocess.run(["bash", "-c", fill], check=True, cwd=project)
    opening, asking, shortly, applying = Samples(), Samples(), Samples(), Samples()
    with WireClient(home, "serve", "--project", str(project), "--allow-apply") as client:
        for number in range(count):
            with opening.timed():
                call(client, "sandbox_create", name=f"open{number}")
                call(client, "exec", command="ls d1", sandbox=f"open{number}")
            call(client, "sandbox_destroy", sandbox=f"open{number}")
        for number in range(count):
            call(client, "exec", command=_EDITS.format(number))
            with asking.timed():
                shown = call(client, "changes")
            assert f"+{number}" in shown.text
            with shortly.timed():
                call(client, "changes", summary=True)
            with applying.timed():
                applied = call(client, "apply_changes")
            assert applied.text.startswith("Applied"), applied.text
    return [
        Row.of(f"`sandbox_create` and a first `exec` in a project of {files:,} files", opening, target=100.0),
        Row.of(f"`changes` after ten edits in {files:,} files", asking, target=200.0),
        Row.of("the same as a summary", shortly),
        Row.of("`apply_changes` of these ten edits", applying),
    ]
