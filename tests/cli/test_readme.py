"""What the README and the ready configurations say is so."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, CommandLine

from mcp_sandbox.cli import COMMANDS
from mcp_sandbox.providers.registry import ENTRY_POINT_GROUP
from mcp_sandbox.tools.catalog import ALL_TOOLS

__all__: list[str] = []

_README = (ROOT / "README.md").read_text("utf-8")
_CONFIGURATIONS = sorted((ROOT / "configs").glob("*.json"))
_INSTALLED = "/absolute/path/to/mcp-sandbox/.venv/bin/mcp-sandbox"
_PROJECT = "/absolute/path/to/your/project"
_INITIALIZE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
    b'"clientInfo":{"name":"t","version":"1"}}}\n'
)


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", _README, re.MULTILINE | re.DOTALL)


def _section(title: str) -> str:
    return _README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def _first_cells(section: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)`", _section(section), re.MULTILINE)


def test_the_first_two_commands_are_the_whole_set_up() -> None:
    assert _blocks("sh")[:2] == ["sh tests/install && .venv/bin/mcp-sandbox demo\n", "sh tests/run\n"]
    assert len(re.findall("```sh", _section("Start"))) == 2
    assert (ROOT / "tests" / "install").is_file()
    assert (ROOT / "tests" / "run").is_file()


@pytest.mark.parametrize("path", _CONFIGURATIONS, ids=lambda path: path.name)
def test_a_ready_configuration_is_in_the_readme_and_starts_a_server(path: Path, cli: CommandLine) -> None:
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    assert content in [json.loads(block) for block in _blocks("json")]
    assert f"(configs/{path.name})" in _README
    ((name, server),) = content["mcpServers"].items()
    assert name == "sandbox"
    assert server["command"] == _INSTALLED
    arguments = [argument.replace(_PROJECT, str(cli.project)) for argument in server["args"]]
    done = cli.run(*arguments, stdin=_INITIALIZE)
    assert done.returncode == 0
    assert json.loads(done.stdout)["result"]["serverInfo"]["name"] == "mcp-sandbox"


def test_every_tool_and_every_command_is_in_its_table() -> None:
    assert _first_cells("The tools") == [tool.name for tool in ALL_TOOLS]
    assert sorted(cell.split()[1] for cell in _first_cells("The command line")) == sorted(COMMANDS)


def test_every_path_that_is_named_exists() -> None:
    linked = re.findall(r"\]\(([^)#]+)\)", _README)
    tested = re.findall(r"\btests/[\w/.]+", _README)
    cells = re.findall(r"^\| (`[a-z]+[/.].*?) \|", _section("The source"), re.MULTILINE)
    packages = [f"mcp_sandbox/{name}" for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert len(packages) > 10
    missing = [path for path in [*linked, *tested, *packages] if "://" not in path and not (ROOT / path).exists()]
    assert missing == []
    there = {path.name for path in (ROOT / "mcp_sandbox").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert there == {path.split("/")[1] for path in packages if path.endswith("/")}


def test_the_entry_point_of_a_provider_is_what_the_registry_looks_for() -> None:
    (block,) = _blocks("toml")
    assert list(tomllib.loads(block)["project"]["entry-points"]) == [ENTRY_POINT_GROUP]


def test_no_path_of_a_machine_is_in_what_users_read() -> None:
    texts = {path.name: path.read_text("utf-8") for path in [ROOT / "README.md", *_CONFIGURATIONS]}
    allowed = re.compile(r"/(home|root)/?[ |`,]|~/")
    for name, text in texts.items():
        for line in text.splitlines():
            assert not re.search(r"/(home|root|work|Users)/\w", allowed.sub("", line)), f"{name}: {line}"


def test_the_benchmarks_explain_themselves() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "--quick" in shown.stdout
    assert "python -m tests.benchmarks" in _section("Numbers")
