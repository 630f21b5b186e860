"""What gVisor as a runtime of Docker does in its own way."""

from pathlib import Path

import pytest

from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.testing.driving import new_spec, put, read_file, run, sh
from tests.containers.engines import NOTHING, Dockerd
from tests.providers.docker_sandboxes import provider_on

__all__: list[str] = []


async def test_tmp_is_part_of_snapshots(dockerd: Dockerd, tmp_path: Path) -> None:
    """GVisor mounts a tmpfs on /tmp where that is empty; also in a container from the snapshot of an emptied one."""
    if "runsc" not in dockerd.runtimes:
        pytest.skip("no runsc here: tests/containers/install-runsc")
    async with provider_on(dockerd, tmp_path / "state", runtime="runsc") as provider:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            await sh(sandbox, "rm -rf /tmp/* /tmp/.[!.]*")
            empty = await sandbox.snapshot(SnapshotRequest())
            await sandbox.restore(empty)
            await put(sandbox, "/tmp/file", b"kept")
            full = await sandbox.snapshot(SnapshotRequest())
            await run(sandbox, "rm", "/tmp/file")
            await sandbox.restore(full)
            assert await read_file(sandbox, "/tmp/file") == b"kept"
            mounted = (await run(sandbox, "cat", "/proc/mounts")).stdout.decode()
            assert [line for line in mounted.splitlines() if line.split()[1] == "/tmp"] == []
        await provider.destroy(spec.id)
        for content in (empty, full):
            await provider.discard(content)


async def test_an_image_without_tmp_gets_one_for_everybody(dockerd: Dockerd, tmp_path: Path) -> None:
    if "runsc" not in dockerd.runtimes:
        pytest.skip("no runsc here: tests/containers/install-runsc")
    async with provider_on(dockerd, tmp_path / "state", runtime="runsc", image=NOTHING) as provider:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            await put(sandbox, "/tmp/file", b"data")
            assert await read_file(sandbox, "/tmp/file") == b"data"
        await provider.destroy(spec.id)
