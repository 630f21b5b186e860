"""What came home, or would, as lines."""

from collections.abc import Iterator, Sequence
from typing import Final

from mcp_sandbox.service.applying import Applied
from mcp_sandbox.service.change_lines import summary_line, totals
from mcp_sandbox.service.coming_home import Stopped
from mcp_sandbox.service.paths import display
from mcp_sandbox.service.renames import Entry

__all__ = ["applied_lines"]

_MOST: Final = 100


def applied_lines(applied: Applied, *, dry_run: bool = False, most: int = _MOST) -> list[str]:
    """Return what became of every change, the result first.

    Args:
        applied: What became of them.
        dry_run: Whether nothing was to happen.
        most: Paths that are named of each kind.
    """
    plan = applied.plan
    entries = [Entry(change=one.change) for one in plan.ready]
    if applied.done:
        lines = [f"Applied to the project: {totals(entries)}."]
    elif plan.conflicts:
        lines = [f"Nothing would be applied: {len(plan.conflicts)} changed in the project since."]
    elif plan.ready:
        lines = [f"Would be applied: {totals(entries)}."]
    else:
        lines = ["There is nothing to apply." if not dry_run else "Nothing would be applied."]
    lines += _most([summary_line(entry, name=one.path) for entry, one in zip(entries, plan.ready, strict=True)], most)
    lines += _stopped("Changed in the project since", plan.conflicts, most)
    lines += _stopped("Stays in the sandbox", plan.left, most)
    if plan.behind:
        lines.append("Newer in the project, and as it came home in the sandbox:")
        lines += _most([f"  {display(path)}" for path in plan.behind], most)
    return lines


def _stopped(title: str, stopped: Sequence[Stopped], most: int) -> Iterator[str]:
    if stopped:
        yield f"{title}:"
        yield from _most([f"  {display(one.path)}: {one.why}" for one in stopped], most)


def _most(lines: Sequence[str], most: int) -> Sequence[str]:
    return lines if len(lines) <= most else [*lines[:most], f"  (and {len(lines) - most} more)"]
