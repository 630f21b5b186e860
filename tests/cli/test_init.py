"""`init`: what it finds, what it shows, and that what it writes can be used."""

import json
import os
import re

import pytest
from command_line import CommandLine

__all__: list[str] = []

_PROJECTS = {
    "python": {"pyproject.toml": "[project]\nname='x'\n", "requirements.txt": "flask\n", ".python-version": "3.11.4\n"},
    "node": {"package.json": '{"engines": {"node": "22.x"}}', "package-lock.json": "{}"},
    "go": {"go.mod": "module x\n\ngo 1.24\n\ntoolchain go1.24.1\n"},
    "rust": {"Cargo.toml": "[package]\n", "rust-toolchain.toml": '[toolchain]\nchannel = "1.84.0"\n'},
    "nothing": {"README": "x"},
}
_FINDS = {
    "python": ("runtime: python3.11", "python3 -m pip install -r requirements.txt", "@pypi"),
    "node": ("runtime: node22", "npm ci", "@npm"),
    "go": ("runtime: go1.24", "go mod download", "@golang"),
    "rust": ("runtime: rust1.84", "cargo fetch", "@crates"),
    "nothing": ("# runtime:", "# setup:", "workspace: overlay"),
}


def _fill(cli: CommandLine, files: dict[str, str]) -> None:
    for name, text in files.items():
        (cli.project / name).write_text(text)


@pytest.mark.parametrize("kind", _PROJECTS)
def test_what_is_found_is_written_and_can_be_carried_out(cli: CommandLine, kind: str) -> None:
    _fill(cli, {**_PROJECTS[kind], ".env": "SECRET=1", "server.key": "x"})
    shown = cli.run("init")
    assert (shown.returncode, (cli.project / "mcp-sandbox.yaml").exists()) == (1, False), "nobody said yes"
    text = shown.stdout.decode()
    assert all(words in text for words in _FINDS[kind]), text
    assert 'denied: [".env", "server.key"]' in text
    assert cli.say("init", "--yes") == text
    assert (cli.project / "mcp-sandbox.yaml").read_text() == text
    assert cli.run("manifest", "check", "--provider", "local").returncode == 0
    told = json.loads(cli.say("manifest", "explain", "--json", "--provider", "local"))
    assert {each["becomes"] for each in told["keys"]} <= {"holds", "does not hold: the command line says so"}


def test_what_is_only_a_comment_can_be_carried_out_once_it_is_none(cli: CommandLine) -> None:
    _fill(cli, _PROJECTS["python"])
    commented = r"(?m)^( *)# ((?:image|fallback|resources|commands|setup|env|allowed_env)\b|  - )"
    taken = re.sub(commented, r"\1\2", cli.run("init").stdout.decode())
    assert "# image" not in taken
    (cli.project / "all.yaml").write_text(taken)
    assert cli.run("manifest", "check", "all.yaml", "--provider", "local").stdout.startswith(b"It can be carried out")


def test_a_manifest_that_is_there_stays(cli: CommandLine) -> None:
    (cli.project / "agent.manifest").write_text("name: mine\n")
    done = cli.run("init", "--yes")
    assert (done.returncode, b"the project has agent.manifest" in done.stderr) == (2, True)
    assert os.listdir(cli.project) == ["agent.manifest"]


def test_what_a_project_holds_leads_nowhere_and_writes_nothing_odd(cli: CommandLine) -> None:
    secret = cli.project.parent / "secret"
    secret.write_text("9.9 sesame")
    (cli.project / ".python-version").symlink_to(secret)
    (cli.project / "pyproject.toml").write_text("x")
    os.mkfifo(cli.project / ".nvmrc")
    (cli.project / "package.json").write_text('{"engines": {"node": "22\\n  evil: 1"}}')
    text = cli.say("init", "--yes")
    assert "9.9" not in text
    assert "evil" not in text
    assert cli.run("manifest", "check", "--provider", "local").returncode == 0
