"""What nearly every test of package managers does."""

import pytest

from mcp_sandbox.core.files import UploadRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.streams import BytesStream
from mcp_sandbox.testing.driving import run, sh
from tests.packages.mirrors import tar_of_files

__all__ = ["bring", "need", "said"]

_PATIENCE_S = 50.0


async def said(sandbox: Sandbox, script: str, *arguments: str) -> str:
    """Return what a shell script that works says."""
    outcome = await sh(sandbox, f"set -e; {script}", *arguments, timeout_s=_PATIENCE_S)
    assert outcome.exit_code == 0, (outcome.stdout + outcome.stderr).decode("utf-8", "replace")
    return outcome.stdout.decode()


async def bring(sandbox: Sandbox, files: dict[str, bytes]) -> None:
    """Put files into the workspace."""
    await sandbox.upload(UploadRequest(path="/workspace"), BytesStream(tar_of_files(files)))


async def need(sandbox: Sandbox, *command: str) -> None:
    """Skip where the host has no such program in a place that sandboxes see."""
    outcome = await run(sandbox, *command)
    if outcome.exit_code != 0:
        pytest.skip(f"{' '.join(command)}: the host has none in /usr")
