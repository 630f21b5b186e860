"""Driving a sandbox through the border: short names for what nearly every contract test does."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import anyio

from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.exec import ExecEvent, ExecRequest, ExecResult, Execution, Exited, OutputChunk, StreamName
from mcp_sandbox.core.files import FileInfo, ListRequest, ReadRequest, StatRequest, WriteRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import Limits, SandboxId, SandboxSpec

__all__ = [
    "HANG_S",
    "Outcome",
    "drain",
    "entries",
    "new_id",
    "new_spec",
    "put",
    "read_file",
    "run",
    "sh",
    "size_of",
    "status_of",
    "stops_growing",
    "until_exit",
    "wait_for_file",
]

HANG_S = 30.0
"""Nothing that works takes this long; a test that waits longer has found a hang."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything one command said and came to."""

    result: ExecResult
    events: tuple[ExecEvent, ...]

    @property
    def exit_code(self) -> int | None:
        """The status, if the command exited."""
        return self.result.exit_code

    @property
    def stdout(self) -> bytes:
        """All of its standard output, children's too."""
        return self._text(StreamName.STDOUT)

    @property
    def stderr(self) -> bytes:
        """All of its standard error, children's too."""
        return self._text(StreamName.STDERR)

    def _text(self, stream: StreamName) -> bytes:
        return b"".join(e.data for e in self.events if isinstance(e, OutputChunk) and e.stream is stream)


def new_id() -> SandboxId:
    """Return an id nobody used before."""
    return SandboxId("sb_" + "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(26)))


def new_spec(
    capabilities: Capabilities, limits: Mapping[str, float] | None = None, *, env: Mapping[str, str] | None = None
) -> SandboxSpec:
    """Return a spec that asks for nothing that the provider does not declare, and for `limits`."""
    usual = {"pids": 512.0, "open_files": 65_536.0}
    asked = {name: value for name, value in usual.items() if name in capabilities.limits} | dict(limits or {})
    numbers = {name: value if name in ("cpu_count", "command_s") else int(value) for name, value in asked.items()}
    nothing: dict[str, None] = dict.fromkeys(usual)
    return SandboxSpec(id=new_id(), limits=Limits(**(nothing | numbers)), env=env or {})  # pyright: ignore[reportArgumentType]


async def until_exit(execution: Execution) -> Outcome:
    """Receive until the command's own process has ended."""
    events: list[ExecEvent] = []
    with anyio.fail_after(HANG_S):
        while True:
            event = await execution.receive()
            events.append(event)
            if isinstance(event, Exited):
                return Outcome(event.result, tuple(events))


async def drain(execution: Execution) -> Outcome:
    """Receive until nobody holds the pipes any more."""
    events: list[ExecEvent] = []
    result: ExecResult | None = None
    with anyio.fail_after(HANG_S):
        while True:
            try:
                event = await execution.receive()
            except anyio.EndOfStream:
                break
            events.append(event)
            if isinstance(event, Exited):
                result = event.result
    assert result is not None, "the stream ended without `Exited`"
    return Outcome(result, tuple(events))


async def run(
    sandbox: Sandbox,
    *argv: str,
    stdin: bytes | None = None,
    cwd: str = "/workspace",
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = 20.0,
) -> Outcome:
    """Run a command to its end, feeding it `stdin`, and return all it said."""
    request = ExecRequest(argv=argv, cwd=cwd, env=env or {}, stdin=stdin is not None, timeout_s=timeout_s)
    async with await sandbox.exec(request) as execution:
        if stdin is None:
            return await drain(execution)
        outcomes: list[Outcome] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_feed, execution, stdin)
            outcomes.append(await drain(execution))
            tasks.cancel_scope.cancel()
        return outcomes[0]


async def _feed(execution: Execution, data: bytes) -> None:
    try:
        await execution.write_stdin(data)
    except anyio.BrokenResourceError:
        return
    await execution.close_stdin()


async def sh(sandbox: Sandbox, script: str, *arguments: str, timeout_s: float | None = 20.0) -> Outcome:
    """Run a script of the POSIX shell; `arguments` are `$1`, `$2`, ..."""
    return await run(sandbox, "sh", "-c", script, "sh", *arguments, timeout_s=timeout_s)


async def put(sandbox: Sandbox, path: str, data: bytes = b"", mode: int | None = None) -> None:
    """Write a file."""
    await sandbox.write(WriteRequest(path=path, mode=mode), data)


async def read_file(sandbox: Sandbox, path: str, offset: int = 0, length: int | None = None) -> bytes:
    """Read a file, or a part of it."""
    async with await sandbox.read(ReadRequest(path=path, offset=offset, length=length)) as reader:
        return b"".join([chunk async for chunk in reader])


async def status_of(sandbox: Sandbox, path: str, *, follow: bool = False) -> FileInfo:
    """Look at a path, by default at a link itself."""
    return await sandbox.stat(StatRequest(path=path, follow=follow))


async def size_of(sandbox: Sandbox, path: str) -> int:
    """Return a file's size, 0 if there is none."""
    try:
        return (await sandbox.stat(StatRequest(path=path))).size_bytes
    except FileNotFoundError:
        return 0


async def entries(sandbox: Sandbox, path: str, depth: int = 1) -> dict[str, FileInfo]:
    """Return what lies below a directory, by path relative to it."""
    listing = await sandbox.list(ListRequest(path=path, depth=depth))
    return {entry.path.removeprefix(path.rstrip("/") + "/"): entry for entry in listing.entries}


async def wait_for_file(sandbox: Sandbox, path: str, *, least_bytes: int = 1) -> None:
    """Wait until a file has some size; what runs inside writes it."""
    with anyio.fail_after(HANG_S):
        while await size_of(sandbox, path) < least_bytes:
            await anyio.sleep(0.01)


async def stops_growing(sandbox: Sandbox, path: str) -> bool:
    """Whether whoever appended to a file every 20 ms is dead."""
    before = await size_of(sandbox, path)
    await anyio.sleep(0.3)
    return await size_of(sandbox, path) == before
