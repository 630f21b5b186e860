"""Servers that speak MCP over stdio: ours and others, driven by the same client."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.calls import structured
from tests.benchmarks.peers.installing import PeersHome
from tests.benchmarks.peers.target import FILES, TEXT, Operation, Target, timed_ms
from tests.interaction.wire_client import Reply, WireClient

__all__ = ["Server", "servers"]

ToolCall = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dialect:
    """How one server is started and what its tools are called. The handle is that of a sandbox, where it has some."""

    name: str
    isolation: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    exec: Callable[[str, str], ToolCall] | None = None
    """Takes a handle and a command line."""
    create: ToolCall | None = None
    handle: Callable[[Reply], str] = lambda reply: reply.text.strip()
    destroy: Callable[[str], ToolCall] | None = None
    write: Callable[[str, str], ToolCall] | None = None
    """Takes the path of a file below the directory it may use, and the text."""
    read: Callable[[str], ToolCall] | None = None
    prepare: ToolCall | None = None
    snapshots: bool = False
    root: str = ""
    """The directory it may use."""


class Server(Target):
    """One MCP server."""

    def __init__(self, dialect: _Dialect, scratch: Path) -> None:
        self.name, self.isolation = dialect.name, dialect.isolation
        has = {
            Operation.START: True,
            Operation.EXEC: dialect.exec is not None,
            Operation.CREATE: dialect.create is not None,
            Operation.FILE: dialect.write is not None,
            Operation.SNAPSHOT: dialect.snapshots,
            Operation.RESUME: dialect.snapshots,
        }
        self.does = frozenset(operation for operation, can in has.items() if can)
        self._dialect = dialect
        self._home = scratch / "home" / dialect.name.partition(" ")[0]
        self._client: WireClient | None = None
        self._handle = ""
        self._snapshot = ""

    def do(self, operation: Operation) -> float:
        if operation is Operation.START:
            return self._start()
        if operation is Operation.CREATE:
            return self._create()
        if operation is Operation.SNAPSHOT:
            return self._take_snapshot()
        with timed_ms() as taken:
            if operation is Operation.EXEC:
                self._exec("true")
            elif operation is Operation.FILE:
                self._write_and_read()
            else:
                self._call("snapshot_restore", {"snapshot": self._snapshot, "sandbox": self._handle})
                self._exec("true")
        return taken[0]

    def _start(self) -> float:
        self.close()
        dialect = self._dialect
        self._home.mkdir(parents=True, exist_ok=True)
        env = {"HOME": str(self._home), **dialect.env}
        with timed_ms() as taken:
            self._client = WireClient(self._home / "state", command=dialect.command, cwd=dialect.root or "/", env=env)
            self._client.request("tools/list")
        if dialect.prepare is not None:
            self._call(*dialect.prepare)
        if dialect.create is not None:
            self._handle = dialect.handle(self._call(*dialect.create))
        if dialect.exec is not None:
            self._exec("true")
        return taken[0]

    def _create(self) -> float:
        dialect = self._dialect
        assert dialect.create is not None
        used = self._handle
        with timed_ms() as taken:
            self._handle = dialect.handle(self._call(*dialect.create))
            self._exec("true")
        if dialect.destroy is not None:
            self._call(*dialect.destroy(self._handle))
        self._handle = used
        return taken[0]

    def _write_and_read(self) -> None:
        write, read = self._dialect.write, self._dialect.read
        assert write is not None
        assert read is not None
        path = f"{self._dialect.root}/file.txt" if self._dialect.root else "file.txt"
        self._call(*write(path, TEXT * 1024))
        assert TEXT[:-1] in self._call(*read(path)).text

    def _take_snapshot(self) -> float:
        line = TEXT[:500]
        self._exec(f"mkdir -p tree && cd tree && for i in $(seq {FILES}); do echo {line}{line} > f$i; done")
        with timed_ms() as taken:
            reply = self._call("snapshot_create", {"sandbox": self._handle})
        self._snapshot = structured(reply)["id"]
        return taken[0]

    def _exec(self, line: str) -> None:
        assert self._dialect.exec is not None
        self._call(*self._dialect.exec(self._handle, line))

    def _call(self, tool: str, arguments: dict[str, Any]) -> Reply:
        assert self._client is not None
        reply = self._client.call(tool, **arguments)
        if reply.is_error:
            raise RuntimeError(f"{self.name}: {tool} answered: {reply.text[:300]}")
        return reply

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it was killed
                client.close()


def servers(home: PeersHome, scratch: Path) -> list[Target]:
    """Return ours and every peer that is installed."""
    root = scratch / "root"
    root.mkdir()
    dialects = [
        _Dialect(
            name="mcp-sandbox",
            isolation="namespaces, seccomp, own root file system",
            command=[sys.executable, "-m", "mcp_sandbox", "serve"],
            create=("sandbox_create", {}),
            handle=lambda reply: structured(reply)["sandboxes"][0]["id"],
            exec=lambda handle, line: ("exec", {"command": line, "sandbox": handle}),
            destroy=lambda handle: ("sandbox_destroy", {"sandbox": handle}),
            write=lambda path, text: ("write_file", {"file_path": path, "content": text}),
            read=lambda path: ("read_file", {"file_path": path}),
            snapshots=True,
        )
    ]
    if program := home.program("hares-mcp"):
        bwrap = home.program("bwrap")
        path = f"{Path(bwrap).parent}:/usr/bin:/bin" if bwrap else "/usr/bin:/bin"
        dialects.append(
            _Dialect(
                name="hares",
                isolation="bubblewrap" if bwrap else "none (no bubblewrap here)",
                command=[program, "--enable=fs+shell", f"--ceiling={root}"],
                env={"PATH": path, **({} if bwrap else {"HARES_SANDBOX_MODE": "none"})},
                exec=lambda _, line: ("execute_command", {"command": line}),
                write=lambda path, text: ("write_file", {"path": path, "content": text}),
                read=lambda path: ("read_text_file", {"path": path}),
                root=str(root),
            )
        )
    if program := home.program("execkit-mcp"):
        dialects.append(
            _Dialect(
                name="execkit-mcp",
                isolation="none",
                command=[program],
                create=("session_create", {"transport": "local"}),
                handle=lambda reply: json.loads(reply.text)["session_id"],
                exec=lambda handle, line: ("session_exec", {"session_id": handle, "command": line}),
                destroy=lambda handle: ("session_destroy", {"session_id": handle}),
            )
        )
    if program := home.program("desktop-commander"):
        dialects.append(
            _Dialect(
                name="desktop-commander",
                isolation="none",
                command=[program, "--no-onboarding"],
                prepare=("set_config_value", {"key": "allowedDirectories", "value": [str(root)]}),
                exec=lambda _, line: ("start_process", {"command": line, "timeout_ms": 20_000}),
                write=lambda path, text: ("write_file", {"path": path, "content": text, "mode": "rewrite"}),
                read=lambda path: ("read_file", {"path": path}),
                root=str(root),
            )
        )
    if program := home.program("mcp-server-filesystem"):
        dialects.append(
            _Dialect(
                name="server-filesystem",
                isolation="none (a list of directories)",
                command=[program, str(root)],
                write=lambda path, text: ("write_file", {"path": path, "content": text}),
                read=lambda path: ("read_text_file", {"path": path}),
                root=str(root),
            )
        )
    return [Server(dialect, scratch) for dialect in dialects]
