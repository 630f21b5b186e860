"""`mcp-sandbox expose`."""

import signal
import urllib.request

from command_line import CommandLine

__all__: list[str] = []


def test_a_server_is_reached_until_the_command_is_ended(machine: CommandLine) -> None:
    serve = "echo hello > index.html; exec python3 -um http.server --bind 127.0.0.1 8000"
    with machine.start("exec", "--", "sh", "-c", serve) as server, machine.start("expose", "8000") as exposing:
        assert exposing.stdout is not None
        url = exposing.stdout.readline().decode().strip()
        with urllib.request.urlopen(f"{url}/", timeout=10) as answer:
            assert answer.read() == b"hello\n"
        exposing.send_signal(signal.SIGINT)
        out, err = exposing.communicate(timeout=10)
        assert (out, err, exposing.returncode) == (b"", b"", 130)
        server.terminate()
        server.communicate(timeout=10)
    machine.say("rm", *[one["id"] for one in machine.sandboxes()])


def test_what_cannot_be_exposed_is_refused(machine: CommandLine) -> None:
    assert machine.run("expose", "0").returncode == 2
    assert machine.run("expose", "web").returncode == 2
    assert b"no sandbox" in machine.run("expose", "8000", "--sandbox", "nosuch").stderr.lower()


def test_a_provider_that_cannot_says_so(cli: CommandLine) -> None:
    done = cli.run("expose", "8000")
    assert done.returncode == 2
    assert b"No expose" in done.stderr
