"""Command lines to test: one on the double, one on the embedded engine."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine

__all__: list[str] = []


def _project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    return project


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    """The command line on the double, which runs no programs and forgets everything with its process."""
    return CommandLine(
        home=tmp_path / "state", project=_project(tmp_path), variables={"MCP_SANDBOX_PROVIDER": "memory"}
    )


@pytest.fixture(scope="session")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory in which the embedded engine works; its first sandbox takes longer than the others."""
    home = tmp_path_factory.mktemp("engine")
    first = CommandLine(home=home / "state", project=home)
    done = first.run("doctor", "local")
    if done.returncode:
        pytest.skip(done.stdout.decode())
    yield first.home
    known = [name for name in os.listdir(first.home / "registry") if name.startswith("sb_")]
    assert not known or first.run("rm", *known).returncode == 0


@pytest.fixture
def machine(engine_home: Path, tmp_path: Path) -> CommandLine:
    """The command line on the embedded engine, in a project of its own."""
    return CommandLine(home=engine_home, project=_project(tmp_path))
