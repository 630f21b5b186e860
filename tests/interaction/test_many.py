"""Many at once: nothing is lost, nobody waits for somebody else, and memory stays bounded."""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.app import open_services
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.engines.spares import KEPT
from mcp_sandbox.service.execution import CommandRequest
from mcp_sandbox.service.services import Services
from tests.interaction.wire_client import WireClient, processes_below, wait_until_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")

AT_ONCE = 64
SANDBOXES = 200
STALL_S = 0.25
"""The longest that the event loop may keep everybody waiting."""
FLOODS = 8
FLOOD_S = 3.0
FLOOD_MIB = 100
"""What all floods together may add to the memory of a server."""


@pytest.fixture
async def services(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Services]:
    """Everything of a server but its transport, in this process and under its `blockbuster`."""
    monkeypatch.setenv("MCP_SANDBOX_HOME", str(home))
    async with open_services() as services:
        yield services


@asynccontextmanager
async def _without_a_stall() -> AsyncGenerator[None]:
    """Fail if the event loop does not come round in time, whatever it does or waits for in between."""
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            began, waited = time.monotonic(), _kept_waiting_s()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - began - (_kept_waiting_s() - waited))
            await asyncio.sleep(0.005)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait((beating,))
    assert longest < STALL_S


def _kept_waiting_s() -> float:
    """Return how long this thread was ready to run and the machine ran others instead."""
    return int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1]) / 1e9


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_64_commands_at_once_in_one_sandbox_are_all_answered_right(services: Services) -> None:
    """Each waits until all have begun, so they do run at the same time."""
    command = (
        "mkdir -p all; : > all/{n}; until [ $(ls all | wc -l) = {all} ]; do sleep 0.2; done; echo said {n}; exit {n}"
    )
    answers: dict[int, tuple[int | None, bytes]] = {}

    async def run(number: int) -> None:
        outcome = await services.execution.run(CommandRequest(command=command.format(n=number, all=AT_ONCE)))
        assert outcome.result is not None
        answers[number] = (outcome.result.exit_code, outcome.stdout.head)

    async with _without_a_stall():
        with anyio.fail_after(45):
            async with anyio.create_task_group() as tasks:
                for number in range(AT_ONCE):
                    tasks.start_soon(run, number)
    assert answers == {number: (number, f"said {number}\n".encode()) for number in range(AT_ONCE)}


def test_64_calls_at_once_are_all_answered_right(server: WireClient) -> None:
    calls = [server.begin_call("exec", command=f"echo said {number}; exit {number}") for number in range(AT_ONCE)]
    for number, call in enumerate(calls):
        reply = server.finish_call(call)
        assert reply.header.startswith(f"exit={number} ")
        assert reply.body.strip() == f"said {number}"


async def test_200_sandboxes_in_one_server_answer_each_for_itself_and_leave_nothing(
    services: Services, home: Path
) -> None:
    await services.execution.run(CommandRequest(command="true"))  # opens what is opened once
    before, running = _descriptors(), processes_below(os.getpid())
    async with _without_a_stall():
        made = [live for _ in range(2) for live in await services.sandboxes.create(count=SANDBOXES // 2)]
        ids = [live.record.id for live in made]
        answers: dict[SandboxId, bytes] = {}

        async def run(sandbox: SandboxId) -> None:
            line = f"echo {sandbox} >> mine; cat mine"
            outcome = await services.execution.run(CommandRequest(command=line, sandbox=sandbox))
            answers[sandbox] = outcome.stdout.head

        with anyio.fail_after(45):
            async with anyio.create_task_group() as tasks:
                for sandbox in ids:
                    tasks.start_soon(run, sandbox)
        assert answers == {sandbox: f"{sandbox}\n".encode() for sandbox in ids}
        started = {pid: at for pid, at in processes_below(os.getpid()).items() if pid not in running}
        assert len(started) >= SANDBOXES
        with anyio.fail_after(45):
            async with anyio.create_task_group() as tasks:
                for sandbox in ids:
                    tasks.start_soon(services.sandboxes.destroy, sandbox)
    spares = _spares(home)
    assert not wait_until_gone({pid: at for pid, at in started.items() if pid not in spares}, 5)
    assert len(await services.sandboxes.list()) == 1
    with anyio.fail_after(20):  # what was destroyed is removed from the disk behind the answers
        while _descriptors() > before + KEPT:
            await anyio.sleep(0.05)


def _spares(home: Path) -> set[int]:
    """Return the processes of sandboxes that were started ahead."""
    noted = home.glob("providers/local/sandboxes/spare-*/init.json")
    return {int(json.loads(path.read_text())["pid"]) for path in noted}


def test_floods_of_several_commands_stay_in_bounded_memory(start: Callable[..., WireClient]) -> None:
    with start() as server:
        server.exec("true")
        pid, before = server.process.pid, _memory_mib(server.process.pid, "VmRSS")
        calls = [server.begin_call("exec", command="yes", timeout_s=FLOOD_S) for _ in range(FLOODS)]
        assert server.request("ping")["result"] == {}
        assert server.exec("echo said").body.strip() == "said"
        for call in calls:
            reply = server.finish_call(call)
            assert "timeout" in reply.header
            assert "\ny\ny\ny\n" in reply.body
        assert _memory_mib(pid, "VmHWM") - before < FLOOD_MIB


def _memory_mib(pid: int, name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text("ascii"))
    assert found is not None
    return int(found[1]) / 1024
