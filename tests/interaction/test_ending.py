"""However a server ends, nothing of it is left."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interaction.wire_client import WireClient, mounts_of, processes_below, wait_until_gone


def _busy(server: WireClient) -> dict[int, str]:
    """Give a server something to leave behind; return its processes."""
    server.exec("setsid sleep 4401 & (setsid sh -c 'trap \"\" TERM HUP INT; sleep 4402' &); echo started")
    server.exec("sleep 4403", run_in_background=True)
    server.begin_call("exec", command="sleep 4404")
    time.sleep(0.3)
    found = processes_below(server.process.pid)
    assert len(found) >= 5
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_b074_a_signal_leaves_no_process_and_no_mount(server: WireClient, home: Path, number: signal.Signals) -> None:
    mounts = mounts_of(home)
    left = _busy(server)
    server.process.send_signal(number)
    assert server.process.wait(5) == (-number if number is signal.SIGKILL else 0)
    assert not wait_until_gone(left, 5)
    assert mounts_of(home) == mounts


def test_b074_m19_the_end_of_input_leaves_nothing(server: WireClient) -> None:
    left = _busy(server)
    began = time.monotonic()
    server.end_input()
    assert server.process.wait(5) == 0
    assert time.monotonic() - began < 2
    assert not wait_until_gone(left, 5)


def test_b077_a_client_that_only_looks_costs_nothing(start: Callable[..., WireClient], home: Path) -> None:
    for _ in range(3):
        server = start()
        server.request("tools/list")
        assert not processes_below(server.process.pid)
        assert server.close() == 0
    assert not list(home.glob("registry/sb_*"))


def test_b110_every_line_on_stdout_is_json(server: WireClient) -> None:
    server.exec("echo x; echo y >&2")
    server.send(b"this is not json")
    server.send(b"")
    server.send(b'{"jsonrpc": "2.0", "id": 7777, "method": "no/such"}')
    assert server.exec("echo fine").body.strip() == "fine"
    server.close()
    assert len(server.lines) >= 4
    for line in server.lines:
        assert json.loads(line)["jsonrpc"] == "2.0"


def test_an_unknown_tool_and_a_misspelt_argument_are_named(server: WireClient) -> None:
    assert "exec" in json.dumps(server.call("exce", command="true").message)
    reply = server.call("exec", command="true", timeot_s=5)
    assert reply.is_error
    assert "timeout_s" in reply.text
