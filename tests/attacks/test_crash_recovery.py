"""Category M: faults of the machine, and state that makes no sense. Nothing is lost, nobody else is hurt, all is said.

CRASH-01 is in tests/interaction/test_crashes.py.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interaction.wire_client import WireClient

__all__: list[str] = []

ROOT = Path(__file__).parents[2]
RESTRICTED = ROOT / "tests" / "cli" / "restricted.py"


@pytest.fixture
def home(state_directory: Path, tmp_path: Path) -> Path:
    """A state directory of this test alone: it is going to be damaged."""
    return state_directory / f"damaged-{tmp_path.name}"


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user that has nothing to do with any of this."""
    with subprocess.Popen(["sleep", "4321"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("size", ["256m"])
def test_crash04_a_full_disk_loses_nothing_and_is_said(tmp_path: Path, size: str) -> None:
    """CRASH-04: before, during and after, with a server that is killed meanwhile."""
    command = [sys.executable, "-m", "tests.attacks.full_disk", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(RESTRICTED), f"tmpfs:{size}:{tmp_path}", "--", *command],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=55,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def _made(server: WireClient, name: str) -> str:
    found = re.search(r"sb_[a-z2-7]{26}", server.call("sandbox_create", name=name).text)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("damage", [b"", b"{", b"\0" * 100, b"[]", b'{"schema": 1, "id": 7}'])
def test_crash05_a_damaged_record_stays_where_it_is_and_stops_nobody(
    start: Callable[..., WireClient], home: Path, damage: bytes
) -> None:
    """CRASH-05: of the registry."""
    with start(state=home) as server:
        server.exec("echo mine > file")
        damaged = _made(server, "damaged")
    record = home / "registry" / damaged / "record.json"
    record.write_bytes(damage)
    with start(state=home) as server:
        assert server.exec("cat file").body.strip() == "mine"
        listed = server.call("sandbox_list")
        assert not listed.is_error
        assert damaged not in listed.text
        assert "damaged" in server.exec("true", sandbox=damaged).text
        _made(server, "damaged")  # the name is free again
    assert record.read_bytes() == damage
    assert (home / "providers" / "local" / "sandboxes" / damaged).is_dir()


@pytest.mark.parametrize("damage", [b"", b"{", b'{"schema": 99}'])
def test_crash05_damaged_state_of_the_engine_is_said_and_can_be_destroyed(
    start: Callable[..., WireClient], home: Path, damage: bytes
) -> None:
    """CRASH-05: the others go on, and no layer is removed that the damaged one may name."""
    with start(state=home) as server:
        server.exec("echo mine > file")
        damaged = _made(server, "damaged")
        server.exec("echo theirs > file", sandbox="damaged")
    (home / "providers" / "local" / "sandboxes" / damaged / "state.json").write_bytes(damage)
    with start(state=home) as server:
        assert server.exec("cat file").body.strip() == "mine"
        refused = server.exec("cat file", sandbox="damaged")
        assert refused.is_error
        assert "damaged" in refused.text
        assert not server.call("sandbox_list").is_error
        assert not server.call("sandbox_destroy", sandbox="damaged").is_error
        assert "damaged" not in server.call("sandbox_list").text


def test_crash05_a_damaged_snapshot_is_named_and_the_others_work(start: Callable[..., WireClient], home: Path) -> None:
    with start(state=home) as server:
        server.exec("echo 1 > file")
        for _ in range(2):
            assert not server.call("snapshot_create").is_error
    records = sorted((home / "snapshots").glob("*.json"))
    bad, good = records[0], records[1]
    bad.write_bytes(bad.read_bytes().replace(b"local", b"lokal"))
    with start(state=home) as server:
        listed = re.findall(r"^ *([0-9a-f]{12})", server.call("snapshot_list").text, re.MULTILINE)
        assert listed == [good.stem[:12]]
        assert "damaged" in server.call("snapshot_restore", snapshot=bad.stem[:16]).text
        assert not server.call("snapshot_restore", snapshot=good.stem[:16]).is_error


@pytest.mark.parametrize("same_start", [False, True], ids=["another process", "another boot"])
def test_crash05_a_process_that_got_the_number_of_a_dead_init_is_left_alone(
    start: Callable[..., WireClient], home: Path, bystander: subprocess.Popen[bytes], same_start: bool
) -> None:
    """CRASH-05: neither starting, destroying nor collecting ends it, nor waits for it to end."""
    with start(state=home) as server:
        server.exec("true")
        reused = _made(server, "reused")
    started = Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19]
    note = {"pid": bystander.pid, "started": started if same_start else "1", "boot": "0-0-0-0-0"}
    directory = home / "providers" / "local" / "sandboxes" / reused
    (directory / "init.json").write_text(json.dumps(note))
    (directory / "lock").write_text(f"{bystander.pid}\n")
    (home / "registry" / reused / "lock").write_text(f"{bystander.pid}\n")
    with start(state=home) as server:
        assert server.exec("echo works", sandbox="reused").body.strip() == "works"
        (directory / "init.json").write_text(json.dumps(note))
        assert not server.call("sandbox_destroy", sandbox="reused").is_error
    assert bystander.poll() is None
