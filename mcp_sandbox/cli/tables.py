"""Tables for people and JSON for programs."""

import json
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["print_json", "print_table"]


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    json.dump(value, sys.stdout, indent=2)
    print()


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns; the last one is as long as it is."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
