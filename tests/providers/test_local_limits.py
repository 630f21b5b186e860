"""Limits that every command of the embedded engine has, whatever was asked for."""

import sys
from pathlib import Path

import pytest

from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.testing.driving import drain

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")


async def test_a_crash_inside_starts_no_program_of_the_host(tmp_path: Path) -> None:
    """core(5): a `core_pattern` that names a program runs it as the host's root unless the limit is exactly 1."""
    async with LocalProvider(tmp_path) as provider:
        sandbox = await provider.create(SandboxSpec(id=new_sandbox_id()))
        request = ExecRequest(argv=("grep", "Max core file size", "/proc/self/limits"), cwd="/")
        async with await sandbox.exec(request) as execution:
            said = (await drain(execution)).stdout
        assert said.split()[4:6] == [b"1", b"1"]
        await provider.destroy(sandbox.id)
