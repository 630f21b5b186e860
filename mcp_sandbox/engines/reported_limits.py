"""Limits whose counters come from inside: the engine keeps them, the agent tells them as a command begins and ends.

What is told from inside is taken for the sandbox's own affair only: it explains an end, and decides nothing.
"""

import struct
from typing import Final, NamedTuple

from mcp_sandbox.core.exec import ExecResult, Termination
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines.verdicts import judged, memory_fact, pids_fact, time_fact

__all__ = ["REPORT", "Report", "judge_by_reports", "report_at"]

REPORT: Final = struct.Struct("<QQQ")


class Report(NamedTuple):
    """What the control group has counted until then."""

    oom_kills: int = 0
    pids_refused: int = 0
    memory_peak_bytes: int = 0


def report_at(payload: bytes, offset: int) -> Report:
    """Return the report within a frame; one of zeros if there is none."""
    return Report(*REPORT.unpack_from(payload, offset)) if len(payload) >= offset + REPORT.size else Report()


def judge_by_reports(limits: Limits, before: Report, after: Report, result: ExecResult) -> ExecResult:
    """Return the result with what the limits had to do with it."""
    facts: dict[Termination, str] = {}
    if limits.memory_bytes is not None and (killed := after.oom_kills - before.oom_kills) > 0:
        facts[Termination.OOM] = memory_fact(limits, killed, after.memory_peak_bytes)
    if limits.pids is not None and after.pids_refused > before.pids_refused:
        facts[Termination.PIDS] = pids_fact(limits)
    if fact := time_fact(limits, result):
        facts[Termination.TIMEOUT] = fact
    return judged(result, facts)
