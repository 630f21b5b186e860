"""Samples, their medians, and the floor they are compared with."""

import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

__all__ = ["Floor", "Row", "Samples", "process_floor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Durations in milliseconds, or whatever else is counted."""

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

    async def repeat_async(self, count: int, act: Callable[[], Awaitable[object]], *, warm_up: int = 2) -> "Samples":
        """Do the same with what must be awaited."""
        for _ in range(warm_up):
            await act()
        for _ in range(count):
            with self.timed():
                await act()
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
    median: float

    @classmethod
    def of(cls, what: str, samples: Samples) -> "Floor":
        return cls(what=what, median=samples.median)


def process_floor(what: str, count: int, *command: str) -> Floor:
    """Return what it costs to run a program of the host to its end."""
    samples = Samples().repeat(count, lambda: subprocess.run(command, check=True, capture_output=True))
    return Floor.of(what, samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    median: float
    p95: float
    count: int
    unit: str = "ms"
    floor: Floor | None = None
    target: float | None = None

    @classmethod
    def of(
        cls, what: str, samples: Samples, *, unit: str = "ms", floor: Floor | None = None, target: float | None = None
    ) -> "Row":
        return cls(
            what=what,
            median=samples.median,
            p95=samples.p95,
            count=len(samples.values),
            unit=unit,
            floor=floor,
            target=target,
        )

    @property
    def is_met(self) -> bool:
        return self.target is None or self.median <= self.target

    def as_json(self) -> dict[str, object]:
        return asdict(self)
