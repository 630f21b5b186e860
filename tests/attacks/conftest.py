"""The embedded engine, and servers on it, for whoever attacks them."""

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.capability import Capabilities, Verb
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.guest.binary import guest_binary
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.providers.gvisor import GvisorProvider
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.testing.driving import new_spec
from tests.attacks.not_yet import OPEN
from tests.attacks.world import Attacked, Host, plant_host
from tests.containers.engines import Dockerd
from tests.interaction.wire_client import WireClient, mounts_of, processes_below, starting, wait_until_gone

if sys.platform != "linux":
    collect_ignore_glob = ["*"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play attacks on the providers that a module names in `ATTACKED`, else on `local`, or on those of the variable."""
    if "attacked" in metafunc.fixturenames:
        named = os.environ.get("MCP_SANDBOX_ATTACKED", "")
        of_module: Sequence[str] = vars(sys.modules[metafunc.function.__module__]).get("ATTACKED", ("local",))
        names = named.split(",") if named else of_module
        metafunc.parametrize("attacked", names, indirect=True, scope="session")


@pytest.fixture(autouse=True)
def known_to_succeed(request: pytest.FixtureRequest) -> None:
    """Skip what is known to succeed on the attacked provider."""
    if "attacked" in request.fixturenames:
        attacked: Attacked = request.getfixturevalue("attacked")
        known = OPEN.get(attacked.name, {})
        if reason := known.get(request.function.__name__) or known.get(request.node.name):
            pytest.skip(reason)


@pytest.fixture(scope="session")
def state_directory(state_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory that all tests use, removed in a way that gets through hostile trees.

    That takes its time on a busy machine: it is done when the tests are over, and none of them is charged for it.
    """
    yield state_directory
    remover = tmp_path_factory.mktemp("remover") / "guest"
    remover.write_bytes(guest_binary())
    remover.chmod(0o755)
    aside = state_directory.rename(state_directory.with_name(f"{state_directory.name}-over"))
    atexit.register(subprocess.run, [remover, "remove", aside], check=True, env={})


@pytest.fixture(scope="session")
def attacked(request: pytest.FixtureRequest) -> Attacked:
    """The provider that is attacked, with its engine."""
    return request.getfixturevalue(f"attacked_{request.param}")


@pytest.fixture(scope="session")
def attacked_local(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    """The embedded engine."""
    return _attacked("local", LocalProvider, tmp_path_factory)


@pytest.fixture(scope="session")
def attacked_docker(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    """Containers of a Docker engine of our own."""
    environment = {"DOCKER_HOST": dockerd.host}

    def opened(state: Path) -> Provider:
        return DockerProvider(state / "docker", image=dockerd.base, environ=environment)

    found = _attacked("docker", opened, tmp_path_factory)
    return replace(found, environment=environment, arguments=("--image", dockerd.base))


@pytest.fixture(scope="session")
def attacked_gvisor(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    """GVisor without Docker."""
    if not (os.environ.get("MCP_SANDBOX_RUNSC") or shutil.which("runsc")):
        pytest.skip("no runsc in PATH: tests/containers/install-runsc brings one")
    return _attacked("gvisor", lambda state: GvisorProvider(state / "gvisor"), tmp_path_factory)


def _attacked(name: str, opened: Callable[[Path], Provider], places: pytest.TempPathFactory) -> Attacked:
    async def look() -> Capabilities:
        async with opened(places.mktemp("looked-at")) as provider:
            return provider.capabilities

    return Attacked(name=name, open=opened, capabilities=anyio.run(look))


@pytest.fixture
def takes_snapshots(attacked: Attacked) -> None:
    """Skip where nothing can be taken."""
    if not attacked.capabilities.supports(Verb.SNAPSHOT):
        pytest.skip(f"provider {attacked.name!r} does not declare {Verb.SNAPSHOT.value!r}")


@pytest.fixture
def root_inside(attacked: Attacked) -> None:
    """Skip where commands are an ordinary user's: they cannot do that to themselves."""
    if not attacked.capabilities.root_inside:
        pytest.skip(f"commands of provider {attacked.name!r} are an ordinary user's")


@pytest.fixture
def disk_limits(attacked: Attacked) -> None:
    """Skip where they can neither be enforced nor watched."""
    if attacked.name != "local" and "disk_bytes" not in attacked.capabilities.limits:
        pytest.skip(f"provider {attacked.name!r} declares no limit of the disk on this machine")


@pytest.fixture
def embedded(attacked: Attacked) -> None:
    """Skip where there is no embedded engine to look into."""
    if attacked.name != "local":
        pytest.skip("this looks into the files or processes of the embedded engine")


@pytest.fixture
async def provider(attacked: Attacked, state_directory: Path) -> AsyncIterator[Provider]:
    """The opened provider."""
    async with attacked.open(state_directory) as provider:
        yield provider


@pytest.fixture
async def sandbox(provider: Provider) -> AsyncIterator[Sandbox]:
    """A new sandbox, destroyed at the end."""
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        yield sandbox
    await provider.destroy(spec.id)


@pytest.fixture
def host() -> Iterator[Host]:
    """Secrets in the server's environment, and in files where everybody on the host may go."""
    directory = Path(tempfile.mkdtemp(prefix="attacked-"))
    directory.chmod(0o755)
    yield plant_host(directory)
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def home(state_directory: Path) -> Path:
    """The state directory of all servers; what every sandbox stands on is built in it once."""
    return state_directory / "home"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project, and with it a default sandbox that no other test has."""
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def start(attacked: Attacked, home: Path, host: Host, project: Path) -> Iterator[Callable[..., WireClient]]:
    """Start servers for one project, with the host's secrets in their environment; they end with the test."""
    environment = {**host.environment, **attacked.environment}
    first = ("serve", "--provider", attacked.name, *attacked.arguments, "--project", str(project))
    with starting(home, *first, environment=environment) as begin:
        yield begin


@pytest.fixture
def server(start: Callable[..., WireClient], home: Path) -> Iterator[WireClient]:
    """One server. Whatever was done to it, afterwards it serves, and its end leaves nothing behind."""
    before = mounts_of(home)
    client = start()
    yield client
    assert client.process.poll() is None, b"".join(client.errors).decode()
    assert not client.call("sandbox_create", name="afterwards").is_error
    began = time.monotonic()
    assert client.exec("echo alive", sandbox="afterwards").body.strip() == "alive"
    assert time.monotonic() - began < 10
    below = processes_below(client.process.pid)
    for sandbox in set(re.findall(r"sb_[a-z2-7]{26}", client.call("sandbox_list").text)):
        assert not client.call("sandbox_destroy", sandbox=sandbox).is_error
    client.close()
    assert wait_until_gone(below, 5) == {}
    assert mounts_of(home) == before
