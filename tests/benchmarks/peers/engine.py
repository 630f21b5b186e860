"""Our engine without MCP, beside libraries that are used without it."""

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from anyio.from_thread import BlockingPortal, start_blocking_portal

from mcp_sandbox.core.files import ReadRequest, WriteRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.core.streams import read_all
from mcp_sandbox.providers.local import LocalProvider
from tests.benchmarks.calls import new_spec, run
from tests.benchmarks.peers.target import FILES, TEXT, Operation, Target, timed_ms

__all__ = ["Engine"]

_FILL = f"mkdir -p tree && cd tree && for i in $(seq {FILES}); do echo {TEXT[:500]}{TEXT[:500]} > f$i; done"


class Engine(Target):
    """The provider `local` in this process, on an event loop in a thread."""

    name = "mcp-sandbox, its engine as a library"
    isolation = "namespaces, seccomp, own root file system"
    does = frozenset(Operation)

    _portal: BlockingPortal
    _provider: LocalProvider
    _sandbox: Sandbox
    _content: NativeContent

    def __init__(self, scratch: Path) -> None:
        self._root = scratch / "engine"
        self._stack = contextlib.ExitStack()

    def do(self, operation: Operation) -> float:
        if operation is Operation.START:
            return self._start()
        if operation is Operation.SNAPSHOT:
            self._portal.call(run, self._sandbox, "bash", "-c", _FILL)
        actions: dict[Operation, Callable[[], Awaitable[None]]] = {
            Operation.CREATE: self._create,
            Operation.EXEC: self._true,
            Operation.FILE: self._write_and_read,
            Operation.SNAPSHOT: self._snapshot,
            Operation.RESUME: self._resume,
        }

        async def act() -> float:
            with timed_ms() as taken:
                await actions[operation]()
            return taken[0]

        return self._portal.call(act)

    def _start(self) -> float:
        self.close()
        with timed_ms() as taken:
            self._portal = self._stack.enter_context(start_blocking_portal())
            self._provider = self._stack.enter_context(
                self._portal.wrap_async_context_manager(LocalProvider(self._root))
            )
        self._sandbox = self._portal.call(self._provider.create, new_spec())
        return taken[0]

    async def _true(self) -> None:
        await run(self._sandbox, "true")

    async def _create(self) -> None:
        await run(await self._provider.create(new_spec()), "true")

    async def _write_and_read(self) -> None:
        data = TEXT.encode() * 1024
        await self._sandbox.write(WriteRequest(path="/workspace/file"), data)
        async with await self._sandbox.read(ReadRequest(path="/workspace/file")) as reader:
            assert await read_all(reader, len(data)) == data

    async def _snapshot(self) -> None:
        self._content = await self._sandbox.snapshot(SnapshotRequest())

    async def _resume(self) -> None:
        await self._sandbox.restore(self._content)
        await self._true()

    def close(self) -> None:
        self._stack.close()
