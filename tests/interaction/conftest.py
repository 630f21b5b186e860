"""A state directory and servers on it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.engines import Dockerd
from tests.interaction.wire_client import WireClient, starting

if sys.platform != "linux":
    collect_ignore_glob = ["*"]


@pytest.fixture
def home(tmp_path: Path, warm_state: Callable[[Path], Path]) -> Path:
    """An empty state directory."""
    return warm_state(tmp_path / "state")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project directory."""
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def provider(request: pytest.FixtureRequest) -> str:
    """The provider of the servers: `local`, unless a test is parametrized with others."""
    return getattr(request, "param", "local")


@pytest.fixture
def start(home: Path, provider: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., WireClient]]:
    """Start servers on one state directory; they end with the test, as do the containers of their sandboxes."""
    with starting(home) as begin:
        if provider == "local":
            yield begin
            return
        engine: Dockerd = request.getfixturevalue("dockerd")

        def begin_there(*arguments: str, **options: Any) -> WireClient:
            options["env"] = {"DOCKER_HOST": engine.host, **options.get("env", {})}
            return begin(*(arguments or ("serve",)), "--provider", provider, "--image", engine.base, **options)

        yield begin_there
    engine.remove_containers()


@pytest.fixture
def server(start: Callable[..., WireClient]) -> WireClient:
    """One server, started in `/` with an empty HOME and no project."""
    return start()
