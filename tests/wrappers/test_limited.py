"""At most so many commands at once, through the in-memory double."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.errors import CapacityError
from mcp_sandbox.core.exec import ExecRequest, Execution, Exited
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.providers.memory import MemoryProvider
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.wrappers.limited import LimitedProvider

SLEEP = ExecRequest(argv=("sleep", "60"), cwd="/")
TRUE = ExecRequest(argv=("true",), cwd="/")


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with LimitedProvider(MemoryProvider(tmp_path), max_wait_s=0.2) as provider:
        yield await provider.create(SandboxSpec(id=new_sandbox_id()))


async def test_one_more_command_than_places_waits_and_is_then_refused(sandbox: Sandbox) -> None:
    running = [await sandbox.exec(SLEEP) for _ in range(sandbox.capabilities.max_concurrent)]
    with pytest.raises(CapacityError), anyio.fail_after(5):
        await sandbox.exec(TRUE)
    await running.pop().aclose()
    async with await sandbox.exec(TRUE) as execution:
        assert (await execution.wait()).exit_code == 0
    for execution in running:
        await execution.aclose()


async def test_a_command_that_ended_holds_no_place_though_nobody_closed_it(sandbox: Sandbox) -> None:
    ended: list[Execution] = []
    for _ in range(sandbox.capabilities.max_concurrent + 3):
        execution = await sandbox.exec(TRUE)
        while not isinstance(await execution.receive(), Exited):
            pass
        ended.append(execution)
    for execution in ended:
        await execution.aclose()
