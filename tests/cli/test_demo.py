"""The demo as its readers start it: it shows what it says, on any terminal, and leaves nothing behind."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import pytest
from command_line import ROOT

from mcp_sandbox.cli.demo.display import Display, duration, is_lively
from mcp_sandbox.cli.demo.scenes import SECRET
from mcp_sandbox.tools.terminal import as_seen
from tests.interaction.wire_client import processes_below, wait_until_gone

__all__: list[str] = []

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")

_ESCAPE = "\x1b"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Where the demo keeps what is temporary."""
    path = tmp_path / "temporary"
    path.mkdir()
    return path


@pytest.fixture
def works(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The embedded engine works here, or a skip."""
    done = _run(tmp_path_factory.mktemp("doctor"), "doctor", "local")
    if done.returncode:
        pytest.skip(done.stdout)


def _environment(scratch: Path) -> dict[str, str]:
    modules = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PATH": os.environ["PATH"], "PYTHONPATH": modules, "HOME": str(scratch.parent), "TMPDIR": str(scratch)}


def _start(
    scratch: Path, *arguments: str, stdout: int = subprocess.PIPE, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mcp_sandbox", *(arguments or ("demo",))],
        env={**_environment(scratch), **variables},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def _run(scratch: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    with _start(scratch, *arguments) as process:
        try:
            out, err = process.communicate(timeout=50)
        finally:
            process.kill()
    assert "Traceback" not in out + err, out + err
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def _stage(text: str) -> Path:
    found = re.search(r"--project (\S+)/project$", text, re.MULTILINE)
    assert found is not None, text
    return Path(found[1])


def _terminal(scratch: Path, variables: Mapping[str, str]) -> str:
    """Return all that a terminal gets."""
    ours, theirs = pty.openpty()
    with _start(scratch, stdout=theirs, variables=variables) as process:
        os.close(theirs)
        got = b""
        with suppress(OSError):  # EIO is how a terminal says that nobody is there any more
            while chunk := os.read(ours, 65536):
                got += chunk
        os.close(ours)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 0
    return got.decode().replace("\r\n", "\n")


@pytest.mark.usefixtures("works")
def test_the_demo_shows_everything_and_leaves_nothing(scratch: Path) -> None:
    done = _run(scratch)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    text = done.stdout
    assert _ESCAPE not in text
    for number in range(1, 11):
        assert f"\n{number:2}  " in text
    for shown in ("exit=7 ", "exit=127 ", "ended=timeout ", "job_id=j1 status=running ", "network is unreachable"):
        assert shown in text
    assert text.count("✔") == 5
    assert "✘" not in text
    assert next(iter(SECRET.values())) not in text
    assert not _stage(text).exists()
    assert list(scratch.iterdir()) == []
    lines = [line for line in text.splitlines() if " --project " not in line and " mcp add " not in line]
    assert max(map(len, lines)) <= 79


@pytest.mark.usefixtures("works")
def test_timings_come_as_json_and_nothing_else_does(scratch: Path) -> None:
    done = _run(scratch, "demo", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    medians = {timing["what"]: timing["median_s"] for timing in report["timings"]}
    assert {"exec true", "sandbox_create", "snapshot_create, 1,000 files", "snapshot_restore, 1,000 files"} <= set(
        medians
    )
    assert all(0 < median_s < report["total_s"] for median_s in medians.values())
    assert list(scratch.iterdir()) == []


@pytest.mark.usefixtures("works")
def test_a_terminal_gets_colours_and_a_moving_line_that_goes_away(scratch: Path) -> None:
    got = _terminal(scratch, {"TERM": "xterm-256color", "COLUMNS": "80"})
    assert f"{_ESCAPE}[36mexec" in got
    assert re.search("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", got)
    screen = as_seen(got)
    assert not re.search("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏█░]", screen)
    assert screen.count("✔") == 5
    moving = [as_seen(line) for line in got.replace("\n", "\r").split("\r")]
    assert max(len(line) for line in moving if "░" in line or "█" in line) < 80


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}, {}])
def test_a_terminal_that_wants_no_colours_gets_plain_lines(variables: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as stream:
            assert is_lively(stream, {"TERM": "xterm"})
            assert not is_lively(stream, variables)
            display = Display(stream, lively=is_lively(stream, variables), scenes=1)
            display.scene("A scene")
            display.call("exec", "true", 0.001)
        shown = b""
        while not shown.rstrip().endswith(b"ms"):  # a terminal hands out what it has so far
            shown += os.read(ours, 1000)
        assert shown.decode().split() == ["1", "A", "scene", "exec", "true", "1.00", "ms"]
    finally:
        os.close(ours)


def test_a_stream_that_knows_no_unicode_gets_ascii(tmp_path: Path) -> None:
    with (tmp_path / "shown").open("w", encoding="ascii") as stream:
        display = Display(stream, lively=False, scenes=1)
        display.proof("it holds")
        display.output("x" * 200)
        display.failure("it fails")
    assert (tmp_path / "shown").read_text("ascii").split()[0] == "+"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.00123, "1.23 ms"), (0.002, "2.00 ms"), (0.0999, "99.9 ms"), (0.25, "250 ms"), (2.5, "2.50 s")],
)
def test_durations_have_three_digits(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.usefixtures("works")
@pytest.mark.parametrize(
    ("number", "at"),
    [
        (signal.SIGINT, " 1  "),
        (signal.SIGINT, " 4  "),
        (signal.SIGTERM, " 6  "),
        (signal.SIGHUP, " 9  "),
    ],
)
def test_b074_a_signal_ends_the_demo_and_all_it_started(scratch: Path, number: signal.Signals, at: str) -> None:
    with _started(scratch, at) as (process, seen):
        left = processes_below(process.pid)
        process.send_signal(number)
        assert process.wait(30) == 128 + number  # a busy machine takes its time; what is left is what counts
        assert not wait_until_gone(left, 5)
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.stdout is not None
        assert not _stage(seen + process.stdout.read()).exists()
    assert list(scratch.iterdir()) == []


@pytest.mark.usefixtures("works")
def test_a_server_that_dies_is_a_message(scratch: Path) -> None:
    with _started(scratch, " 5  ") as (process, seen):
        server = min(processes_below(process.pid))
        os.kill(server, signal.SIGKILL)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (1, "")
    assert "✘ The server does not answer" in out
    assert not _stage(seen + out).exists()


@contextmanager
def _started(scratch: Path, at: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Start the demo and wait until it prints a line that begins so; what it said up to then comes with it."""
    with _start(scratch) as process:
        try:
            assert process.stdout is not None
            seen = ""
            while not (line := process.stdout.readline()).startswith(at) or "--project" not in seen + line:
                assert line, seen
                seen += line
                if at == " 1  " and "--project" in line:
                    break
            yield process, seen
        finally:
            process.kill()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare (util-linux) is missing")
@pytest.mark.parametrize("arguments", [("demo",), ("demo", "--json")])
def test_where_the_engine_does_not_work_the_demo_says_why_and_what_to_do(
    scratch: Path, arguments: tuple[str, ...]
) -> None:
    """Root of a user namespace without other ids, where the engine refuses to run sandboxes as root."""
    alone = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    done = subprocess.run(
        [*alone, sys.executable, "-m", "mcp_sandbox", *arguments],
        env=_environment(scratch),
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 1
    said = " ".join((done.stdout + done.stderr).split())
    assert "✘ No user id for a sandbox: " in said
    assert "Run mcp-sandbox as an ordinary user" in said
    assert "Traceback" not in said
    assert (done.stdout == "") is ("--json" in arguments)
    assert list(scratch.iterdir()) == []
