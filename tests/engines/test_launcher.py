"""What the zygote of the embedded engine takes along from the server."""

import os
from pathlib import Path

import pytest
from guest_world import namespaces_work

from mcp_sandbox.engines.identity import choose_identity
from mcp_sandbox.engines.launcher import Launcher

__all__: list[str] = []


@pytest.mark.skipif(bool(namespaces_work()), reason=namespaces_work())
async def test_b111_the_zygote_holds_none_of_the_servers_standard_streams(tmp_path: Path) -> None:
    """A server's standard streams carry the protocol: whoever holds them keeps the client waiting."""
    before = set(_children())
    async with Launcher(tmp_path, choose_identity()):
        (zygote,) = set(_children()) - before
        held = [os.readlink(f"/proc/{zygote}/fd/{number}") for number in range(3)]
    assert held == [os.devnull] * 3


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
