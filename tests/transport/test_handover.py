"""How a server begins: the same answers with the preamble and without it, and nothing lost in between."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest
from handshakes import ENVELOPES, HANDSHAKES, INITIALIZED, VERSIONS, initialize, line, request

import mcp_sandbox

__all__: list[str] = []

_ROOT = Path(mcp_sandbox.__file__).parents[1]
_SERVE = ("-c", "import sys; from mcp_sandbox.cli import main; sys.exit(main())", "serve")
_REAL_SERVER = (str(Path(__file__).with_name("real_server.py")),)


class Step(NamedTuple):
    """One line to the server, and whether it is answered."""

    line: bytes
    answered: bool


class Server:
    """A process that serves, without a project."""

    def __init__(self, home: Path, *arguments: str, **variables: str) -> None:
        modules = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {"PATH": os.environ["PATH"], "PYTHONPATH": modules, "HOME": "/", "MCP_SANDBOX_HOME": str(home)}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd="/",
            env={**own, "MCP_SANDBOX_PROVIDER": "memory", **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.stdin = _existing(self.process.stdin)
        self.stdout = _existing(self.process.stdout)
        self.stderr = _existing(self.process.stderr)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()

    def say(self, data: bytes) -> None:
        """Send bytes."""
        self.stdin.write(data)
        self.stdin.flush()

    def hear(self, count: int = 1) -> list[bytes]:
        """Return the next lines."""
        lines = [self.stdout.readline() for _ in range(count)]
        assert all(lines), self.stderr.read().decode()
        return lines

    def end(self) -> bytes:
        """Close its input; it says nothing more and exits with success. Return what it said on standard error."""
        self.stdin.close()
        assert self.stdout.read() == b""
        said = self.stderr.read()
        assert self.process.wait(20) == 0, said
        return said


def _existing(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _step(message: Mapping[str, Any] | bytes, *, answered: bool | None = None) -> Step:
    if isinstance(message, bytes):
        return Step(message, answered is not False)
    return Step(line(message), "id" in message if answered is None else answered)


_ENVELOPED = {"_meta": ENVELOPES["nothing"]}
_WRITE = {"name": "write_file", "arguments": {"file_path": "a.txt", "content": "hi"}}
_READ = {"name": "read_file", "arguments": {"file_path": "missing.txt"}}
_LISTS = [request("l", "tools/list"), request(3, "prompts/list"), request(4, "resources/list"), request(5, "ping")]
_ODD = [
    b"not json\n",
    b"[]\n",
    b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]\n',
    b'{"jsonrpc":"2.0","id":8}\n',
    b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":"\xff"}}\n',
]
_SCRIPTS: Mapping[str, list[Step]] = {
    **{
        version: [
            _step(initialize(version)),
            _step(INITIALIZED),
            *map(_step, _LISTS),
            _step(b"\r\n", answered=False),
            _step(request(6, "tools/call", _WRITE)),
            _step(request(7, "tools/call", _READ)),
            *map(_step, _LISTS),
        ]
        for version in VERSIONS
    },
    "without a handshake": [
        _step(request(1, "server/discover", _ENVELOPED)),
        _step(request("l", "tools/list", {**_ENVELOPED, "cursor": "x"})),
        _step(request(3, "ping", _ENVELOPED)),
        _step(request(4, "tools/call", {**_WRITE, **_ENVELOPED})),
        _step(request(5, "tools/list", _ENVELOPED)),
        _step(request(6, "tools/list")),
        _step(initialize(request_id=7)),
    ],
    "odd lines in between": [
        _step(initialize(request_id="é")),
        _step(INITIALIZED),
        *map(_step, _ODD),
        _step(b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}\n', answered=False),
        _step(request("last", "tools/list")),
    ],
    "an odd line first": [_step(_ODD[0]), _step(request(1, "server/discover", _ENVELOPED))],
    "a list before the handshake": [
        _step(request(1, "tools/list")),
        _step(initialize(request_id=2)),
        *map(_step, _LISTS),
    ],
    "pings before the handshake": [
        _step(request(0, "ping")),
        _step(request("0", "ping")),
        _step(initialize(request_id=2)),
        _step(request(3, "server/discover", _ENVELOPED)),
        *map(_step, _LISTS),
    ],
    "unknown methods": [
        _step(initialize()),
        _step(request(2, "nonsense")),
        _step(request(3, "tools/list", {"cursor": 5})),
        _step(request(4, "logging/setLevel", {"level": "info"})),
        _step(request(5, "tools/call", {"name": "exce"})),
        _step({"jsonrpc": "2.0", "method": "nonsense"}),
        *map(_step, _LISTS),
    ],
    "cancelled too late, and in time": [
        _step(request(1, "initialize", HANDSHAKES["everything"])),
        _step(INITIALIZED),
        _step(request(2, "tools/list")),
        _step({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}),
        _step({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}),
        _step(request(1, "tools/call", _READ)),
        _step(request(2, "tools/list")),
    ],
}


def _one_by_one(server: Server, script: Sequence[Step]) -> list[bytes]:
    heard: list[bytes] = []
    for step in script:
        server.say(step.line)
        heard += server.hear(step.answered)
    server.end()
    return heard


def _at_once(server: Server, script: Sequence[Step]) -> list[bytes]:
    server.say(b"".join(step.line for step in script))
    heard = server.hear(sum(step.answered for step in script))
    server.end()
    return heard


@pytest.mark.parametrize("name", _SCRIPTS)
def test_the_preamble_and_the_real_server_say_the_same(name: str, tmp_path: Path) -> None:
    script = _SCRIPTS[name]
    profile, prefix = ("full", "box_") if name == "unknown methods" else ("default", "")
    options = ("--tools", profile, "--tool-prefix", prefix)
    with Server(tmp_path / "real", *_REAL_SERVER, profile, prefix) as server:
        expected = _one_by_one(server, script)
    with Server(tmp_path / "one", *_SERVE, *options) as server:
        assert _one_by_one(server, script) == expected
    with Server(tmp_path / "all", *_SERVE, *options) as server:
        assert sorted(_at_once(server, script)) == sorted(expected)


def test_a_handover_while_nobody_speaks_is_not_noticed(tmp_path: Path) -> None:
    script = _SCRIPTS["2025-06-18"]
    answers: list[list[bytes]] = []
    for arguments in ((*_REAL_SERVER, "default", ""), _SERVE):
        with Server(tmp_path, *arguments, MCP_SANDBOX_HOME="relative") as server:
            server.say(script[0].line)
            heard = server.hear()
            assert b"MCP_SANDBOX_HOME" in server.stderr.readline()  # the real server is there, and complains
            answers.append(heard + _one_by_one(server, script[1:]))
    assert answers[0] == answers[1]
    assert b"MCP_SANDBOX_HOME" in answers[0][5]


def test_a_call_that_is_cancelled_before_the_real_server_is_there_is_never_answered(tmp_path: Path) -> None:
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}
    messages = [initialize(), INITIALIZED, request(9, "tools/call", _WRITE), cancelled, request(10, "ping")]
    with Server(tmp_path, *_SERVE) as server:
        server.say(b"".join(map(line, messages)))
        assert [json.loads(answer)["id"] for answer in server.hear(2)] == [1, 10]
        server.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("calls", [False, True])
def test_a_signal_before_the_handover_ends_the_server_with_success(
    number: signal.Signals, calls: bool, tmp_path: Path
) -> None:
    call = line(request(2, "tools/call", _READ)) if calls else b""
    with Server(tmp_path, *_SERVE) as server:
        server.say(line(initialize()) + call)
        server.hear()
        server.process.send_signal(number)
        assert server.process.wait(20) == 0
        assert server.stderr.read() == b""
        assert not (tmp_path / "registry").exists()


_TELLING_MODULES = """\
import os, sys
before, leave = {*sys.modules}, os._exit
def tell(code):
    os.write(2, " ".join(sorted({*sys.modules} - before)).encode())
    leave(code)
