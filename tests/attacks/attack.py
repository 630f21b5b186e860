"""Hostile programs inside a sandbox, written in Python, that say on their standard output how they fare."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from mcp_sandbox.core.exec import ExecRequest, Execution, OutputChunk
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.testing.driving import HANG_S

__all__ = ["Attack", "attacking"]


class Attack:
    """A hostile program that runs."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._said = b""

    async def line(self) -> bytes:
        """Return the next line that it says."""
        with anyio.fail_after(HANG_S):
            while b"\n" not in self._said:
                event = await self._execution.receive()
                assert isinstance(event, OutputChunk), (event, self._said)
                self._said += event.data
        line, _, self._said = self._said.partition(b"\n")
        return line


@asynccontextmanager
async def attacking(sandbox: Sandbox, program: str, *arguments: str) -> AsyncGenerator[Attack]:
    """Run a program that says "up" when it has begun, with its input open; it is killed at the end."""
    async with await sandbox.exec(ExecRequest(argv=("python3", "-c", program, *arguments), stdin=True)) as execution:
        attack = Attack(execution)
        assert await attack.line() == b"up"
        yield attack
