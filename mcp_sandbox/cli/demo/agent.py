"""The demo's agent: the MCP SDK's own client, and a server that it starts over stdio as any client does."""

import importlib
import os
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from anyio import to_thread

if TYPE_CHECKING:
    from mcp import Client

__all__ = ["Agent", "Reply", "ToolFailedError", "connected", "load_sdk", "server_command"]

_ANSWER_S: Final = 60.0
_PASSED_ON: Final = ("PYTHONPATH", "TMPDIR")


class ToolFailedError(Exception):
    """A tool answered with an error. The text is for the reader as it is: what happened, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a tool answered."""

    text: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The structured content, where there is one."""
    taken_s: float
    """At the client."""

    @property
    def header(self) -> str:
        """The first line."""
        return self.text.partition("\n")[0]

    @property
    def body(self) -> str:
        """What follows the first line."""
        return self.text.partition("\n")[2]


class Agent:
    """Calls tools."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    @property
    def protocol(self) -> str:
        """The version of the protocol that client and server agreed on."""
        return self._client.protocol_version

    async def tools(self) -> list[str]:
        """Return the names of the tools."""
        return [tool.name for tool in (await self._client.list_tools()).tools]

    async def call(self, tool: str, **arguments: Any) -> Reply:
        """Call a tool.

        Raises:
            ToolFailedError: It answered with an error.
        """
        began_s = time.perf_counter()
        result = await self._client.call_tool(tool, arguments)
        taken_s = time.perf_counter() - began_s
        text = "\n".join(block.text for block in result.content if block.type == "text")
        if result.is_error:
            raise ToolFailedError(text)
        facts = cast("Mapping[str, Any]", result.structured_content or {})
        return Reply(text=text, facts=facts, taken_s=taken_s)


async def load_sdk() -> Any:
    """Import the SDK in a thread: it takes so long that a reader should see that something happens."""
    return await to_thread.run_sync(importlib.import_module, "mcp")


def server_command() -> list[str]:
    """Return what starts the server of this installation: this very program."""
    program = Path(sys.argv[0])
    if program.name == "mcp-sandbox" and os.access(program, os.X_OK):
        return [str(program.absolute())]
    return [sys.executable, "-m", "mcp_sandbox"]


@asynccontextmanager
async def connected(arguments: list[str], variables: Mapping[str, str], log: TextIO) -> AsyncGenerator[Agent]:
    """Start a server and connect to it; it ends with the block.

    Args:
        arguments: Of the server's command line.
        variables: What is added to its environment, which otherwise has only what the SDK passes on.
        log: Where its standard error goes.
    """
    mcp = await load_sdk()
    program, *first = server_command()
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    server = mcp.StdioServerParameters(command=program, args=[*first, *arguments], env={**passed, **variables})
    async with mcp.Client(mcp.stdio_client(server, errlog=log), read_timeout_seconds=_ANSWER_S) as client:
        yield Agent(client)
