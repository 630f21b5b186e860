"""What a manifest has done in new sandboxes: files, packages, commands; once, kept, and told by key if it fails."""

import json
import os
import subprocess
import time

import pytest
from command_line import ROOT, CommandLine

from tests.packages.mirrors import python_wheel

__all__: list[str] = []

_READY = sorted((ROOT / "configs" / "manifests").glob("*.yaml"))


def _write(cli: CommandLine, text: str) -> None:
    (cli.project / "mcp-sandbox.yaml").write_text(text)


def _wheels(cli: CommandLine, *names: str) -> None:
    (cli.project / "wheels").mkdir()
    for name in names:
        (cli.project / "wheels" / f"{name}-1.0-py3-none-any.whl").write_bytes(python_wheel(name))


def _setups(cli: CommandLine) -> list[str]:
    """Return the ids of the results that are kept of this project."""
    records = {path.stem: json.loads(path.read_bytes()) for path in (cli.home / "snapshots").glob("*.json")}
    return [name for name, record in records.items() if record["project"] == str(cli.project.resolve())]


def _again(cli: CommandLine) -> None:
    cli.say("rm", "--own")


def test_files_and_commands_are_there_before_the_first_command_and_kept_for_the_next_sandbox(
    machine: CommandLine,
) -> None:
    (machine.project / "conf").write_text("one\n")
    _write(machine, """
files: {/etc/motd: hello, run.sh: {content: "echo from file", mode: 0755}, copy: {from: conf}}
setup:
  - echo "$WHO" >> /root/ran
  - {run: cp copy /opt/conf, inputs: [conf]}
env: {WHO: somebody}
""")  # fmt: skip
    look = ("exec", "--", "sh", "-c", "cat /root/ran /etc/motd /opt/conf; ./run.sh")
    first = machine.run(*look)
    assert first.stdout == b"somebody\nhelloone\nfrom file\n"
    assert b"was prepared" in first.stderr
    _again(machine)
    second = machine.run(*look)
    assert (second.stdout, second.stderr) == (first.stdout, b""), "it ran once, and nothing is told of it"
    assert machine.say("diff", "--stat") == "nothing changed\n"
    assert len(_setups(machine)) == 1
    (machine.project / "conf").write_text("two\n")
    _again(machine)
    assert b"two" in machine.run(*look).stdout, "what it depends on has changed"
    (machine.project / "other").write_text("nobody's input")
    _again(machine)
    assert machine.run(*look).stderr == b""
    _again(machine)


def test_only_the_newest_results_are_kept(machine: CommandLine) -> None:
    for number in range(5):
        _write(machine, f"setup: ['echo {number} > /opt/n']\n")
        assert machine.say("exec", "--", "cat", "/opt/n") == f"{number}\n"
        _again(machine)
    assert len(_setups(machine)) == 3
    _write(machine, "setup: ['echo 4 > /opt/n']\n")
    assert machine.run("exec", "--", "true").stderr == b""
    _again(machine)


def test_a_result_that_somebody_deleted_is_made_again(machine: CommandLine) -> None:
    _write(machine, "setup: ['echo x > /opt/n']\n")
    machine.say("exec", "--", "true")
    _again(machine)
    (kept,) = _setups(machine)
    machine.say("snapshot", "delete", kept)
    assert machine.say("exec", "--", "cat", "/opt/n") == "x\n"
    _again(machine)


def test_a_command_that_fails_is_told_by_its_place_and_leaves_nothing(machine: CommandLine) -> None:
    _write(machine, "setup:\n  - 'true'\n  - 'echo the reason >&2; exit 3'\n")
    failed = machine.run("exec", "--", "true")
    assert failed.returncode == 2
    assert b"setup[1] in mcp-sandbox.yaml failed: it ended with status 3, saying: the reason" in failed.stderr
    assert (machine.sandboxes(), _setups(machine)) == ([], [])


def test_a_runtime_that_is_not_inside_is_refused_and_what_is_there_is_named(machine: CommandLine) -> None:
    for runtime, words in (
        ("python2.1", b"python2.1 is not inside; python3 there is 3."),
        ("cobol", b"there is no cobol at all"),
        ("9lives", b"is not understood"),
    ):
        _write(machine, f"environment: {{runtime: {runtime}}}\n")
        refused = machine.run("exec", "--", "true")
        assert refused.returncode == 2
        assert b"environment.runtime in mcp-sandbox.yaml cannot be" in refused.stderr
        assert words in refused.stderr, refused.stderr
    _write(machine, "environment: {runtime: python3}\n")
    assert machine.run("exec", "--", "true").returncode == 0
    assert _setups(machine) == [], "a look needs no snapshot"
    _again(machine)


