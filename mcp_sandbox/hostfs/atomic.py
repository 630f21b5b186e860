"""Files that change whole or not at all, and locks that end with their holder."""

import fcntl
import os
import secrets
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio

from mcp_sandbox.core.errors import CapacityError

__all__ = ["UNFINISHED", "alocked", "locked", "sweep_unfinished", "sync_directory", "write_atomically", "write_once"]

UNFINISHED = ".new-"
"""What the names of things begin with that are not finished; they mean nothing to a reader."""

_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Put `data` in place of a file, 0600: at every moment a reader sees all of the old or all of the new.

    Written beside, synced, renamed, and the directory synced. Blocks; call it in a thread.

    Args:
        path: The file.
        data: Its new content.
        durable: Whether it must survive a loss of power; without, a killed process is all that it survives, and it
            takes microseconds.
    """
    while True:
        beside = _write_beside(path, data, durable=durable)
        try:
            os.replace(beside, path)  # noqa: PTH105 (text, as below)
        except FileNotFoundError:
            if not path.parent.is_dir():
                raise
            continue  # swept between the name and its lock: write it again
        if durable:
            sync_directory(path.parent)
        return


def write_once(path: Path, data: bytes, *, durable: bool = True) -> bool:
    """Write a file that must not be there yet; return whether it was absent, and leave one that is there alone."""
    while True:
        beside = _write_beside(path, data, durable=durable)
        try:
            os.link(beside, path)
        except FileExistsError:
            return False
        except FileNotFoundError:
            if not path.parent.is_dir():
                raise
            continue
        finally:
            with suppress(FileNotFoundError):
                os.unlink(beside)  # noqa: PTH108 (text, as below)
        if durable:
            sync_directory(path.parent)
        return True


def _write_beside(path: Path, data: bytes, *, durable: bool) -> str:
    """Return the path as text: on the way to every new sandbox, objects for paths take as long as the kernel."""
    directory, _, name = str(path).rpartition("/")
    beside = f"{directory or '.'}/{UNFINISHED}{name}-{secrets.token_hex(8)}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # tells `sweep_unfinished` that the writer lives
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if durable:
            os.fsync(descriptor)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)  # noqa: PTH108
        raise
    finally:
        os.close(descriptor)
    return beside


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep_unfinished(directory: Path) -> None:
    """Remove files that a killed writer left in a directory; those of a live one stay."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 (before every change of a record)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in [directory / name for name in names if name.startswith(UNFINISHED)]:
        with suppress(OSError):
            descriptor = os.open(entry, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                entry.unlink()
            finally:
                os.close(descriptor)


@contextmanager
def locked(path: Path, *, wait_s: float = 30.0, what: str = "State") -> Generator[None]:
    """Hold an exclusive lock on a file, made if it is missing. Blocks; use it in a thread.

    The kernel frees the lock with its holder, also on SIGKILL. Two holders in one process exclude each other too.

    Args:
        path: The file.
        wait_s: How long to wait for whoever holds it.
        what: What it covers, for whoever is told that it is busy.

    Raises:
        CapacityError: Somebody held it for `wait_s` seconds, a stopped process for example.
        FileNotFoundError: The directory is gone.
    """
    descriptor = os.open(path, _OPEN_LOCK, 0o600)
    try:
        deadline, pause = time.monotonic() + wait_s, _FIRST_PAUSE_S
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise _busy(what, wait_s)
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
        yield
    finally:
        _unlock(descriptor)


@asynccontextmanager
async def alocked(
    path: Path, *, wait_s: float = 30.0, shared: bool = False, what: str = "State"
) -> AsyncGenerator[None]:
    """Hold the same lock as `locked` from a task, without a thread; or `shared` with whoever shares it too.

    Args:
        path: The file.
        wait_s: How long to wait for whoever holds it.
        shared: Whether others may hold it so, too.
        what: What it covers, for whoever is told that it is busy.

    Raises:
        CapacityError: Somebody held it for `wait_s` seconds.
        FileNotFoundError: The directory is gone.
    """
    descriptor = os.open(path, _OPEN_LOCK, 0o600)
    try:
        deadline, pause = anyio.current_time() + wait_s, _FIRST_PAUSE_S
        while not _try_lock(descriptor, shared=shared):
            if anyio.current_time() >= deadline:
                raise _busy(what, wait_s)
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
        yield
    finally:
        _unlock(descriptor)


def _try_lock(descriptor: int, *, shared: bool = False) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone would wait for copies in processes that were forked
    os.close(descriptor)


def _busy(what: str, wait_s: float) -> CapacityError:
    return CapacityError(
        f"{what} busy",
        why=f"another process has been changing it for {wait_s:g} s",
        fix="Try again; if it persists, end the mcp-sandbox process that hangs",
    )
