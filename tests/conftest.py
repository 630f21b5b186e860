"""What every test runs under."""

import pytest

__all__: list[str] = []


@pytest.fixture
def anyio_backend() -> str:
    """Asyncio is the one event loop this package supports."""
    return "asyncio"
