"""A server with a few tools that need no sandbox, over our transport; run as a program by the tests.

What it says about itself goes to standard error, one word a line.
"""

import os
import subprocess
import sys
from typing import Any

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, ListToolsResult, PaginatedRequestParams, Tool

from mcp_sandbox.transport.claim import claim_wire
from mcp_sandbox.transport.stdio import serve_stdio

__all__: list[str] = []


def _say(word: str) -> None:
    os.write(2, f"{word}\n".encode())


async def _list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=[Tool(name="any", description="Any.", input_schema={"type": "object"})])


async def _call_tool(_: ServerRequestContext[Any], params: CallToolRequestParams) -> dict[str, Any]:
    arguments = params.arguments or {}
    text = ""
    match params.name:
        case "echo":
            text = arguments["text"]
        case "big":
            text = "x" * arguments["size"]
        case "surrogate":
            text = "\udc85"
        case "print":
            print("a stray line on standard output", flush=True)  # noqa: T201
            subprocess.run(["sh", "-c", "echo a child; cat"], check=True)  # noqa: ASYNC221
        case "sleep":
            _say("begun")
            try:
                await anyio.sleep(60)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
                _say("cancelled")
                raise
        case _:
            raise ValueError(params.name)
    return {"content": [{"type": "text", "text": text}], "isError": False, "resultType": "complete"}


async def _main() -> None:
    server = Server[dict[str, Any]]("tiny", version="1", on_list_tools=_list_tools)
    server.add_request_handler("tools/call", CallToolRequestParams, _call_tool)
    await serve_stdio(server, wire=wire, on_ready=lambda: _say("ready"))
    _say("cleaning")


if __name__ == "__main__":
    wire = claim_wire()
    anyio.run(_main)
    sys.stderr.flush()
    os._exit(0)
