"""Rows as Markdown: the table of one run, and of several runs side by side."""

import json
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import Floor, Row

__all__ = ["conditions_line", "joined_table", "quantity", "run_from_json", "table"]

Run = tuple[dict[str, str], list[Row]]


def table(rows: list[Row]) -> str:
    """Return the rows of one run."""
    head = ["what", "median", "p95", "n", "the same without a sandbox, in this run", "ratio", "target"]
    lines = [_line(head), "|---|---:|---:|---:|---|---:|---:|"]
    for row in rows:
        ratio = f"{row.median / row.floor.median:.2g}" if row.floor else ""
        values = [quantity(row.median, row.unit), quantity(row.p95, row.unit), str(row.count)]
        lines.append(_line([row.what, *values, _floor(row), ratio, _target(row)]))
    return "\n".join(lines)


def joined_table(runs: list[Run]) -> str:
    """Return the rows of several runs, the median of each with its 95th percentile behind it."""
    titles = [f"{conditions['user']}, {conditions['file_system']}" for conditions, _ in runs]
    head = ["what", "n", *titles, "the same without a sandbox (first run)", "target"]
    lines = [_line(head), f"|---|---:|{'---:|' * len(runs)}---|---:|"]
    found = [{row.what: row for row in rows} for _, rows in runs]
    for row in runs[0][1]:
        cells = [_cell(rows.get(row.what)) for rows in found]
        lines.append(_line([row.what, str(row.count), *cells, _floor(row), _target(row, verdict=False)]))
    return "\n".join(lines)


def run_from_json(path: Path) -> Run:
    """Return what `--json` printed."""
    fields: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return fields, [_row(**row) for row in fields.pop("rows")]


def _row(*, floor: dict[str, Any] | None, **fields: Any) -> Row:
    return Row(floor=Floor(**floor) if floor else None, **fields)


def conditions_line(conditions: dict[str, str]) -> str:
    """Return what one must know to compare the numbers."""
    return ", ".join(conditions.values())


def quantity(value: float, unit: str) -> str:
    """Return a value with three digits."""
    return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:#.3g} {unit}"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    shown = quantity(row.median, row.unit)
    if row.count > 1:
        shown += f" ({quantity(row.p95, row.unit)})"
    return shown if row.is_met else f"{shown}, missed"


def _floor(row: Row) -> str:
    return f"{row.floor.what}: {quantity(row.floor.median, row.unit)}" if row.floor else ""


def _target(row: Row, *, verdict: bool = True) -> str:
    if row.target is None:
        return ""
    said = f"{row.target:.3g} {row.unit}"
    return f"{'met' if row.is_met else 'missed'}: {said}" if verdict else said


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
