"""Every carrier under the same tests."""

from collections.abc import AsyncIterator, Iterator

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
