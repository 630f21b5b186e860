"""Every carrier under the same tests."""

from collections.abc import AsyncIterator, Iterator

import pytest
from docker_world import DockerGuest, DockerWorld, docker_works
from guest_world import Guest, NamespacedGuest, namespaces_work

from mcp_sandbox.engines.carrier import GuestCarrier

__all__: list[str] = []

CARRIERS = ("local", "stream", "stdio", "docker")


@pytest.fixture(scope="session")
def docker_world() -> Iterator[DockerWorld]:
    """A docker daemon of our own, with an image of a few programs and one of nothing."""
    if reason := docker_works():
        pytest.skip(reason)
    with DockerWorld() as world:
        yield world


@pytest.fixture(scope="session")
def docker_guest(docker_world: DockerWorld) -> Iterator[DockerGuest]:
    """A container that every test shares, each one with its own connection."""
    with DockerGuest(docker_world, docker_world.programs, grace_ms=600_000) as guest:
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
