"""An MCP client of the standard library alone: JSON lines over the pipes of a server process."""

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

__all__ = ["MODERN", "Reply", "WireClient", "mounts_of", "processes_below", "starting", "wait_until_gone"]

MODERN = "2026-07-28"
ANSWER_S = 60.0
_META = "io.modelcontextprotocol"


class Reply:
    """The answer to one tool call."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.message = message
        result = message.get("result", {})
        self.is_error = bool(result.get("isError")) or "error" in message
        self.content: list[dict[str, Any]] = result.get("content", [])
        self.text = "\n".join(block["text"] for block in self.content if block["type"] == "text")

    @property
    def header(self) -> str:
        """The first line."""
        return self.text.partition("\n")[0]

    @property
    def body(self) -> str:
        """What follows the first line."""
        return self.text.partition("\n")[2]


class WireClient:
    """Starts `mcp-sandbox serve`, shakes hands, and keeps every line that the server wrote."""

    def __init__(
        self,
        home: Path,
        *arguments: str,
        cwd: str | Path = "/",
        env: dict[str, str] | None = None,
        version: str = "2025-06-18",
        handshake: bool = True,
        command: Sequence[str] = (),
    ) -> None:
        """Start the server, or with `command` any other one."""
        self.version = version
        self.lines: list[bytes] = []
        self._ids = itertools.count(1)
        self._waiting: dict[int, queue.Queue[dict[str, Any]]] = {}
        self.notifications: list[dict[str, Any]] = []
        environment = {"PATH": "/usr/bin:/bin", "HOME": "", "MCP_SANDBOX_HOME": str(home), **(env or {})}
        self.process = subprocess.Popen(
            command or [sys.executable, "-m", "mcp_sandbox", *(arguments or ("serve",))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=environment | _coverage_of_imports(),
            start_new_session=True,
        )
        self.errors: list[bytes] = []
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._log, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        if handshake and version != MODERN:
            self.request("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": _INFO})
            self.notify("notifications/initialized", {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            try:
                message = json.loads(line)
            except ValueError:
                continue  # `lines` keeps it, and a test looks there
            waiting = self._waiting.get(message.get("id")) if "method" not in message else None
            if waiting is not None:
                waiting.put(message)
            else:
                self.notifications.append(message)

    def _log(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def send(self, message: dict[str, Any] | bytes) -> None:
        """Write one line."""
        assert self.process.stdin is not None
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method, "params": self._with_meta(params)})

    def begin(self, method: str, params: dict[str, Any]) -> int:
        """Send a request; return its id for `finish`."""
        number = next(self._ids)
        self._waiting[number] = queue.Queue()
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": self._with_meta(params)})
        return number

    def finish(self, number: int, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            TimeoutError: None came.
        """
        try:
            return self._waiting[number].get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"request {number}: {b''.join(self.errors)[-2000:].decode()}") from None

    def request(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Send a request and return the whole answer."""
        return self.finish(self.begin(method, params or {}), timeout_s)

    def begin_call(self, tool: str, **arguments: Any) -> int:
        """Start a tool call."""
        return self.begin("tools/call", {"name": tool, "arguments": arguments})

    def finish_call(self, number: int, timeout_s: float = ANSWER_S) -> Reply:
        """Return the answer to a tool call."""
        return Reply(self.finish(number, timeout_s))

    def call(self, tool: str, **arguments: Any) -> Reply:
        """Call a tool and wait."""
        return self.finish_call(self.begin_call(tool, **arguments))

    def exec(self, command: str, **arguments: Any) -> Reply:
        """Run a command."""
        return self.call("exec", command=command, **arguments)

    def _with_meta(self, params: dict[str, Any]) -> dict[str, Any]:
        if self.version != MODERN:
            return params
        meta = {f"{_META}/protocolVersion": MODERN, f"{_META}/clientInfo": _INFO, f"{_META}/clientCapabilities": {}}
        return {**params, "_meta": meta}

    def end_input(self) -> None:
        """Close the server's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> int:
        """End the server as a client does, and return its exit code."""
        if self.process.poll() is None:
            self.end_input()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()
                raise
        for reader in self._readers:
            reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return self.process.returncode


_INFO = {"name": "wire", "version": "1"}


def _coverage_of_imports() -> dict[str, str]:
    """Let an interpreter that found the package by PYTHONPATH find it again."""
    return {name: os.environ[name] for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE") if name in os.environ}


def mounts_of(home: Path) -> list[str]:
    """Return what is mounted below a state directory or over `/usr`; on the rest of the machine others may mount."""
    found: list[str] = []
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
        point = Path(line.split()[4])
        if point == Path("/usr") or point.is_relative_to(home):
            found.append(line)
    return found


def processes_below(root: int) -> dict[int, str]:
    """Return the descendants of a process: pid to start time, which tells it from a later one with the same pid."""
    parents: dict[int, int] = {}
    started: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            started[int(entry.name)] = fields[19]
    found: dict[int, str] = {}
    stack = [root]
    while stack:
        parent = stack.pop()
        for pid, above in parents.items():
            if above == parent and pid not in found:
                found[pid] = started[pid]
                stack.append(pid)
    return found


def wait_until_gone(processes: dict[int, str], within_s: float) -> dict[int, str]:
    """Wait for processes to end; return those that did not."""
    deadline = time.monotonic() + within_s
    while True:
        alive: dict[int, str] = {}
        for pid, start in processes.items():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            except OSError:
                continue
            if fields[19] == start and fields[0] != "Z":
                alive[pid] = start
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.02)


@contextmanager
def starting(
    home: Path, *first: str, environment: Mapping[str, str] | None = None
) -> Generator[Callable[..., WireClient]]:
    """Start servers on one state directory; they end with the context.

    Args:
        home: That directory, unless a call says `state`.
        first: Arguments that come before those of a call.
        environment: Variables that every server has.
    """
    with ExitStack() as stack:

        def begin(
            *arguments: str, state: Path = home, env: Mapping[str, str] | None = None, **options: Any
        ) -> WireClient:
            variables = {**(environment or {}), **(env or {})}
            return stack.enter_context(WireClient(state, *first, *arguments, env=variables, **options))

        yield begin
