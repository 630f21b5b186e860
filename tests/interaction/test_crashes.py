"""SIGKILL of the server at any moment leaves the old state or the new one, and nothing else."""

import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interaction.wire_client import WireClient, processes_below, wait_until_gone

ROUNDS = 12


def _verbs(server: WireClient, choice: random.Random) -> None:
    """Ask for several things at once, and wait for none."""
    known = [
        ("exec", {"command": f"for i in $(seq 200); do echo {choice.random()} >> /workspace/log; done"}),
        ("exec", {"command": "sleep 30", "run_in_background": True}),
        ("write_file", {"file_path": "/workspace/whole", "content": str(choice.randrange(10)) * 200_000}),
        ("snapshot_create", {"note": "crash"}),
        ("snapshot_create", {"note": "crash again"}),
        ("sandbox_create", {"name": f"n{choice.randrange(10**9)}"}),
    ]
    for tool, arguments in choice.sample(known, len(known)):
        server.begin_call(tool, **arguments)


@pytest.mark.timeout(300)
def test_b071_killed_servers_leave_whole_state_behind(
    start: Callable[..., WireClient], home: Path, project: Path
) -> None:
    seed = random.randrange(10**6)
    choice = random.Random(seed)
    with start("serve", "--project", str(project)) as first:
        first.exec("echo kept > /workspace/kept; printf '%0200000d' 0 > /workspace/whole")
        taken = re.search(r"\b[0-9a-f]{16,64}\b", first.call("snapshot_create", note="good").text)
        assert taken is not None
    for round_number in range(ROUNDS):
        where = f"seed {seed}, round {round_number}"
        server = start("serve", "--project", str(project))
        server.request("ping")
        _verbs(server, choice)
        if round_number % 3 == 2:
            server.begin_call("snapshot_restore", snapshot=taken[0])
        time.sleep(choice.random() * 0.6)
        left = processes_below(server.process.pid)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        assert not wait_until_gone(left, 5), where
        with start("serve", "--project", str(project)) as after:
            shown = after.exec(
                "cat kept; tr -d '0-9' < whole | wc -c; fold -w 1 whole | sort -u | wc -l; wc -c < whole"
            )
            assert shown.body.split() == ["kept", "0", "1", "200000"], f"{where}: {shown.text}"
            for identity in set(re.findall(r"\b[0-9a-f]{8,64}\b", after.call("snapshot_list").text)):
                made = after.call("sandbox_create", name="check", from_snapshot=identity)
                if made.is_error and "snapshot" in made.text.lower() and "no " in made.text.lower():
                    continue  # hex digits of something else
                assert not made.is_error, f"{where}: {made.text}"
                assert after.exec("cat kept", sandbox="check").body.strip() == "kept", where
                assert not after.call("sandbox_destroy", sandbox="check").is_error, where
                if choice.random() < 0.7:
                    break
    assert not list(home.glob("registry/*/.new-*"))
