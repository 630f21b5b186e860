"""Category E: what takes all of something. Servers with limits, played through their tools, as root and rootless.

Where this machine cannot enforce one, it is held as well as it can be (`--best-effort`), or refused.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interaction.wire_client import WireClient, processes_below, wait_until_gone

Start = Callable[..., WireClient]

BOMB = ":(){ :|:& };:"
MEMORY_BOMB = 'python3 -c "x=[]\nwhile 1: x.append(bytearray(10<<20))"'
MANY_MEMORY_BOMBS = (
    'for i in 1 2 3 4 5 6 7 8; do python3 -c "a=bytearray(100<<20); import time; time.sleep(4)" & done; wait'
)
PLACES = "/workspace /tmp /dev/shm /var/tmp /run"
FILL = f"for d in {PLACES}; do dd if=/dev/zero of=$d/fill bs=1M count=100000 2>&1 | tail -1; done"
FILES = """python3 -c "
i = 0
while 1:
    open(f'/workspace/i{i}', 'w').close()
    i += 1
" """
DESCRIPTORS = """python3 -c "
import socket, sys, time
f = []
try:
    while 1: f.append(socket.socket()); f.append(open('/dev/null'))
except OSError as e: print(len(f), e, flush=True)
time.sleep(4)
" """
LOOPS = (
    "for i in $(seq 32); do (while :; do :; done) & done; sleep 3; "
    "cat /proc/[0-9]*/stat | awk '{ s += $14 + $15 } END { print s }'; kill $(jobs -p)"
)


def alive(server: WireClient, **sandbox: str) -> bool:
    """Whether commands still run, within a few seconds, however crowded it was."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if server.exec("echo works", **sandbox).body.strip().endswith("works"):
            return True
    return False


def size_below(directory: Path) -> int:
    """Return the bytes that a tree takes on the disk."""
    return int(subprocess.run(["du", "-s", "-B1", directory], capture_output=True, check=False).stdout.split()[0])


def test_res01_a_fork_bomb_stays_within_its_sandbox_and_ends_with_it(start: Start) -> None:
    """RES-01: in time, and a neighbour does not notice."""
    server = start("--pids", "64")
    server.call("sandbox_create", name="neighbour")
    began = time.monotonic()
    bomb = server.begin_call("exec", command=f"{BOMB}; sleep 2; exit 1", timeout_s=10)
    assert server.exec("echo works", sandbox="neighbour").body.strip() == "works"
    assert len(processes_below(server.process.pid)) < 150, "64 of it, and what the server itself runs"
    answer = server.finish_call(bomb)
    assert time.monotonic() - began < 15
    assert not answer.is_error
    assert "limit of 64 processes" in answer.text or "fork" in answer.text
    inside = processes_below(server.process.pid)
    assert not server.call("sandbox_destroy", sandbox=own(server)).is_error
    left = wait_until_gone(inside, 0.5)
    assert len(left) < 20, "only the server's own processes, and the neighbour"
    assert alive(server)


def test_res02_memory_bombs_are_killed_at_the_limit_and_it_is_said(start: Start) -> None:
    """RES-02: one that takes all, and many that each take a part; the sandbox itself goes on."""
    server = start("--memory", "300MiB", "--best-effort")
    is_enforced = "limit memory is not enforced" not in server.exec("true").text
    began = time.monotonic()
    one = server.exec(MEMORY_BOMB, timeout_s=20)
    assert time.monotonic() - began < 20
    if is_enforced:
        assert "ended=oom" in one.header
        assert "300 MiB" in one.text
    else:
        assert "ended=oom" in one.header or "MemoryError" in one.text
    many = server.exec(MANY_MEMORY_BOMBS, timeout_s=30)
    assert "killed at the memory limit" in many.text
    assert alive(server)


@pytest.mark.usefixtures("disk_limits")
def test_res03_the_disk_is_filled_up_to_the_limit_and_no_further(start: Start, home: Path) -> None:
    """RES-03: every place that can be written; those in memory are bounded, too."""
    server = start("--disk", "64MiB", "--best-effort")
    server.exec("true")
    before = size_below(home)
    full = server.exec(f"{FILL}; sleep 3", timeout_s=60)  # whoever only watches looks a few times in a second
    assert "64 MiB" in full.text
    assert size_below(home) - before < (5 * 64 + 80) << 20, "no file is larger than the limit, whoever is faster"
    assert alive(server)
    shared = server.exec("dd if=/dev/zero of=/dev/shm/fill bs=1M count=1000; stat -c %s /dev/shm/fill")
    assert int(shared.body.split("\n")[0]) <= 64 << 20, "what lies in memory is bounded in any case"
    room = server.exec("rm -f /workspace/fill /tmp/fill /var/tmp/fill /run/fill; echo free > f; cat f")
    assert room.body.strip() == "free"


@pytest.mark.usefixtures("disk_limits")
def test_res04_files_are_made_up_to_the_limit_and_removed_with_the_sandbox(start: Start) -> None:
    """RES-04."""
    server = start("--inodes", "2000", "--best-effort")
    server.exec("true")
    full = server.exec(FILES, timeout_s=60)
    assert "ended=disk" in full.header
    assert "2000" in full.text
    count = int(server.exec("ls /workspace | wc -l").body.split()[-1])
    assert count < 100_000
    began = time.monotonic()
    assert not server.call("sandbox_destroy", sandbox=own(server)).is_error
    assert time.monotonic() - began < 30


def test_res06_open_files_of_a_command_are_not_the_servers(start: Start) -> None:
    """RES-06."""
    server = start("--open-files", "500")
    server.exec("true")
    before = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    call = server.begin_call("exec", command=DESCRIPTORS)
    time.sleep(2)  # it holds them for four seconds
    assert abs(len(os.listdir(f"/proc/{server.process.pid}/fd")) - before) <= 8
    assert alive(server)
    count, _, why = server.finish_call(call).body.strip().partition(" ")
    assert 300 < int(count) <= 500
    assert "Too many open files" in why


def test_res11_busy_loops_get_their_share_and_neighbours_theirs(start: Start) -> None:
    """RES-11: or, where no share can be enforced, the server does not pretend that one is."""
    server = start("--cpus", "0.5")
    first = server.exec("true")
    if first.is_error:
        assert "cpus" in first.text
        pytest.skip("this machine lets nobody limit processor time, and the limit was refused")
    server.call("sandbox_create", name="neighbour")
    busy = server.begin_call("exec", command=LOOPS, timeout_s=20)
    slowest: list[float] = []
    for _ in range(20):
        began = time.monotonic()
        assert server.exec("true", sandbox="neighbour").header.startswith("exit=0")
        slowest.append(time.monotonic() - began)
    assert sorted(slowest)[-2] < 1
    answer = server.finish_call(busy)
    used_s = int(answer.body.split()[0]) / os.sysconf("SC_CLK_TCK")
    duration_s = float(answer.header.split("duration=")[1].split("s")[0])
    assert 0 < used_s <= 0.5 * duration_s * 1.1 + 0.3


def own(server: WireClient) -> str:
    """Return the id of the project's own sandbox."""
    listed = server.call("sandbox_list").message["result"]["structuredContent"]["sandboxes"]
    return next(fact["id"] for fact in listed if fact["default"])
