"""Category E: commands that never end, never stop talking, or will not die, through the tools of a server.

What limits hold (memory, processes, disk) is in `test_resources.py`.
"""

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.world import server_memory_mib
from tests.interaction.wire_client import WireClient, processes_below, wait_until_gone

ANSWER_MAX_CHARS = 31_000


def named(marker: str) -> list[int]:
    """Return the processes of the machine, whoever started them, whose command line holds a marker."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def gone_within(marker: str, seconds: float) -> bool:
    """Whether no process with a marker is left after some time."""
    end = time.monotonic() + seconds
    while left := named(marker):
        if time.monotonic() > end:
            return not left
        time.sleep(0.02)
    return True


def test_res05_floods_of_output_are_cut_and_said_and_take_no_memory(server: WireClient) -> None:
    """RES-05: on either stream, with and without line ends, one after the other and all at once."""
    server.exec("true")
    before = server_memory_mib(server)
    floods = ("yes | head -c 5000000000", "head -c 300000000 /dev/zero", "yes ERR >&2", "yes | tee /dev/stderr")
    for at_once in (floods[:1], floods):
        began = time.monotonic()
        calls = [server.begin_call("exec", command=flood, timeout_s=1) for flood in at_once]
        for call in calls:
            reply = server.finish_call(call)
            assert len(reply.text) <= ANSWER_MAX_CHARS
            assert re.search(r"\d[\d,]* (?:more )?bytes|omitted|not shown", reply.text), reply.header
        assert time.monotonic() - began < 10
    assert server_memory_mib(server) < before + 64


def test_res07_a_deadline_ends_what_sleeps_and_what_spins_and_keeps_what_was_said(server: WireClient) -> None:
    """RES-07."""
    server.exec("true")
    marker = f"m{secrets.token_hex(4)}"
    for command in (f"echo before; sleep 100000; : {marker}", f"echo before; while :; do :; done; : {marker}"):
        number = server.begin_call("exec", command=command, timeout_s=1)
        began = time.monotonic()
        while not named(marker):
            assert time.monotonic() - began < 5, "the control: it is seen while it runs"
        reply = server.finish_call(number)
        assert time.monotonic() - began < 4
        assert "timeout" in reply.header
        assert "before" in reply.body
        assert gone_within(marker, 1)


def test_res08_a_command_that_ignores_every_signal_it_can_is_dead_at_its_deadline(server: WireClient) -> None:
    """RES-08."""
    marker = f"m{secrets.token_hex(4)}"
    ignore = " ".join(str(n) for n in range(1, 65) if n not in (9, 19, 32, 33))
    began = time.monotonic()
    reply = server.exec(f"trap '' {ignore}; echo up; while :; do sleep 1; done; : {marker}", timeout_s=1)
    assert time.monotonic() - began < 6
    assert "timeout" in reply.header
    assert "up" in reply.body
    assert gone_within(marker, 1)


def test_res09_a_daemon_holds_no_call_up_and_ends_with_its_sandbox(server: WireClient) -> None:
    """RES-09: as the test of the same id on the provider, through the tools."""
    marker = f"m{secrets.token_hex(4)}"
    server.call("sandbox_create", name="daemons")
    began = time.monotonic()
    daemon = f'(setsid sh -c "(while :; do sleep 1; done; : {marker}) >/dev/null 2>&1 </dev/null & " &) ; echo started'
    assert "started" in server.exec(daemon, sandbox="daemons", timeout_s=5).body
    assert time.monotonic() - began < 4
    assert named(marker), "the control: it is seen while it lives"
    assert not server.call("sandbox_destroy", sandbox="daemons").is_error
    assert gone_within(marker, 0.5)


def test_res10_a_child_that_keeps_the_pipe_open_holds_no_call_up(server: WireClient) -> None:
    """RES-10: on each stream, and on both."""
    began = time.monotonic()
    for command in ("sleep 300 & echo hi", "sleep 300 >&2 & echo hi", "(sleep 300; echo late) 2>&1 & echo hi"):
        assert server.exec(command, timeout_s=20).body.splitlines()[-1] == "hi"
    assert time.monotonic() - began < 5


def test_res12_two_hundred_calls_and_fifty_sandboxes_at_once_are_all_answered(server: WireClient) -> None:
    """RES-12: each answer is its own, and afterwards nothing is left of what was made for them."""
    server.exec("true")
    calls = [server.begin_call("exec", command=f"sleep 0.2; echo ok{number}") for number in range(200)]
    creates = [server.begin_call("sandbox_create", name=f"many{number}") for number in range(50)]
    replies = [server.finish_call(call) for call in calls]
    for number, reply in enumerate(replies):
        assert reply.is_error or reply.body.strip() == f"ok{number}", reply.text
        assert not reply.is_error or "again" in reply.text, reply.text
    assert sum(not reply.is_error for reply in replies) >= 100
    made = [server.finish_call(call) for call in creates]
    assert sum("sb_" in reply.text and not reply.is_error for reply in made) >= 25, [reply.text for reply in made]
    open_before = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    for number, reply in enumerate(made):
        if not reply.is_error:
            assert not server.call("sandbox_destroy", sandbox=f"many{number}").is_error
    assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < open_before


@pytest.mark.usefixtures("embedded")
def test_res09_the_end_of_a_server_ends_what_its_sandboxes_run(start: Callable[..., WireClient]) -> None:
    """RES-09: by a closed input and by SIGKILL."""
    marker = f"m{secrets.token_hex(4)}"
    for end in ("input", "kill"):
        server = start()
        server.exec(f"(setsid sleep 300 {marker} >/dev/null 2>&1 </dev/null &); (sleep 301; : {marker}) & true")
        below = processes_below(server.process.pid)
        assert len(below) >= 3
        if end == "kill":
            server.process.kill()
            server.process.wait()
        server.close()
        assert wait_until_gone(below, 5) == {}
