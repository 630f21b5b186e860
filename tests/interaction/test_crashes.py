"""SIGKILL of the server at any moment leaves the old state or the new one, and nothing else."""

import asyncio
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.store.record import Owner
from mcp_sandbox.store.registry import Registry
from mcp_sandbox.store.snapshots import SnapshotStore, StoredSnapshot
from mcp_sandbox.testing.driving import new_id
from tests.interaction.wire_client import WireClient, processes_below, wait_until_gone

ROUNDS = 5
ASKED = int(os.environ.get("MCP_SANDBOX_CRASH_ROUNDS", "0"))
"""How many rounds of the second test; without it, as many as fit into `WHOLE_S`."""
WHOLE_S = 25.0
CENSUS = "cat kept; find . -type f | sort | xargs sha256sum | sha256sum"


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


# ------------------------------------------------------------------------------------------ at any point of any verb


def _begin(server: WireClient, choice: random.Random, snapshots: Sequence[str], names: Sequence[str]) -> None:
    """Ask for several things at once, and wait for none."""
    fresh = f"n{choice.randrange(10**9)}"
    known: list[tuple[str, dict[str, object]]] = [
        ("exec", {"command": f"for i in $(seq 100); do echo {choice.random()} >> log; done; cp log log2"}),
        ("exec", {"command": "sleep 30", "run_in_background": True}),
        ("write_file", {"file_path": "/workspace/whole", "content": str(choice.randrange(10)) * 200_000}),
        ("snapshot_create", {"note": "crash"}),
        ("snapshot_create", {"note": "crash again"}),
        ("sandbox_create", {"name": fresh}),
        ("sandbox_create", {"name": f"{fresh}-c", "from_snapshot": choice.choice(snapshots)}),
        ("sandbox_fork", {"name": f"{fresh}-f", "count": 2}),
        ("snapshot_restore", {"snapshot": choice.choice(snapshots)}),
        ("snapshot_restore", {"snapshot": choice.choice(snapshots), "paths": ["whole"]}),
    ]
    if len(snapshots) > 3:
        known.append(("snapshot_delete", {"snapshot": choice.choice(snapshots[1:])}))
    if names:
        known.append(("sandbox_destroy", {"sandbox": choice.choice(names)}))
        known.append(("exec", {"command": "echo x > /workspace/y", "sandbox": choice.choice(names)}))
    for tool, arguments in choice.sample(known, choice.randint(1, len(known))):
        server.begin_call(tool, **arguments)


def _inits(home: Path) -> dict[int, str]:
    """Return the inits that the engine noted, dead or alive: pid to start time."""
    found: dict[int, str] = {}
    for path in home.glob("providers/local/sandboxes/*/init.json"):
        try:
            record = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue  # destroyed meanwhile
        found[record["pid"]] = record["started"]
    return found


def _check_sandboxes(after: WireClient, where: str) -> list[str]:
    """Use the default sandbox and every other one; return the names of the others."""
    shown = after.exec("cat kept; fold -w 1 whole | sort -u | wc -l; wc -c < whole")
    assert shown.body.split() == ["kept", "1", "200000"], f"{where}: {shown.text}"
    listed = after.call("sandbox_list")
    assert not listed.is_error, f"{where}: {listed.text}"
    return sorted(set(re.findall(r"\bn[0-9]+(?:-[cf](?:-[0-9])?)?\b", listed.text)))


def _check_snapshot(after: WireClient, identity: str, contents: dict[str, str], where: str) -> None:
    """Make a sandbox from a snapshot: it holds what it held when it was first looked at."""
    name = f"check{random.randrange(10**9)}"
    made = after.call("sandbox_create", name=name, from_snapshot=identity)
    assert not made.is_error, f"{where}: {made.text}"
    census = after.exec(CENSUS, sandbox=name).body
    assert census.startswith("kept\n"), f"{where}: {census}"
    assert contents.setdefault(identity, census) == census, f"{where}: snapshot {identity} changed"
    assert not after.call("sandbox_destroy", sandbox=name).is_error, where


