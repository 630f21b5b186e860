"""The init of a sandbox as a process of the host: which one it is, whether it lives, and its end."""

import contextlib
import json
import os
import select
import signal
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import anyio

from mcp_sandbox.core.errors import ProviderError
from mcp_sandbox.hostfs.atomic import write_atomically

__all__ = ["init_lives", "init_pid", "kill_init", "note_end", "note_init", "wait_dead", "why_ended"]

DEATH_S: Final = 10.0


def note_init(directory: Path, pid: int) -> None:
    """Remember in a sandbox's directory which process its init is."""
    record = {"pid": pid, "started": _start_time(pid), "boot": _boot()}
    write_atomically(directory / "init.json", json.dumps(record).encode(), durable=False)


def note_end(directory: Path, why: str) -> None:
    """Remember why a sandbox's init is about to be ended, for whoever runs commands in it."""
    record = {"pid": init_pid(directory), "why": why}
    write_atomically(directory / "ended.json", json.dumps(record).encode(), durable=False)


def why_ended(directory: Path, pid: int | None) -> str:
    """Return what was noted about the end of an init; empty if nothing was."""
    try:
        record = cast("dict[str, Any]", json.loads((directory / "ended.json").read_bytes()))
        return str(record["why"]) if pid is not None and record["pid"] == pid else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def init_pid(directory: Path) -> int | None:
    """Return the number of a sandbox's init, `None` if it does not run."""
    with _init(directory) as pidfd:
        return None if pidfd is None else int(json.loads((directory / "init.json").read_bytes())["pid"])


async def wait_dead(directory: Path) -> None:
    """Return when no process of a sandbox is left.

    Raises:
        ProviderError: Some is, after many seconds.
    """
    with _init(directory) as pidfd:
        if pidfd is None or await _ended(pidfd, DEATH_S):
            return
        raise ProviderError(
            f"Sandbox {directory.name} does not end",
            why=f"its init is alive after {DEATH_S:g} s",
            fix="Kill that process",
        )


def init_lives(directory: Path) -> bool:
    """Whether a sandbox has processes, or may have."""
    with _init(directory) as pidfd:
        return pidfd is not None


def kill_init(directory: Path) -> None:
    """End a sandbox whose init does not answer, and with it all that it runs."""
    with _init(directory) as pidfd:
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)


@contextlib.contextmanager
def _init(directory: Path) -> Generator[int | None]:
    """Yield a pidfd of a sandbox's init, `None` if it is not the process that was started."""
    try:
        record = cast("dict[str, Any]", json.loads((directory / "init.json").read_bytes()))
        pid, started = int(record["pid"]), record["started"]
        if record.get("boot", _boot()) != _boot():
            raise ProcessLookupError(pid)  # whoever has the number now is somebody else
        pidfd = os.pidfd_open(pid)
    except (FileNotFoundError, ProcessLookupError, ValueError, KeyError, TypeError):
        yield None  # it never started, or ended long ago
        return
    try:
        yield pidfd if _start_time(pid) == started and not _has_ended(pidfd) else None
    finally:
        os.close(pidfd)


def _has_ended(pidfd: int) -> bool:
    """Whether a process is dead, even if nobody has reaped it yet."""
    poll = select.poll()  # unlike `select`, for any number of open files
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


async def _ended(pidfd: int, within_s: float) -> bool:
    with anyio.move_on_after(within_s):
        while not _has_ended(pidfd):
            await anyio.wait_readable(pidfd)
        return True
    return False


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return what tells a process from a later one with the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return ""
