"""What every test runs under: asyncio, a loop in which nothing may wait, and a place for the state of providers."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.store.directories import open_state
from mcp_sandbox.testing.driving import new_spec
from tests.containers.base_image import why_no_base
from tests.containers.engines import Dockerd, Podman

__all__: list[str] = []

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a container engine, so that it can run beside everything else."""
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        call = getattr(item, "callspec", None)
        values = call.params.values() if call is not None else ()
        if {"dockerd", "podman"} & set(fixtures) or {"docker", "podman"} & {
            value for value in values if isinstance(value, str)
        }:
            item.add_marker("containers")


@pytest.fixture
def anyio_backend() -> str:
    """Asyncio is the one event loop this package supports."""
    return "asyncio"


@pytest.fixture(autouse=True)
def blockbuster() -> Iterator[BlockBuster]:
    """Fail a test whose code under test waits inside the event loop: for time, a lock, a socket or a person.

    Calls on files are let through: small ones are made in place, because a hop to a thread costs more than they do.
    """
    buster = BlockBuster(scanned_modules=["mcp_sandbox"], excluded_modules=["mcp_sandbox.testing"])
    waiting = {name: function for name, function in buster.functions.items() if not name.startswith(("io.", "os."))}
    for function in waiting.values():
        function.activate()
    yield buster
    for function in waiting.values():
        function.deactivate()


def _is_overlay(directory: Path) -> bool:
    """Whether a directory lies on overlayfs, as everything in a container does: layers cannot lie on layers."""
    best = (0, "")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        point, kind = fields[4], fields[fields.index("-") + 1]
        if directory.is_relative_to(point) and len(point) >= best[0]:
            best = (len(point), kind)
    return best[1] == "overlay"


@pytest.fixture(scope="session")
def state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for providers' state, on a file system that can hold layers, whoever runs the tests.

    One for all tests: an engine may build in it, once, what every sandbox stands on.
    """
    tmp_path = tmp_path_factory.mktemp("state")
    # Not below pytest's own: it removes what killed runs left, and trees of ours may be too deep for it.
    places = [
        Path(tempfile.gettempdir()),
        Path(os.environ.get("XDG_RUNTIME_DIR") or "/dev/shm"),
        Path("/dev/shm"),
        Path("/var/tmp"),
    ]
    place = next((p for p in places if os.access(p, os.W_OK) and not _is_overlay(p.resolve())), tmp_path)
    directory = Path(tempfile.mkdtemp(prefix="mcp-sandbox-test-", dir=place))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def built_base(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """What every sandbox of the embedded engine stands on, built once for all tests; `None` where it does not work.

    Building takes seconds, and it is never changed: a state directory that holds it already is like that of a second
    start. `warm_state` puts it into one.
    """
    root = tmp_path_factory.mktemp("base")

    async def build() -> Path:
        async with LocalProvider(root) as provider:
            spec = new_spec(provider.capabilities)
            await (await provider.create(spec)).aclose()
            await provider.destroy(spec.id)
        return next((root / "base").iterdir())

    try:
        return anyio.run(build)
    except SandboxError:
        return None


@pytest.fixture
def warm_state(built_base: Path | None) -> Callable[[Path], Path]:
    """Return what makes a state directory in which the embedded engine need not build its base first."""

    def make(home: Path) -> Path:
        state = open_state({"MCP_SANDBOX_HOME": str(home)})
        if built_base is not None:
            bases = state.provider("local") / "base"
            bases.mkdir(mode=0o700, exist_ok=True)
            (bases / built_base.name).symlink_to(built_base)
        return home

    return make


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """A docker daemon of our own, with runsc where it is installed."""
    if reason := Dockerd.why_not() or why_no_base():
        pytest.skip(reason)
    with Dockerd() as engine:
        yield engine


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """Podman's service, rootless unless root runs the tests."""
    if reason := Podman.why_not() or why_no_base():
        pytest.skip(reason)
    with Podman() as engine:
        yield engine