@pytest.mark.timeout(3600 if ASKED else 180)
def test_crash01_killed_at_any_point_of_any_verb_nothing_is_half_done_or_left_over(
    start: Callable[..., WireClient], home: Path, project: Path
) -> None:
    """CRASH-01: `MCP_SANDBOX_CRASH_ROUNDS=300` for as many rounds."""
    seed = random.randrange(10**6)
    choice = random.Random(seed)
    arguments = ("serve", "--project", str(project), "--tools", "full")
    with start(*arguments) as first:
        first.exec("echo kept > /workspace/kept; printf '%0200000d' 0 > /workspace/whole")
        assert not first.call("snapshot_create", note="good").is_error
    contents: dict[str, str] = {}
    names: list[str] = []
    began, rounds = time.monotonic(), 0
    while rounds < ASKED if ASKED else time.monotonic() < began + WHOLE_S:
        rounds += 1
        where = f"seed {seed}, round {rounds}"
        snapshots = [stored.id for stored in _snapshots(home)]
        with start(*arguments) as server:
            if choice.random() < 0.8:
                server.exec("true")  # everything is open
            _begin(server, choice, snapshots, names)
            time.sleep(choice.random() ** 2 * 0.5)
            left = processes_below(server.process.pid)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        assert not wait_until_gone(left | _inits(home), 5), where
        with start(*arguments) as after:
            names = _check_sandboxes(after, where)
            ids = [stored.id for stored in _snapshots(home)]
            for identity in choice.sample(ids, min(len(ids), 2)):
                _check_snapshot(after, identity, contents, where)
            for name in names[4:]:
                assert not after.call("sandbox_destroy", sandbox=name).is_error, where
            for identity in ids[8:]:
                assert not after.call("snapshot_delete", snapshot=identity).is_error, where
    with start(*arguments) as after:
        for stored in _snapshots(home):
            _check_snapshot(after, stored.id, contents, f"seed {seed}, at the end")
    where = f"seed {seed}, {rounds} rounds"
    asyncio.run(_collect(home, where))
    _nothing_is_left_over(home, where)
    print(f"{where} in {time.monotonic() - began:.0f} s")  # noqa: T201  (how many there were is what one asks)


def _snapshots(home: Path) -> list[StoredSnapshot]:
    """Return the records of all snapshots, each one checked."""
    return sorted(SnapshotStore(home / "snapshots").all(), key=lambda stored: stored.snapshot.created_at)


async def _collect(home: Path, where: str) -> None:
    """Collect leftovers as a server does an hour later."""
    root = home / "providers" / "local"
    async with SandboxService(
        registry=Registry(home / "registry"),
        snapshots=SnapshotStore(home / "snapshots"),
        open_provider=lambda _: LocalProvider(root),
        owner=Owner(principal=f"uid:{os.geteuid()}", project=""),
        provider="local",
        template=SandboxSpec(id=new_id()),
    ) as sandboxes:
        reaper = sandboxes.housekeeping.reaper(max_age_s=None, clock=lambda: time.time() + 3600)
        await reaper.collect("local", kept_s=0)
        assert await reaper.collect("local", kept_s=0) == [], where


def _nothing_is_left_over(home: Path, where: str) -> None:
    """Only what records name is there."""
    root = home / "providers" / "local"
    registry, store = Registry(home / "registry"), SnapshotStore(home / "snapshots")
    recorded = {record.id for record in registry.list(principal=f"uid:{os.geteuid()}")}
    assert {path.name for path in (root / "sandboxes").iterdir()} == recorded, where
    assert {path.stem for path in (root / "snapshots").glob("*.json")} == {
        stored.snapshot.native.ref for stored in store.all()
    }, where
    assert list((root / "trash").iterdir()) == [], where
    assert list(home.rglob(".new-*")) == [], where
    assert [path.name for path in root.iterdir() if "canary" in path.name] == [], where