os._exit = tell
from mcp_sandbox.cli import main
main(["serve", "--tools=full"])
"""


@pytest.mark.parametrize(
    "messages",
    [
        [initialize(), INITIALIZED, request(2, "tools/list")],
        [request(1, "server/discover", _ENVELOPED), request(2, "tools/list", _ENVELOPED)],
    ],
)
def test_next_to_nothing_is_loaded_before_tools_are_listed(messages: list[Mapping[str, Any]], tmp_path: Path) -> None:
    """What is allowed here costs 3 ms together; `json` alone would cost 8, `enum` 4, `typing` 10, `dataclasses` 16."""
    said = tmp_path / "said"
    said.write_bytes(b"".join(map(line, messages)))
    with said.open("rb") as stdin:
        done = subprocess.run(
            [sys.executable, "-c", _TELLING_MODULES],
            env={"PYTHONPATH": str(_ROOT), "HOME": "/"},
            cwd="/",
            stdin=stdin,
            capture_output=True,
            timeout=20,
        )
    assert done.stdout.count(b"\n") == 2
    tools = ("catalog", "changes", "exec", "files", "listing", "ports", "sandboxes", "snapshots", "tool")
    transport = ("claim", "opening", "plain_json", "preamble")
    assert set(done.stderr.decode().split()) == {
        *("fcntl", "select", "gc", "mcp_sandbox", "mcp_sandbox.cli", "mcp_sandbox.cli.serve"),
        *("mcp_sandbox.settings", "mcp_sandbox.settings.project", "mcp_sandbox.settings.starting"),
        *(
            "mcp_sandbox.settings.lifetimes",
            "mcp_sandbox.settings.limits",
            "mcp_sandbox.settings.pool",
        ),  # how options are read
        *("mcp_sandbox.tools", *(f"mcp_sandbox.tools.{name}" for name in tools)),
        *("mcp_sandbox.transport", *(f"mcp_sandbox.transport.{name}" for name in transport)),
    }


def test_b110_what_is_printed_while_the_sdk_is_loaded_does_not_touch_the_protocol(tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'mcp':\n"
        "            print('printed', flush=True); os.system('echo echoed')\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from mcp_sandbox.cli import main\n"
        "main(['serve'])\n"
    )
    with Server(tmp_path, str(tmp_path / "printing.py")) as server:
        server.say(b"".join(map(line, [initialize(), request(2, "tools/call", _READ)])))
        assert [json.loads(answer)["id"] for answer in server.hear(2)] == [1, 2]
        assert server.end() == b"printed\nechoed\n"


def test_an_sdk_that_cannot_be_loaded_is_an_error_of_the_process(tmp_path: Path) -> None:
    code = "import sys; sys.modules['mcp'] = None; from mcp_sandbox.cli import main; sys.exit(main(['serve']))"
    with Server(tmp_path, "-c", code) as server:
        server.say(line(initialize()))
        server.hear()
        assert server.stdout.read() == b""
        assert server.process.wait(20) == 1
        assert b"ModuleNotFoundError" in server.stderr.read()


def test_a_terminal_is_served_too() -> None:
    ours, theirs = os.openpty()
    try:
        environment = {"PYTHONPATH": str(_ROOT), "HOME": "/"}
        command = [sys.executable, *_SERVE]
        with subprocess.Popen(command, cwd="/", env=environment, stdin=theirs, stdout=subprocess.PIPE) as process:
            os.write(ours, line(initialize()) + b"\x04")
            out, _ = process.communicate(timeout=20)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 0
    assert json.loads(out)["id"] == 1
