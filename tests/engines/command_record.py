"""What a command said and how it ended, in the order in which it came."""

from dataclasses import dataclass, field
from typing import Any

import anyio

from mcp_sandbox.core.exec import ExecRequest, ExecResult, Execution, Exited, OutputChunk, StreamName
from mcp_sandbox.engines.carrier import GuestCarrier

__all__ = ["Run", "drain", "run", "shell", "start"]

ENVIRONMENT = ("PATH=/usr/bin:/bin", "HOME=/root")


@dataclass
class Run:
    """One command, to its end."""

    result: ExecResult
    before: list[OutputChunk] = field(default_factory=list[OutputChunk])
    """Chunks that came before `Exited`."""
    after: list[OutputChunk] = field(default_factory=list[OutputChunk])

    def text(self, stream: StreamName = StreamName.STDOUT) -> bytes:
        """Return everything that one stream carried."""
        return b"".join(chunk.data for chunk in (*self.before, *self.after) if chunk.stream is stream)

    @property
    def errors(self) -> bytes:
        """What standard error carried."""
        return self.text(StreamName.STDERR)


async def start(carrier: GuestCarrier, *argv: str, cwd: str = "/", **fields: Any) -> Execution:
    """Start a command."""
    variables = [f"{name}={value}" for name, value in fields.pop("env", {}).items()]
    return await carrier.exec(ExecRequest(argv=argv, cwd=cwd, **fields), [*ENVIRONMENT, *variables])


async def drain(execution: Execution) -> Run:
    """Receive until nobody holds the pipes any more."""
    found: Run | None = None
    before: list[OutputChunk] = []
    with anyio.fail_after(30):
        while True:
            try:
                event = await execution.receive()
            except anyio.EndOfStream:
                assert found is not None
                return found
            if isinstance(event, Exited):
                assert found is None
                found = Run(event.result, before)
            elif found is None:
                before.append(event)
            else:
                found.after.append(event)


async def run(carrier: GuestCarrier, *argv: str, **fields: Any) -> Run:
    """Run a command to its end."""
    async with await start(carrier, *argv, **fields) as execution:
        return await drain(execution)


async def shell(carrier: GuestCarrier, script: str, **fields: Any) -> Run:
    """Run a script to its end."""
    return await run(carrier, "sh", "-c", script, **fields)
