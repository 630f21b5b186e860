"""What is particular to the in-memory double: sharing by root, and the project as a workspace."""

from dataclasses import replace
from pathlib import Path

import pytest

from mcp_sandbox.core.errors import StateError
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.core.sandbox import SandboxState, Workspace, WorkspaceMode
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.providers.memory import MemoryProvider
from mcp_sandbox.testing.driving import entries, new_spec, put, read_file, run, status_of


async def test_two_provider_objects_with_one_root_see_the_same_sandboxes(tmp_path: Path) -> None:
    async with MemoryProvider(tmp_path) as first, MemoryProvider(tmp_path) as second:
        sandbox = await first.create(new_spec(first.capabilities))
        await put(sandbox, "/workspace/file", b"shared")
        content = await sandbox.snapshot(SnapshotRequest())
        other = await second.attach(sandbox.id)
        assert await read_file(other, "/workspace/file") == b"shared"
        copy = await second.restore(content, new_spec(second.capabilities))
        assert await read_file(copy, "/workspace/file") == b"shared"


async def test_roots_are_apart(tmp_path: Path) -> None:
    async with MemoryProvider(tmp_path / "a") as first, MemoryProvider(tmp_path / "b") as second:
        await first.create(new_spec(first.capabilities))
        assert await second.list() == []


async def test_sandboxes_stay_and_are_stopped_when_their_provider_closes(tmp_path: Path) -> None:
    async with MemoryProvider(tmp_path) as provider:
        sandbox = await provider.create(new_spec(provider.capabilities))
    async with MemoryProvider(tmp_path) as again:
        assert [(info.id, info.state) for info in await again.list()] == [(sandbox.id, SandboxState.STOPPED)]
        with pytest.raises(StateError):
            await run(sandbox, "true")


async def test_the_project_is_copied_into_the_workspace_and_stays_as_it_is(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "deep").mkdir(parents=True)
    (project / "deep" / "script").write_bytes(b"#!/bin/sh\n")
    (project / "deep" / "script").chmod(0o755)
    (project / "link").symlink_to("deep/script")
    async with MemoryProvider(tmp_path / "state") as provider:
        overlay = Workspace(mode=WorkspaceMode.OVERLAY, source=str(project))
        sandbox = await provider.create(replace(new_spec(provider.capabilities), workspace=overlay))
        assert set(await entries(sandbox, "/workspace", 9)) == {"deep", "deep/script", "link"}
        assert (await status_of(sandbox, "/workspace/deep/script")).mode == 0o755
        assert (await status_of(sandbox, "/workspace/link")).kind is FileKind.SYMLINK
        await put(sandbox, "/workspace/deep/script", b"changed")
    assert (project / "deep" / "script").read_bytes() == b"#!/bin/sh\n"


async def test_programs_can_be_copied_renamed_and_lose_their_right_to_run(tmp_path: Path) -> None:
    async with MemoryProvider(tmp_path) as provider:
        sandbox = await provider.create(new_spec(provider.capabilities))
        await put(sandbox, "/workspace/mine", await read_file(sandbox, "/bin/echo"), 0o755)
        assert (await run(sandbox, "./mine", "hello")).stdout == b"hello\n"
        await run(sandbox, "chmod", "644", "mine")
        assert (await run(sandbox, "./mine")).exit_code == 126


async def test_a_program_reports_what_it_could_not_do_on_standard_error(tmp_path: Path) -> None:
    async with MemoryProvider(tmp_path) as provider:
        sandbox = await provider.create(new_spec(provider.capabilities))
        outcome = await run(sandbox, "cat", "missing")
        assert outcome.exit_code == 1
        assert b"No such file or directory" in outcome.stderr
