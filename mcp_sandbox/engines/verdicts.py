"""What the limits of a sandbox had to do with the end of a command: the same words for every engine."""

import signal
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from mcp_sandbox.core.exec import ExecResult, Termination
from mcp_sandbox.core.sandbox import Limits

__all__ = ["judged", "memory_fact", "pids_fact", "size_text", "time_fact"]

_OURS: Final = (Termination.TIMEOUT, Termination.KILLED, Termination.LOST)
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


def judged(result: ExecResult, facts: Mapping[Termination, str], killers: Collection[Termination] = ()) -> ExecResult:
    """Return the result with what was found, and with the cause of the end if that is clear.

    Args:
        result: As the agent told it.
        facts: Which limits were met meanwhile, in a sentence each; the likeliest cause comes first.
        killers: Limits beside memory whose watch kills.
    """
    detail = "; ".join(filter(None, [result.detail, *facts.values()]))
    if result.termination in _OURS or not facts:
        return replace(result, detail=detail)
    was_killed = signal.SIGKILL in (result.signal, (result.exit_code or 0) - 128)
    if was_killed:
        causes = [cause for cause in facts if cause is Termination.OOM or cause in killers]
    else:  # a program that is told that there is no room gives up by itself
        causes = [cause for cause in facts if cause is not Termination.OOM and result.exit_code != 0]
    return replace(result, termination=causes[0] if causes else result.termination, detail=detail)


def memory_fact(limits: Limits, killed: int, peak_bytes: int) -> str:
    """Say that processes were killed at the memory limit."""
    what = "a process was" if killed == 1 else f"{killed} processes were"
    return f"{what} killed at the memory limit, {size_text(limits.memory_bytes)} ({size_text(peak_bytes)} were used)"


def pids_fact(limits: Limits) -> str:
    """Say that no more processes could be started."""
    return f"the limit of {limits.pids} processes and threads was reached, and starting more fails"


def time_fact(limits: Limits, result: ExecResult) -> str:
    """Say that a command took as long as any may; empty if it did not."""
    longest = limits.command_s
    if result.termination is not Termination.TIMEOUT or longest is None or result.duration_s < longest:
        return ""
    return f"no command in this sandbox may run longer than {longest:g} s"


def size_text(size_bytes: int | None) -> str:
    """Return a size for a reader."""
    amount, unit = float(size_bytes or 0), 0
    while amount >= 1024 and unit + 1 < len(_UNITS):
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.4g} {_UNITS[unit]}"
