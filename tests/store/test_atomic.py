"""Files that change whole or not at all, and locks that end with their holder."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.errors import CapacityError
from mcp_sandbox.store.atomic import UNFINISHED, alocked, locked, sweep_unfinished, write_atomically, write_once

__all__: list[str] = []

_WRITE_FOR_EVER = """
import sys, pathlib
from mcp_sandbox.store.atomic import write_atomically
path = pathlib.Path(sys.argv[1])
print("started", flush=True)
while True:
    for letter in b"ab":
        write_atomically(path, bytes([letter]) * 300_000)
"""

_HOLD = """
import sys, time, pathlib
from mcp_sandbox.store.atomic import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def _python(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


def _kill(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


def test_a_written_file_is_whole_private_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_killed_writer_leaves_the_old_content_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for _ in range(6):
        child = _python(_WRITE_FOR_EVER, str(path))
        while not path.exists():
            os.sched_yield()
        for _ in range(200):
            assert path.read_bytes() in (b"a" * 300_000, b"b" * 300_000)
        _kill(child)
        assert path.read_bytes() in (b"a" * 300_000, b"b" * 300_000)
    sweep_unfinished(tmp_path)
    assert os.listdir(tmp_path) == ["record.json"]


def test_what_a_living_writer_has_begun_is_not_swept(tmp_path: Path) -> None:
    alive, dead = tmp_path / f"{UNFINISHED}alive", tmp_path / f"{UNFINISHED}dead"
    dead.touch()
    with locked(alive):
        sweep_unfinished(tmp_path)
        assert alive.exists()
    assert not dead.exists()


def test_a_file_swept_under_its_writer_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    done = threading.Event()

    def sweep() -> None:
        while not done.is_set():
            sweep_unfinished(tmp_path)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for count in range(200):
            write_atomically(path, str(count).encode())
            assert path.read_bytes() == str(count).encode()
            assert write_once(tmp_path / str(count), b"x")
    finally:
        done.set()
        sweeper.join()


def test_writing_into_a_directory_that_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "gone" / "record.json", b"x")


def test_write_once_keeps_what_is_there(tmp_path: Path) -> None:
    assert write_once(tmp_path / "x", b"first")
    assert not write_once(tmp_path / "x", b"second")
    assert (tmp_path / "x").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["x"]


def test_a_lock_excludes_threads_of_one_process(tmp_path: Path) -> None:
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(30):
            with locked(tmp_path / "lock"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    child = _python(_HOLD, str(tmp_path / "lock"))
    with pytest.raises(CapacityError), locked(tmp_path / "lock", wait_s=0):
        pass
    _kill(child)
    with locked(tmp_path / "lock", wait_s=5):
        pass


async def test_b081_a_lock_that_a_stopped_process_holds_is_given_up_with_a_reason(tmp_path: Path) -> None:
    child = _python(_HOLD, str(tmp_path / "lock"))
    child.send_signal(signal.SIGSTOP)
    try:
        with anyio.fail_after(5), pytest.raises(CapacityError, match=r"^Box busy: another process"):
            async with alocked(tmp_path / "lock", wait_s=0.05, what="Box"):
                pass
    finally:
        _kill(child)


async def test_tasks_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    trail: list[str] = []

    async def work(name: str) -> None:
        async with alocked(tmp_path / "lock", wait_s=5):
            trail.append(name)
            await anyio.lowlevel.checkpoint()
            trail.append(name)

    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(work, name)
    assert [trail[i] == trail[i + 1] for i in (0, 2, 4)] == [True] * 3


async def test_a_cancelled_holder_lets_go(tmp_path: Path) -> None:
    with anyio.move_on_after(0.01):
        async with alocked(tmp_path / "lock"):
            await anyio.sleep_forever()
    with locked(tmp_path / "lock", wait_s=0):
        pass
