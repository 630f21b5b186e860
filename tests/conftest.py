"""What every test runs under: asyncio, and a loop in which nothing may wait."""

from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster

__all__: list[str] = []


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
