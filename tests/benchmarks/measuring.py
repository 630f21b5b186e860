"""Samples, their medians, and the table of them."""

import statistics
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

__all__ = ["Floor", "Row", "Samples", "process_floor", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Durations in milliseconds."""

    values: list[float] = field(default_factory=list[float])

    @contextmanager
    def timed(self) -> Generator[None]:
        """Take the time of a block."""
        began = time.perf_counter()
        yield
        self.values.append((time.perf_counter() - began) * 1000)

    def repeat(self, count: int, act: Callable[[], object], *, warm_up: int = 2) -> "Samples":
        """Time `act` so many times, after a few that do not count."""
        for _ in range(warm_up):
            act()
        for _ in range(count):
            with self.timed():
                act()
        return self

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def p95(self) -> float:
        return sorted(self.values)[min(len(self.values) - 1, int(len(self.values) * 0.95))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What something is compared with: the same work without a sandbox, in the same run."""

    what: str
    median_ms: float


def process_floor(what: str, count: int, *command: str) -> Floor:
    """Return what it costs to run a program of the host to its end."""
    samples = Samples().repeat(count, lambda: subprocess.run(command, check=True, capture_output=True))
    return Floor(what=what, median_ms=samples.median)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    median_ms: float
    p95_ms: float
    count: int
    floor: Floor | None = None
    target_ms: float | None = None

    @classmethod
    def of(cls, what: str, samples: Samples, *, floor: Floor | None = None, target_ms: float | None = None) -> "Row":
        return cls(
            what=what,
            median_ms=samples.median,
            p95_ms=samples.p95,
            count=len(samples.values),
            floor=floor,
            target_ms=target_ms,
        )

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def table(rows: list[Row]) -> str:
    """Return rows as a Markdown table."""
    lines = [
        "| what | median | p95 | n | the same without a sandbox, in this run | ratio | target |",
        "|---|---:|---:|---:|---|---:|---:|",
    ]
    for row in rows:
        floor = f"{row.floor.what}: {_milliseconds(row.floor.median_ms)}" if row.floor else ""
        ratio = f"{row.median_ms / row.floor.median_ms:.2g}" if row.floor else ""
        target = (
            f"{'met' if row.median_ms <= row.target_ms else 'missed'}: {row.target_ms:.3g} ms" if row.target_ms else ""
        )
        cells = [
            row.what,
            _milliseconds(row.median_ms),
            _milliseconds(row.p95_ms),
            str(row.count),
            floor,
            ratio,
            target,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _milliseconds(value: float) -> str:
    return f"{value:.0f} ms" if value >= 99.95 else f"{value:#.3g} ms"
