"""Sandboxes to install packages in: on the host's programs, and on a Debian image that is built once per run."""

import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.errors import ProviderError
from mcp_sandbox.core.image import ImageRequest, Recipe
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.testing.driving import new_spec

if sys.platform != "linux":
    collect_ignore_glob = ["*"]

__all__: list[str] = []

_BUILD_S = 240.0
_unbuilt: list[str] = []
"""Why there is no Debian image in this run."""


@pytest.fixture
async def provider(state_directory: Path) -> AsyncIterator[Provider]:
    """An opened provider `local`."""
    async with LocalProvider(state_directory) as provider:
        yield provider


@pytest.fixture
async def host(provider: Provider) -> AsyncIterator[Sandbox]:
    """A sandbox that runs the host's programs."""
    async with await provider.create(new_spec(provider.capabilities)) as sandbox:
        yield sandbox
    await provider.destroy(sandbox.id)


@pytest.fixture
async def debian(provider: Provider) -> AsyncIterator[Sandbox]:
    """A sandbox that starts from Debian's smallest system; needs the registry of its packages."""
    if os.geteuid() != 0:
        pytest.skip("built once per run, as root; tests/images has images for ordinary users")
    if shutil.which("debootstrap", path="/usr/sbin:/usr/bin:/sbin:/bin") is None:
        pytest.skip("this machine has no debootstrap")
    if _unbuilt:
        pytest.skip(_unbuilt[0])
    try:
        with anyio.fail_after(_BUILD_S):
            recipe = Recipe(distribution="debian", suite="bookworm")
            await provider.add_image(ImageRequest(name="debian:bookworm", recipe=recipe))
    except (ProviderError, TimeoutError) as error:
        if isinstance(error, ProviderError) and "debootstrap said" not in str(error):
            raise
        _unbuilt.append(f"Debian's packages are out of reach: {error}")
        pytest.skip(_unbuilt[0])
    async with await provider.create(replace(new_spec(provider.capabilities), image="debian:bookworm")) as sandbox:
        yield sandbox
    await provider.destroy(sandbox.id)
