"""Which process is a sandbox's init, and whether it lives."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from mcp_sandbox.engines.init_process import init_lives, init_pid, kill_init, note_init

__all__: list[str] = []


def test_the_one_that_was_noted_lives_until_it_is_dead_though_nobody_reaped_it(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "4321"]) as process:
        note_init(tmp_path, process.pid)
        assert init_pid(tmp_path) == process.pid
        kill_init(tmp_path)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not init_lives(tmp_path)
        assert init_pid(tmp_path) is None


@pytest.mark.parametrize("change", [{"started": "1"}, {"boot": "0-0-0"}])
def test_crash05_who_got_its_number_later_is_somebody_else(tmp_path: Path, change: dict[str, str]) -> None:
    """CRASH-05: it is not killed."""
    with subprocess.Popen(["sleep", "4321"]) as process:
        note_init(tmp_path, process.pid)
        noted = json.loads((tmp_path / "init.json").read_bytes())
        (tmp_path / "init.json").write_text(json.dumps({**noted, **change}))
        kill_init(tmp_path)
        assert not init_lives(tmp_path)
        assert process.poll() is None
        process.kill()
