"""A client that knows nothing but lines of JSON."""

import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

import mcp_sandbox

__all__ = ["ENVELOPE", "RawClient", "open_raw_client"]

ENVELOPE: Mapping[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""What every request of the 2026-07-28 revision carries in `_meta`."""


class RawClient:
    """Both ends of one server process."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)
        self._stderr = BufferedByteReceiveStream(process.stderr)

    async def send(self, *messages: Mapping[str, Any] | bytes) -> None:
        """Write messages, or bytes as they are."""
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
            await self._stdin.send(data)

    async def receive(self) -> dict[str, Any]:
        """Return the next line, which must be a JSON object."""
        return json.loads(await self._stdout.receive_until(b"\n", 64 * 1024 * 1024))

    async def answer(self, request_id: int | str) -> dict[str, Any]:
        """Return the answer to a request, passing over everything else."""
        while (message := await self.receive()).get("id") != request_id:
            pass
        return message

    async def request(
        self, request_id: int | str, method: str, params: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a request and return its answer."""
        await self.send({"id": request_id, "method": method, **({} if params is None else {"params": params})})
        return await self.answer(request_id)

    async def call(self, request_id: int | str, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its result."""
        answer = await self.request(request_id, "tools/call", {"name": tool, "arguments": arguments})
        return answer["result"]

    async def initialize(self, version: str = "2025-06-18") -> dict[str, Any]:
        """Shake hands."""
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        answer = await self.request("hello", "initialize", params)
        await self.send({"method": "notifications/initialized"})
        return answer["result"]

    async def heard(self, word: str) -> None:
        """Return when the server has said a word on standard error."""
        while await self._stderr.receive_until(b"\n", 1_000_000) != word.encode():
            pass

    async def close_stdin(self) -> None:
        """Let the server read end of file."""
        await self._stdin.aclose()

    async def rest(self) -> list[dict[str, Any]]:
        """Return every message until the server closes its output."""
        messages: list[dict[str, Any]] = []
        while True:
            try:
                messages.append(await self.receive())
            except anyio.IncompleteRead:
                return messages


@asynccontextmanager
async def open_raw_client(*command: str, env: Mapping[str, str] | None = None) -> AsyncGenerator[RawClient]:
    """Start a server: a command line, or by default the tiny one. It is killed at the end if it still runs."""
    argv = command or (sys.executable, str(Path(__file__).with_name("tiny_server.py")))
    path = {"PYTHONPATH": str(Path(mcp_sandbox.__file__).parent.parent)}
    async with await anyio.open_process(
        argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={**(os.environ if env is None else env), **path}
    ) as process:
        try:
            with anyio.fail_after(30):
                yield RawClient(process)
        finally:
            if process.returncode is None:
                process.kill()
