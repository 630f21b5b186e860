"""Snapshots between `local` and `docker`, as one file, in both directions."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sandbox_world import Server, World

from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.service.exporting import export_snapshot, import_snapshot
from mcp_sandbox.store.manifest import Tree
from mcp_sandbox.store.portable import Archive
from mcp_sandbox.testing.driving import sh
from tests.containers.engines import Dockerd

__all__: list[str] = []

TREE = """
set -e
mkdir -p deep/er; echo one > deep/er/file; chmod 640 deep/er/file
ln deep/er/file another-name; ln -s /usr/bin/python3 absolute; ln -s ../../../etc/passwd upwards
mkfifo -m 600 fifo; touch empty; printf 'odd' > "$(printf 'not UTF-8 \\205\nname')"
truncate -s 5M sparse; printf end >> sparse
head -c 3000000 /dev/zero | tr '\\0' 'x' > large
mkdir -m 1777 sticky; echo state > "$HOME/.profile"
find . "$HOME" -depth -exec touch -h -d '2001-02-03 04:05:06.123456789' {} +
python3 -m venv --without-pip venv
"""


def _trees(file: Path) -> Sequence[Tree]:
    """Return what a snapshot's file holds, but whose it is: a container has one user."""
    with file.open("rb") as opened:
        trees = Archive(opened).manifest.trees
    return [
        Tree(root=tree.root, entries=tuple(replace(entry, uid=0, gid=0) for entry in tree.entries)) for tree in trees
    ]


async def _kept(server: Server, sandbox: Sandbox, file: Path) -> None:
    """Export a snapshot of a sandbox as it is now."""
    snapshot = (await server.snapshots.create(handle=sandbox.id)).snapshot
    await export_snapshot(server.sandboxes, snapshot.id, file)
    await server.snapshots.delete(snapshot.id)


@pytest.mark.timeout(180)
async def test_a_workspace_survives_local_docker_local_to_the_last_byte(dockerd: Dockerd, tmp_path: Path) -> None:
    """Links, modes, times to the nanosecond, holes as zeros, a virtual environment; its programs run on both."""
    world = World.make(tmp_path, "local")

    def on_our_engine(provider: Provider) -> Provider:
        if provider.name != "docker":
            return provider
        environ = {"DOCKER_HOST": dockerd.host, "HOME": str(tmp_path)}
        return DockerProvider(tmp_path / "containers", image=dockerd.base, environ=environ)

    world.wrap = on_our_engine
    first, second, third = (tmp_path / f"{number}.snapshot" for number in range(3))
    async with world.server() as server:
        source = (await server.sandboxes.open()).sandbox
        made = await sh(source, TREE)
        assert made.exit_code == 0, made.stderr
        await _kept(server, source, first)
        for provider, before, after in (("docker", first, second), ("local", second, third)):
            imported = (await import_snapshot(server.sandboxes, before)).snapshot
            (live,) = await server.sandboxes.create(provider=provider, from_snapshot=imported.id)
            shown = await sh(live.sandbox, "venv/bin/python -c 'import sys; print(sys.prefix)'; cat \"$HOME/.profile\"")
            assert shown.stdout == b"/workspace/venv\nstate\n", shown.stderr
            await _kept(server, live.sandbox, after)
            assert _trees(after) == _trees(first)
        for summary in await server.sandboxes.list():
            await server.sandboxes.destroy(summary.record.id)
