"""Sandboxes of the embedded engine that start from an image."""

import os
import sys
import tarfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_sandbox.core.differences import DiffRequest, LiveState
from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, StateError, UnsupportedError
from mcp_sandbox.core.image import ImageRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import Workspace, WorkspaceMode
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.engines.image_store import look_of
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.testing.driving import new_spec, put, read_file, run, sh
from tests.images.small_root import compile_static, docker_archive, small_root, tar_of

__all__: list[str] = []

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_root(tmp_path_factory.mktemp("small"))


@pytest.fixture
async def provider(state_directory: Path) -> AsyncIterator[Provider]:
    async with LocalProvider(state_directory) as provider:
        yield provider
        for image in await provider.images():
            await provider.remove_image(image.name)


@pytest.fixture
async def sandbox(provider: Provider, root: Path) -> AsyncIterator[Sandbox]:
    """A sandbox that starts from a directory."""
    await provider.add_image(ImageRequest(name="small", source=str(root)))
    async with await _create(provider, "small") as sandbox:
        yield sandbox
    await provider.destroy(sandbox.id)


async def _create(provider: Provider, image: str, workspace: Workspace | None = None) -> Sandbox:
    spec = replace(new_spec(provider.capabilities), image=image)
    return await provider.create(spec if workspace is None else replace(spec, workspace=workspace))


async def _said(sandbox: Sandbox, command: str) -> str:
    outcome = await sh(sandbox, command)
    assert outcome.exit_code == 0, outcome.stderr.decode()
    return outcome.stdout.decode()


async def test_a_sandbox_has_the_programs_and_files_of_its_image_and_nothing_of_the_host(
    sandbox: Sandbox, root: Path
) -> None:
    assert await _said(sandbox, "cat /etc/os-release") == "ID=small\n"
    programs = set((await _said(sandbox, "ls /usr/bin")).split())
    assert programs == {"cat", "chown", "env", "id", "ls", "mkdir", "rm", "sh", "stat", "touch"}
    assert (await run(sandbox, "python3", "-V")).exit_code == 127
    ours = {"dev", "proc", "sys", "run", "tmp", "root", "var", "workspace"}
    assert set((await _said(sandbox, "ls -A /")).split()) == ours | set(os.listdir(root))


async def test_what_every_sandbox_needs_is_there_whatever_the_image_brings(sandbox: Sandbox) -> None:
    assert (await _said(sandbox, "cat /etc/passwd")).splitlines()[0] == "root:x:0:0:root:/root:/bin/sh"
    assert "root:x:0:" in await _said(sandbox, "cat /etc/group")
    assert "127.0.0.1 localhost" in await _said(sandbox, "cat /etc/hosts")
    assert await _said(sandbox, "cat /etc/resolv.conf") == ""
    assert "directory = *" in await _said(sandbox, "cat /etc/gitconfig")
    assert await _said(sandbox, "stat -c '%a %U' /tmp /var/tmp /root /workspace") == (
        "1777 root\n1777 root\n700 root\n755 root\n"
    )
    assert await _said(sandbox, 'touch "$HOME/file" /workspace/file /tmp/file /usr/bin/new && echo $HOME') == "/root\n"
    assert await _said(sandbox, "id -u; cat /proc/self/comm; echo > /dev/null") == "0\ncat\n"


@pytest.mark.parametrize("compression", ["", "gz", "xz"])
async def test_a_tar_archive_is_an_image_too(provider: Provider, root: Path, tmp_path: Path, compression: str) -> None:
    archive = tar_of(root, tmp_path / "root.tar", compression)
    await provider.add_image(ImageRequest(name="packed", source=str(archive)))
    async with await _create(provider, "packed") as sandbox:
        assert await _said(sandbox, "cat /etc/os-release") == "ID=small\n"
    await provider.destroy(sandbox.id)


