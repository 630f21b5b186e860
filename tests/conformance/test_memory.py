"""The contract, run against the in-memory double."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mcp_sandbox.core.provider import Provider
from mcp_sandbox.providers.memory import MemoryProvider
from mcp_sandbox.testing.kit import ProviderContract

__all__ = ["TestMemory"]


class TestMemory(ProviderContract):
    """It runs no programs, so whatever needs a shell is skipped."""

    @pytest.fixture
    async def provider(self, tmp_path: Path) -> AsyncIterator[Provider]:
        """A provider with a state directory of its own."""
        async with MemoryProvider(tmp_path) as provider:
            yield provider