def test_packages_come_from_wheels_of_the_project_or_are_refused_with_the_remedy(machine: CommandLine) -> None:
    if machine.run("exec", "--", "python3", "-m", "pip", "--version").returncode:
        pytest.skip("this machine's python3 has no pip")
    _again(machine)
    _wheels(machine, "greet")
    _write(machine, "environment: {dependencies: [greet], wheels: wheels}\n")
    assert machine.say("exec", "--", "greet") == "good day from python\n"
    _again(machine)
    _write(machine, "environment: {dependencies: [greet, nosuchpackage], wheels: wheels}\n")
    refused = machine.run("exec", "--", "true")
    assert refused.returncode == 2
    assert b"environment.dependencies in mcp-sandbox.yaml cannot be installed" in refused.stderr
    assert b"nosuchpackage" in refused.stderr
    assert b"environment.wheels" in refused.stderr
    assert b"--index-url" in (_check(machine, "environment: {dependencies: ['--index-url=http://evil']}\n"))


def _check(cli: CommandLine, text: str) -> bytes:
    _write(cli, text)
    return cli.run("manifest", "check").stdout


def test_cfg02_files_of_the_project_do_not_lead_out_of_it(machine: CommandLine) -> None:
    secret = machine.project.parent / "secret"
    secret.write_text("sesame")
    (machine.project / "link").symlink_to(secret)
    (machine.project / "directory").symlink_to(machine.project.parent)
    os.mkfifo(machine.project / "fifo")
    for source in ("link", "directory/secret", "fifo", "nosuch"):
        _write(machine, f"files: {{a: {{from: {source}}}}}\n")
        refused = machine.run("exec", "--", "cat", "a")
        assert refused.returncode == 2, source
        assert b"files.a in mcp-sandbox.yaml cannot be carried out" in refused.stderr
        assert b"sesame" not in refused.stdout + refused.stderr
    assert machine.sandboxes() == []


def test_two_commands_at_once_prepare_it_once(machine: CommandLine) -> None:
    _write(machine, "setup: ['sleep 1; echo run >> /root/ran']\n")
    both = [machine.start("exec", "--", "cat", "/root/ran") for _ in range(2)]
    said = [one.communicate(timeout=30)[0] for one in both]
    assert said == [b"run\n", b"run\n"]
    assert len(_setups(machine)) == 1
    _again(machine)


def test_what_is_prepared_ends_with_the_command_that_waits_for_it(machine: CommandLine) -> None:
    _write(machine, "setup: ['sleep 100']\n")
    with machine.start("exec", "--", "true") as waiting:
        deadline = time.monotonic() + 20
        while not list((machine.home / "providers" / "local" / "sandboxes").glob("sb_*/init.json")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        waiting.terminate()
        waiting.communicate(timeout=20)
    assert "sleep 100" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    _write(machine, "setup: ['echo again > /opt/n']\n")
    assert machine.say("exec", "--", "cat", "/opt/n") == "again\n"
    _again(machine)


@pytest.mark.parametrize("path", _READY, ids=lambda path: path.stem)
def test_a_ready_manifest_runs_on_the_embedded_engine(machine: CommandLine, path: os.PathLike[str]) -> None:
    """Unchanged but for the provider, as the command line says it; packages come from wheels that the user names."""
    own = CommandLine(machine.home, machine.project, {"XDG_CONFIG_HOME": str(machine.project.parent / "config")})
    config = machine.project.parent / "config" / "mcp-sandbox" / "config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("env: {PIP_FIND_LINKS: /workspace/wheels}\nlimits: {best_effort: true}\n")
    _wheels(own, "openai", "anthropic")
    with open(path, encoding="utf-8") as file:
        _write(own, file.read())
    # The first manifest allows git and asks about most other programs, which nobody can answer here.
    look = ("git", "-C", "/usr/local/lib", "grep", "--no-index", "-l", "good day from python")
    ran = own.run("exec", "--provider", "local", "--network", "none", "--", *look)
    if b"environment.runtime" in ran.stderr:
        pytest.skip(ran.stderr.decode())
    installed = "- openai" in (own.project / "mcp-sandbox.yaml").read_text()
    assert ran.returncode == (0 if installed else 1), ran.stderr.decode()
    assert ({b"openai", b"anthropic"} <= set(ran.stdout.replace(b"\n", b"/").split(b"/"))) is installed
    own.say("rm", "--own")
