"""A state directory and servers on it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interaction.wire_client import WireClient, starting

if sys.platform != "linux":
    collect_ignore_glob = ["*"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty state directory."""
    return tmp_path / "state"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project directory."""
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., WireClient]]:
    """Start servers on one state directory; they end with the test."""
    with starting(home) as begin:
        yield begin


@pytest.fixture
def server(start: Callable[..., WireClient]) -> WireClient:
    """One server, started in `/` with an empty HOME and no project."""
    return start()
