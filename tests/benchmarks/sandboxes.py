"""From nothing to a sandbox that answers, copies of it, and back to nothing."""

import json
import os
import select
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio

from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.core.snapshot import SnapshotRequest
from tests.benchmarks.calls import call, new_spec, run, structured
from tests.benchmarks.measuring import Floor, Row, Samples, process_floor
from tests.interaction.wire_client import WireClient

__all__ = ["engine_fork_rows", "engine_sandbox_rows", "fork_rows", "init_of", "sandbox_rows", "until_dead"]

PAUSE_S = 0.15
"""Long enough for a blank sandbox to be started ahead."""
BUSY = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 600 & done"
MANY = 100
_NAMESPACES = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--net", "--ipc", "--uts"]


def _namespaces_floor(count: int) -> Floor:
    return process_floor("`unshare` of six namespaces, empty", count, "unshare", *_NAMESPACES, "true")


def init_of(engine_root: Path, sandbox: str) -> int:
    """Return the number of a sandbox's first process."""
    return int(json.loads((engine_root / "sandboxes" / sandbox / "init.json").read_bytes())["pid"])


@contextmanager
def until_dead(engine_root: Path, sandbox: str) -> Generator[None]:
    """Return from the block when every process of a sandbox is dead: the kernel ends its first one last."""
    pidfd = os.pidfd_open(init_of(engine_root, sandbox))
    try:
        yield
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(10_000)
    finally:
        os.close(pidfd)


def sandbox_rows(client: WireClient, engine_root: Path, count: int) -> list[Row]:
    """Through MCP."""
    floor = _namespaces_floor(count)
    in_a_row, paused, first, idle, busy = Samples(), Samples(), Samples(), Samples(), Samples()
    names: list[str] = []
    for create, pause_s in ((in_a_row, 0.0), (paused, PAUSE_S)):
        for _ in range(count + 2):
            time.sleep(pause_s)
            with create.timed():
                made = call(client, "sandbox_create")
            names.append(structured(made)["sandboxes"][0]["id"])
        del create.values[:2]
    for number, name in enumerate(names):
        with first.timed():
            call(client, "exec", command="true", sandbox=name)
        if number % 2:
            call(client, "exec", command=BUSY, sandbox=name)
        with (busy if number % 2 else idle).timed(), until_dead(engine_root, name):
            call(client, "sandbox_destroy", sandbox=name)
    return [
        Row.of("`sandbox_create`, one after the other", in_a_row, floor=floor, target=5.0),
        Row.of("`sandbox_create`, with pauses (blank sandboxes are started ahead)", paused, floor=floor, target=5.0),
        Row.of("first `exec` in a new sandbox", first),
        Row.of("`sandbox_destroy`, nothing running in it: until every process is dead", idle, target=5.0),
        Row.of("`sandbox_destroy`, ten processes running in it: until every process is dead", busy, target=5.0),
    ]


def fork_rows(client: WireClient, count: int) -> list[Row]:
    """Through MCP; the server must have the full set of tools."""
    floor = _namespaces_floor(count)
    call(client, "sandbox_create", name="parent")
    call(client, "exec", command="echo here > file", sandbox="parent")
    taken = structured(call(client, "snapshot_create", sandbox="parent"))["id"]
    forked, at_once, from_snapshot, forks = Samples(), Samples(), Samples(), list[str]()
    for _ in range(count + 2):
        with forked.timed():
            made = call(client, "sandbox_fork", sandbox="parent")
        forks.append(structured(made)["sandboxes"][0]["id"])
    with at_once.timed():
        made = call(client, "sandbox_fork", sandbox="parent", count=MANY)
    at_once.values[:] = [at_once.values[0] / MANY]
    forks += [each["id"] for each in structured(made)["sandboxes"]]
    for _ in range(count + 2):
        with from_snapshot.timed():
            made = call(client, "sandbox_create", from_snapshot=taken)
        forks.append(structured(made)["sandboxes"][0]["id"])
    assert call(client, "exec", command="cat file", sandbox=forks[-1]).body.strip() == "here"
    for fork in [*forks, "parent"]:
        call(client, "sandbox_destroy", sandbox=fork)
    del forked.values[:2], from_snapshot.values[:2]
    return [
        Row.of("`sandbox_fork`, one after the other", forked, floor=floor, target=5.0),
        Row.of(f"`sandbox_fork` of {MANY} by one call, each", at_once, floor=floor, target=5.0),
        Row.of("`sandbox_create` from a snapshot", from_snapshot, floor=floor, target=5.0),
    ]


async def engine_sandbox_rows(provider: Provider, engine_root: Path, count: int) -> list[Row]:
    """At the engine."""
    floor = _namespaces_floor(count)
    in_a_row, paused, busy, made = Samples(), Samples(), Samples(), list[Sandbox]()
    for create, pause_s in ((in_a_row, 0.0), (paused, PAUSE_S)):
        for _ in range(count + 2):
            await anyio.sleep(pause_s)
            with create.timed():
                made.append(await provider.create(new_spec()))
        del create.values[:2]
    for sandbox in made:
        await _busy(sandbox)
        with busy.timed(), until_dead(engine_root, sandbox.id):
            await provider.destroy(sandbox.id)
    return [
        Row.of("engine: create, one after the other", in_a_row, floor=floor, target=5.0),
        Row.of("engine: create, with pauses", paused, floor=floor, target=5.0),
        Row.of("engine: destroy, ten processes running in it: until every process is dead", busy, target=5.0),
    ]


async def _busy(sandbox: Sandbox) -> None:
    execution = await sandbox.exec(ExecRequest(argv=("bash", "-c", f"{BUSY}; echo; wait")))
    await execution.receive()  # the first word: all ten have started


async def engine_fork_rows(provider: Provider, count: int) -> list[Row]:
    """At the engine: one after the other, many by one call, and from a snapshot."""
    floor = _namespaces_floor(count)
    sandbox = await provider.create(new_spec())
    await run(sandbox, "touch", "/workspace/file")
    forked, at_once, restored, made = Samples(), Samples(), Samples(), list[SandboxId]()
    for _ in range(count + 2):
        spec = new_spec()
        with forked.timed():
            await sandbox.fork([spec])
        made.append(spec.id)
    specs = [new_spec() for _ in range(MANY)]
    with at_once.timed():
        await sandbox.fork(specs)
    at_once.values[:] = [at_once.values[0] / MANY]
    content = await sandbox.snapshot(SnapshotRequest())
    for _ in range(count + 2):
        spec = new_spec()
        with restored.timed():
            fork = await provider.restore(content, spec)
        await run(fork, "ls", "/workspace/file")
        made.append(spec.id)
    for fork_id in [*made, *(spec.id for spec in specs), sandbox.id]:
        await provider.destroy(fork_id)
    await provider.discard(content)
    del forked.values[:2], restored.values[:2]
    return [
        Row.of("engine: fork, one after the other", forked, floor=floor, target=5.0),
        Row.of(f"engine: fork of {MANY} by one call, each", at_once, floor=floor, target=5.0),
        Row.of("engine: create from a snapshot", restored, floor=floor, target=5.0),
    ]
