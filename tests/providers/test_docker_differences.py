"""What `diff` of containers needs besides the contract: nothing stays behind, and what cannot be told is said."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_sandbox.core.differences import DiffRequest, LiveState, StartState
from mcp_sandbox.core.errors import UnsupportedError
from mcp_sandbox.core.sandbox import Workspace, WorkspaceMode
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.testing.driving import new_spec, put, sh
from tests.containers.engines import Dockerd
from tests.providers.docker_sandboxes import provider_on

__all__: list[str] = []


@pytest.fixture
async def provider(dockerd: Dockerd, tmp_path: Path) -> AsyncIterator[DockerProvider]:
    """A provider on an engine of our own."""
    async with provider_on(dockerd, tmp_path / "state") as provider:
        yield provider
        for info in await provider.list():
            await provider.destroy(info.id)


def _command(dockerd: Dockerd, project: Path, *arguments: str) -> str:
    environ = {"PATH": os.environ["PATH"], "HOME": str(project.parent), "DOCKER_HOST": dockerd.host}
    command = [sys.executable, "-m", "mcp_sandbox", *arguments]
    if "PYTHONPATH" in os.environ:
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_diff_of_a_container_can_be_applied_to_the_project(dockerd: Dockerd, tmp_path: Path) -> None:
    """By the command line, as a user does it; the host's later change of another file is not undone by it."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "changed").write_text("one\ntwo\n")
    (project / "gone").write_text("gone\n")
    (project / "kept").write_text("kept\n")
    script = "sed -i s/two/three/ changed; rm gone; echo fresh > made; ln -s made link"
    _command(dockerd, project, "exec", "--provider", "docker", "--image", dockerd.base, "--", "sh", "-c", script)
    (project / "kept").write_text("by the host\n")
    shown = _command(dockerd, project, "diff", "--stat").splitlines()
    expected = ["M /workspace/changed", "D /workspace/gone", "A /workspace/link", "A /workspace/made"]
    assert [line.split("  ")[0] for line in shown[:-1]] == expected
    subprocess.run(["git", "apply"], input=_command(dockerd, project, "diff"), cwd=project, text=True, check=True)
    found = {path.name: path.read_text() for path in project.iterdir()}
    assert found == {"changed": "one\nthree\n", "kept": "by the host\n", "made": "fresh\n", "link": "fresh\n"}
    _command(dockerd, project, "rm", "--own")


async def test_nothing_is_left_of_what_was_started_to_look(provider: DockerProvider, dockerd: Dockerd) -> None:
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        then = await sandbox.snapshot(SnapshotRequest())
        await put(sandbox, "/workspace/file", b"now")
        for before in (then, StartState(sandbox=spec.id)):
            found = await provider.diff(DiffRequest(before=before, after=LiveState(sandbox=spec.id)))
            assert [change.path for change in found.changes] == ["/workspace/file"]
        assert [info.id for info in await provider.list()] == [spec.id]
        made_for = dockerd.run("ps", "--all", "--format", '{{.Label "mcp-sandbox.sandbox"}}').split()
        assert not [name for name in made_for if name.startswith("looking-")]
    await provider.discard(then)


async def test_what_the_user_inside_may_not_read_is_said_and_not_called_gone(provider: DockerProvider) -> None:
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        await sh(sandbox, "mkdir closed; echo x > closed/in; echo x > private; echo x > open")
        then = await sandbox.snapshot(SnapshotRequest())
        await sh(sandbox, "chmod 0 closed private; echo y > open")
        request = DiffRequest(before=then, after=LiveState(sandbox=spec.id), paths=("/workspace",))
        found = await provider.diff(request)
        assert [change.path for change in found.changes] == ["/workspace/closed", "/workspace/open"]
        assert found.unseen == ("/workspace/closed", "/workspace/private")
    await provider.discard(then)


async def test_a_file_with_the_size_and_the_time_of_the_old_one_is_still_another(provider: DockerProvider) -> None:
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        await sh(sandbox, "echo then > file; touch -d @1000000000 file")
        then = await sandbox.snapshot(SnapshotRequest())
        await sh(sandbox, "echo more > file; touch -d @1000000000 file")
        found = await provider.diff(DiffRequest(before=then, after=LiveState(sandbox=spec.id)))
        assert [change.path for change in found.changes] == ["/workspace/file"]
    await provider.discard(then)


async def test_a_mounted_project_is_not_compared_with_what_it_was(provider: DockerProvider, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    os.chown(project, 1234, 1234)
    workspace = Workspace(mode=WorkspaceMode.MOUNT, source=str(project))
    spec = replace(new_spec(provider.capabilities), workspace=workspace)
    async with await provider.create(spec):
        states = (StartState(sandbox=spec.id), LiveState(sandbox=spec.id))
        with pytest.raises(UnsupportedError, match="host's own"):
            await provider.diff(DiffRequest(before=states[0], after=states[1]))
