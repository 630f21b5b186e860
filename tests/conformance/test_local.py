"""The contract, run against the embedded engine, as whoever runs the tests."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mcp_sandbox.core.provider import Provider
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.testing.kit import ProviderContract

__all__ = ["TestLocal"]


@pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")
class TestLocal(ProviderContract):
    """Fails, and is not skipped, where the engine does not work: `mcp-sandbox doctor` explains why."""

    @pytest.fixture
    async def provider(self, state_directory: Path) -> AsyncIterator[Provider]:
        """A provider on the state directory of this run."""
        async with LocalProvider(state_directory) as provider:
            yield provider

    @pytest.fixture
    def host_paths(self, state_directory: Path) -> tuple[str, ...]:
        """The engine's state must not be visible."""
        return (str(state_directory),)