async def test_what_docker_save_wrote_brings_its_variables_along(
    provider: Provider, root: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "saved.tar"
    archive.write_bytes(docker_archive(tar_of(root, tmp_path / "layer.tar").read_bytes()))
    await provider.add_image(ImageRequest(name="saved", source=str(archive)))
    async with await _create(provider, "saved") as sandbox:
        assert await _said(sandbox, "echo $GREETING $HOME") == "hello /root\n"
        snapshot = await sandbox.snapshot(SnapshotRequest())
    again = await provider.restore(snapshot, new_spec(provider.capabilities))
    assert await _said(again, "echo $GREETING") == "hello\n"
    await again.aclose()
    await provider.discard(snapshot)
    for gone in (sandbox, again):
        await provider.destroy(gone.id)


async def test_a_program_runs_where_there_is_nothing_else(provider: Provider, tmp_path: Path) -> None:
    top = tmp_path / "bare"
    top.mkdir()
    compile_static(top / "greet")
    await provider.add_image(ImageRequest(name="bare", source=str(top)))
    async with await _create(provider, "bare") as sandbox:
        outcome = await run(sandbox, "/greet", env={"GREETING": "good day"})
        assert (outcome.stdout, outcome.exit_code) == (b"good day\n", 7)
        assert (await run(sandbox, "sh", "-c", "true")).exit_code == 127
        await put(sandbox, "/workspace/file", b"files work without any program")
        assert await read_file(sandbox, "/workspace/file") == b"files work without any program"
    await provider.destroy(sandbox.id)


async def test_an_image_is_shared_and_never_changed_by_its_sandboxes(provider: Provider, sandbox: Sandbox) -> None:
    await _said(sandbox, "rm /etc/os-release; echo changed > /usr/bin/id; chown 33:33 /usr/bin/cat || true")
    async with await _create(provider, "small") as second:
        assert await _said(second, "cat /etc/os-release; id -u") == "ID=small\n0\n"
    await provider.destroy(second.id)


async def test_snapshots_forks_and_restores_outlive_the_name_of_the_image(
    provider: Provider, sandbox: Sandbox, state_directory: Path
) -> None:
    await _said(sandbox, "echo one > /root/file")
    snapshot = await sandbox.snapshot(SnapshotRequest())
    await _said(sandbox, "echo two > /root/file; rm /etc/os-release")
    await provider.remove_image("small")
    with pytest.raises(InvalidRequestError, match="No image 'small'"):
        await _create(provider, "small")
    await sandbox.restore(snapshot)
    assert await _said(sandbox, "cat /root/file /etc/os-release") == "one\nID=small\n"
    (fork,) = (await sandbox.fork([new_spec(provider.capabilities)])).sandboxes
    restored = await provider.restore(snapshot, new_spec(provider.capabilities))
    for one in (fork, restored):
        assert await _said(one, "cat /root/file /etc/os-release") == "one\nID=small\n"
        await one.aclose()
        await provider.destroy(one.id)
    await provider.discard(snapshot)


async def test_the_project_lies_in_the_workspace(provider: Provider, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("print()")
    async with await _create(provider, "small", Workspace(mode=WorkspaceMode.OVERLAY, source=str(tmp_path))) as second:
        assert await _said(second, "ls; touch made; ls /workspace") == "code.py\ncode.py\nmade\n"
    assert os.listdir(tmp_path) == ["code.py"]
    await provider.destroy(second.id)


async def test_a_name_means_what_it_was_given_last(provider: Provider, sandbox: Sandbox, tmp_path: Path) -> None:
    other = small_root(tmp_path / "other")
    (other / "etc" / "os-release").write_text("ID=other\n")
    await provider.add_image(ImageRequest(name="small", source=str(other)))
    async with await _create(provider, "small") as second:
        assert await _said(second, "cat /etc/os-release") == "ID=other\n"
    assert await _said(sandbox, "cat /etc/os-release") == "ID=small\n"
    assert [image.name for image in await provider.images()] == ["small"]
    await provider.destroy(second.id)


async def test_an_unchanged_source_is_not_copied_again_and_a_changed_one_is(
    provider: Provider, sandbox: Sandbox, root: Path, tmp_path: Path
) -> None:
    first = small_root(tmp_path / "first")
    contents = [(await provider.add_image(ImageRequest(name="first", source=str(first)))).content for _ in range(2)]
    (first / "etc" / "new").write_text("x")
    contents.append((await provider.add_image(ImageRequest(name="first", source=str(first)))).content)
    assert contents[0] == contents[1] != contents[2]


async def test_an_image_of_no_name_and_a_name_that_is_none_are_refused(provider: Provider, root: Path) -> None:
    with pytest.raises(NotFoundError):
        await provider.remove_image("never-added")
    for name in ("", "a/b", "../x", ".hidden", "-x", "x" * 201, "a\nb"):
        with pytest.raises(InvalidRequestError):
            await provider.add_image(ImageRequest(name=name, source=str(root)))
        with pytest.raises(InvalidRequestError):
            await _create(provider, name or "/")
    assert await provider.images() == []


async def test_nothing_is_no_image(provider: Provider, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    for source in ("empty", "empty.tar"):
        with pytest.raises(InvalidRequestError, match="there is nothing in it"):
            await provider.add_image(ImageRequest(name="empty", source=str(tmp_path / source)))
    assert await provider.images() == []


async def test_a_path_of_the_host_is_no_name_of_an_image(provider: Provider, root: Path) -> None:
    with pytest.raises(InvalidRequestError):
        await _create(provider, str(root))


async def test_attaching_again_finds_the_same_system(provider: Provider, sandbox: Sandbox) -> None:
    await sandbox.aclose()
    async with await provider.attach(sandbox.id) as again:
        assert await _said(again, "cat /etc/os-release") == "ID=small\n"


async def test_a_link_planted_at_a_place_of_ours_leads_nowhere_after_a_restore(
    provider: Provider, sandbox: Sandbox, tmp_path: Path
) -> None:
    top = small_root(tmp_path / "planted")
    for name in ("proc", "dev", "workspace", "tmp"):
        (top / name).symlink_to(tmp_path)
    await provider.add_image(ImageRequest(name="planted", source=str(top)))
    async with await _create(provider, "planted") as second:
        assert await _said(second, "echo x > /workspace/f; echo y > /tmp/f; cat /workspace/f; ls -d /proc/1") == (
            "x\n/proc/1\n"
        )
    assert os.listdir(tmp_path) == ["planted"]
    await provider.destroy(second.id)


async def test_a_diff_names_what_changed_in_the_image(provider: Provider, sandbox: Sandbox) -> None:
    snapshot = await sandbox.snapshot(SnapshotRequest())
    await _said(sandbox, "rm /etc/os-release; echo x > /usr/bin/new; echo y >> /etc/passwd")
    found = await provider.diff(DiffRequest(before=snapshot, after=LiveState(sandbox=sandbox.id)))
    assert [change.path for change in found.changes] == ["/etc/os-release", "/etc/passwd", "/usr/bin/new"]
    async with await provider.create(new_spec(provider.capabilities)) as other:
        with pytest.raises(UnsupportedError, match="started alike"):
            await provider.diff(DiffRequest(before=snapshot, after=LiveState(sandbox=other.id)))
    await provider.destroy(other.id)
    await provider.discard(snapshot)


async def test_a_record_that_cannot_be_read_is_named_and_can_be_removed(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as local:
        (tmp_path / "images").mkdir()
        (tmp_path / "images" / "broken.json").write_text("{")
        with pytest.raises(StateError, match="mcp-sandbox image rm broken"):
            await local.images()
        await local.remove_image("broken")
        assert await local.images() == []


def test_who_owns_a_file_and_a_time_that_was_set_back_are_changes_of_a_source(tmp_path: Path) -> None:
    """`--image PATH` imports only what changed since: by the time of the last change, which nobody can set."""
    file = tmp_path / "file"
    file.write_text("old")
    before, times = look_of(tmp_path), file.stat()
    assert look_of(tmp_path) == before
    file.write_text("new")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert look_of(tmp_path) != before
