"""The embedded engine, and servers on it, for whoever attacks them."""

import atexit
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.guest.binary import guest_binary
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.testing.driving import new_spec
from tests.attacks.world import Host, plant_host
from tests.interaction.wire_client import WireClient, processes_below, starting, wait_until_gone

if sys.platform != "linux":
    collect_ignore_glob = ["*"]


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


@pytest.fixture
async def provider(state_directory: Path) -> AsyncIterator[Provider]:
    """An opened provider `local`."""
    async with LocalProvider(state_directory) as provider:
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
def start(home: Path, host: Host, project: Path) -> Iterator[Callable[..., WireClient]]:
    """Start servers for one project, with the host's secrets in their environment; they end with the test."""
    with starting(home, "serve", "--project", str(project), environment=host.environment) as begin:
        yield begin


@pytest.fixture
def server(start: Callable[..., WireClient]) -> Iterator[WireClient]:
    """One server. Whatever was done to it, afterwards it serves, and its end leaves nothing behind."""
    mounts = Path("/proc/self/mountinfo").read_bytes()
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
    assert Path("/proc/self/mountinfo").read_bytes() == mounts
