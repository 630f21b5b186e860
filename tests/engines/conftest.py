"""Every carrier under the same tests."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from docker_guest import DockerGuest
from guest_world import Guest, NamespacedGuest, namespaces_work

from mcp_sandbox.engines.carrier import GuestCarrier
from tests.containers.engines import Dockerd

__all__: list[str] = []

CARRIERS = ("local", "stream", "stdio", "docker")


@pytest.fixture(scope="session")
def docker_guest(dockerd: Dockerd) -> Iterator[DockerGuest]:
    """A container that every test shares, each one with its own connection."""
    with DockerGuest(dockerd, dockerd.base, grace_ms=600_000) as guest:
        yield guest


@pytest.fixture(params=CARRIERS)
def guest(request: pytest.FixtureRequest) -> Iterator[Guest]:
    """An agent behind each carrier."""
    if request.param == "docker":
        yield request.getfixturevalue("docker_guest")
        return
    if reason := namespaces_work():
        pytest.skip(reason)
    with NamespacedGuest(request.param) as namespaced:
        yield namespaced


@pytest.fixture
async def carrier(guest: Guest) -> AsyncIterator[GuestCarrier]:
    """One connection."""
    connection = await guest.connect()
    yield connection
    await connection.aclose()


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system with project quotas, or a skip that says what is missing."""
    if shutil.which("mkfs.ext4") is None or shutil.which("mount") is None:
        pytest.skip("there is no mkfs.ext4 here")
    image, point = tmp_path / "image", tmp_path / "point"
    with image.open("wb") as file:
        file.truncate(1 << 30)
    point.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-O", "quota,project", image], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop,prjquota", image, point], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system with project quotas can be mounted here: {mounted.stderr.strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)
