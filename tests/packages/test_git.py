"""git, on repositories that others own."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import Workspace, WorkspaceMode
from mcp_sandbox.testing.driving import new_spec
from tests.packages.driving import need, said

__all__: list[str] = []

_REMOTE = """\
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q --bare /srv/remote.git
git init -q first; cd first; echo one > file; git add file; git commit -qm one; git push -q /srv/remote.git main
cd /workspace
"""


async def test_every_repository_is_trusted(host: Sandbox) -> None:
    await need(host, "git", "--version")
    assert await said(host, "git config --system --get-all safe.directory") == "*\n"


@pytest.mark.parametrize("remote", ["/srv/remote.git", "file:///srv/remote.git"])
async def test_a_remote_of_another_user_is_cloned_and_pushed_to(host: Sandbox, remote: str) -> None:
    await need(host, "git", "--version")
    script = (
        f"{_REMOTE} chown -R 1000:1000 /srv/remote.git; git clone -q {remote} clone; cd clone; cat file; "
        "echo two > file; git commit -qam two; git push -q; git -C /srv/remote.git log --format=%s main"
    )
    assert await said(host, script) == "one\ntwo\none\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of user 1000."""
    if shutil.which("git", path="/usr/bin") is None:
        pytest.skip("the host has no git in /usr")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "file").write_text("x")
    subprocess.run(["chown", "-R", "1000:1000", tmp_path], check=True)
    return tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a project to somebody else")
async def test_a_project_that_belongs_to_another_user_can_be_worked_on(provider: Provider, project: Path) -> None:
    workspace = Workspace(mode=WorkspaceMode.OVERLAY, source=str(project))
    spec = replace(new_spec(provider.capabilities), workspace=workspace)
    async with await provider.create(spec) as sandbox:
        assert await said(sandbox, "git status --short; echo y > file; git add file") == "?? file\n"
    await provider.destroy(spec.id)
