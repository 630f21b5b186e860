"""`mcp-sandbox exec`: a command in a sandbox as if it ran here."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import CommandLine

__all__: list[str] = []


def test_streams_and_exit_status_pass_through(machine: CommandLine) -> None:
    done = machine.run("exec", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--timeout", "0.3", "--", "sleep", "60"), 124, b"0.3 s"),
        (("--", "sh", "-c", "kill -TERM $$"), 143, b""),
        (("--", "sh", "-c", "kill -KILL $$"), 137, b""),
        (("--", "nosuch"), 127, b"nosuch"),
        (("--", "/etc/passwd"), 126, b"passwd"),
        (("--cwd", "/tmp", "--", "pwd"), 0, b""),
        (("--cwd", "sub", "--", "pwd"), 126, b"sub"),
    ],
)
def test_every_end_has_its_status(machine: CommandLine, arguments: tuple[str, ...], status: int, said: bytes) -> None:
    done = machine.run("exec", *arguments)
    assert done.returncode == status, done
    assert said in done.stderr


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (("--provider", "memory"), {}),
        ((), {"MCP_SANDBOX_PROVIDER": "memory"}),
        (("--runtime", "runsc"), {}),
    ],
)
def test_a_sandbox_that_is_not_what_was_asked_for_runs_nothing(
    machine: CommandLine, options: tuple[str, ...], variables: dict[str, str]
) -> None:
    machine.say("exec", "--", "true")
    machine.variables.update(variables)
    done = machine.run("exec", *options, "--", "touch", "/workspace/ran")
    assert done.returncode == 2
    for part in (b"on provider 'local'", b"mcp-sandbox rm --own", b"leave out --"):
        assert part in done.stderr
    machine.variables.clear()
    assert machine.say("exec", "--", "ls") == ""


def test_arguments_are_not_parsed_by_a_shell(machine: CommandLine) -> None:
    assert machine.say("exec", "--", "printf", "%s|", "a b", "$HOME", "*", "", "--help") == "a b|$HOME|*||--help|"


def test_bytes_pass_both_ways_unchanged(machine: CommandLine) -> None:
    data = bytes(range(256)) * 8192
    done = machine.run("exec", "--", "cat", stdin=data)
    assert (done.returncode, done.stdout) == (0, data)


def test_input_may_be_a_file_or_nothing_at_all(machine: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"from a file")
    with (tmp_path / "input").open("rb") as file, machine.start("exec", "--", "cat", stdin=file) as process:
        assert process.communicate(timeout=20)[0] == b"from a file"
    closed = ["sh", "-c", '"$@" <&-', "sh", sys.executable, "-m", "mcp_sandbox", "exec", "--", "cat"]
    done = subprocess.run(closed, cwd=machine.project, env=machine.environment, capture_output=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_command_that_reads_nothing_does_not_wait_for_input_to_end(machine: CommandLine) -> None:
    with machine.start("exec", "--", "echo", "done", stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"done\n"
        assert process.wait(timeout=20) == 0


def test_no_stdin_leaves_the_input_to_the_next_command(machine: CommandLine) -> None:
    command = f"{sys.executable} -m mcp_sandbox exec"
    for option, expected in (("--no-stdin", b"a\nb\n"), ("", b"a\n")):
        loop = f"while read line; do echo $line; {command} {option} -- cat > /dev/null; done"
        done = subprocess.run(
            ["sh", "-c", loop],
            input=b"a\nb\n",
            cwd=machine.project,
            env=machine.environment,
            capture_output=True,
            timeout=30,
        )
        assert done.stdout == expected, done


def test_a_reader_that_goes_away_ends_the_command(machine: CommandLine) -> None:
    with machine.start("exec", "--", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait(timeout=20) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_slow_reader_loses_nothing(machine: CommandLine) -> None:
    with machine.start("exec", "--", "sh", "-c", "head -c 3000000 /dev/zero; echo end >&2") as process:
        assert process.stdout is not None
        size = 0
        while data := process.stdout.read(100_000):
            size += len(data)
        assert size == 3_000_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_b010_a_signal_ends_the_command_with_all_it_started(machine: CommandLine, number: signal.Signals) -> None:
    beat = "while :; do echo x >> /workspace/beat; sleep 0.05; done"
    script = f"echo x > beat; setsid sh -c '{beat}' & echo started; {beat}"
    with machine.start("exec", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.send_signal(number)
        assert process.wait(timeout=20) == 128 + number
    sizes = machine.say("exec", "--", "sh", "-c", "wc -c < beat; sleep 0.3; wc -c < beat").split()
    assert sizes[0] == sizes[1]


def test_a_signal_ends_it_also_while_nobody_reads(machine: CommandLine) -> None:
    with machine.start("exec", "--", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130


def test_a_server_and_the_command_line_use_one_sandbox_at_once(machine: CommandLine) -> None:
    with machine.start("serve", stdin=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        run = {"name": "exec", "arguments": {"command": "echo from the server > a; cat b 2>/dev/null"}}
        answers: list[str] = []
        for number, (method, params) in enumerate((("initialize", start), ("tools/call", run), ("tools/call", run))):
            if number == 2:
                assert machine.say("exec", "--", "sh", "-c", "cat a; echo from here > b") == "from the server\n"
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            server.stdin.write(json.dumps(message).encode() + b"\n")
            server.stdin.flush()
            answers.append(server.stdout.readline().decode())
        assert "from here" in answers[2]
        server.stdin.close()
        assert server.wait(timeout=10) == 0
    assert len(machine.sandboxes()) == 1


def test_b085_processes_that_race_for_the_default_sandbox_share_one(machine: CommandLine) -> None:
    children = [machine.start("exec", "--", "sh", "-c", f"echo {number} >> /workspace/log") for number in range(6)]
    for child in children:
        out, err = child.communicate(timeout=60)
        assert (child.returncode, out, err) == (0, b"", b"")
    assert sorted(machine.say("exec", "--", "cat", "/workspace/log").split()) == list("012345")
    (only,) = machine.sandboxes()
    assert only["is_default"]


def test_a_process_killed_on_first_use_leaves_a_sandbox_that_works(machine: CommandLine) -> None:
    for delay_s in (0.1, 0.2, 0.25, 0.3, 0.35):
        with machine.start("exec", "--", "sleep", "60") as process:
            deadline = time.monotonic() + delay_s
            while time.monotonic() < deadline:
                os.sched_yield()
            process.kill()
    assert machine.say("exec", "--", "echo", "works") == "works\n"
    listed = [
        one for one in json.loads(machine.say("ls", "--json")) if one["project"] == str(machine.project.resolve())
    ]
    assert len(listed) == 1


def test_the_project_is_copied_on_write(machine: CommandLine) -> None:
    (machine.project / "a.txt").write_text("host\n")
    assert machine.say("exec", "--", "sh", "-c", "cat a.txt; echo inside > a.txt; cat a.txt") == "host\ninside\n"
    assert (machine.project / "a.txt").read_text() == "host\n"


def test_the_double_works_without_programs_of_its_own(cli: CommandLine) -> None:
    assert cli.say("exec", "--", "cat", stdin=b"through the double") == "through the double"
    again = cli.run("exec", "--", "true")  # its sandbox ended with its process
    assert again.returncode == 0
    assert b"is gone" in again.stderr
