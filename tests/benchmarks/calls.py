"""Calls that must succeed: an error is fast, and would pass for a good number."""

from typing import Any

import anyio

from mcp_sandbox.core.exec import ExecRequest, Exited
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.store.identity import new_sandbox_id
from tests.interaction.wire_client import Reply, WireClient

__all__ = ["call", "checked", "new_spec", "run", "structured"]


def call(client: WireClient, tool: str, **arguments: Any) -> Reply:
    """Call a tool."""
    return checked(client.call(tool, **arguments), tool)


def checked(reply: Reply, tool: str = "exec") -> Reply:
    """Return an answer that is none of a failure."""
    if reply.is_error or (tool == "exec" and not reply.header.startswith("exit=0 ")):
        raise RuntimeError(f"{tool} answered: {reply.text[:500]}")
    return reply


def structured(reply: Reply) -> dict[str, Any]:
    """Return the facts of an answer."""
    return reply.message["result"]["structuredContent"]


def new_spec() -> SandboxSpec:
    """Return the spec of a blank sandbox."""
    return SandboxSpec(id=new_sandbox_id())


async def run(sandbox: Sandbox, *argv: str) -> int:
    """Run a program at the engine; return how many bytes it wrote."""
    size = 0
    async with await sandbox.exec(ExecRequest(argv=argv)) as execution:
        while True:
            try:
                event = await execution.receive()
            except anyio.EndOfStream:
                return size
            if not isinstance(event, Exited):
                size += len(event.data)
            elif event.result.exit_code != 0:
                raise RuntimeError(f"{argv} ended with {event.result}")
