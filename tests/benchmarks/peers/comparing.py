"""Everybody does the same in turns, so that whatever else the machine does hits all alike."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.measuring import Samples
from tests.benchmarks.peers.agents_sdk import AgentsSdk
from tests.benchmarks.peers.engine import Engine
from tests.benchmarks.peers.floor import Floor
from tests.benchmarks.peers.installing import PeersHome
from tests.benchmarks.peers.servers import servers
from tests.benchmarks.peers.target import Operation, Target
from tests.benchmarks.tables import quantity

__all__ = ["compare"]

_ROUNDS = {Operation.EXEC: 3}
"""How often in each turn; once if nothing is said."""


@dataclass(frozen=True, slots=True)
class _Measured:
    target: Target
    samples: dict[Operation, Samples] = field(default_factory=dict[Operation, Samples])
    failures: list[str] = field(default_factory=list[str])


def compare(peers_home: Path, scratch: Path, rounds: int) -> str:
    """Install the peers, measure everybody, and return a Markdown table."""
    home = PeersHome(peers_home)
    home.install()
    with contextlib.ExitStack() as stack:
        targets: list[Target] = [Floor(scratch), *servers(home, scratch), Engine(scratch)]
        if home.has("openai-agents"):
            targets.append(AgentsSdk(home, scratch))
        for target in targets:
            stack.callback(target.close)
        everybody = [_Measured(target) for target in targets]
        for number in range(rounds + 1):
            for operation in Operation:
                for measured in everybody:
                    _measure(measured, operation, counts=number > 0)
    absent = [f"- {name} could not be installed: {reason}" for name, reason in sorted(home.failures.items())]
    failed = [f"- {measured.target.name}: {said}" for measured in everybody for said in measured.failures]
    return "\n".join([_table(everybody), "", *absent, *failed]).rstrip()


def _measure(measured: _Measured, operation: Operation, *, counts: bool) -> None:
    if operation not in measured.target.does or measured.failures:
        return
    samples = measured.samples.setdefault(operation, Samples())
    for _ in range(_ROUNDS.get(operation, 1)):
        try:
            taken = measured.target.do(operation)
        except (RuntimeError, TimeoutError, OSError, AssertionError) as error:
            measured.failures.append(f"{operation.name.lower()} failed, and it was left out from then on: {error}")
            print(measured.failures[-1], file=sys.stderr)
            return
        if counts:
            samples.values.append(taken)


def _table(everybody: Sequence[_Measured]) -> str:
    lines = [
        f"| | isolation | {' | '.join(Operation)} |",
        f"|---|---|{'---:|' * len(Operation)}",
    ]
    for measured in everybody:
        cells = [_cell(measured.samples.get(operation)) for operation in Operation]
        lines.append(f"| {measured.target.name} | {measured.target.isolation} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(samples: Samples | None) -> str:
    if samples is None or not samples.values:
        return "--"
    return f"{quantity(samples.median, 'ms')} ({quantity(samples.p95, 'ms')})"
