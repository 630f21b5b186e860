"""A project as the workspace: it is all there, and the host's files stay as they are whatever happens inside."""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.differences import Action, DiffRequest, LiveState, StartState
from mcp_sandbox.core.errors import UnsupportedError
from mcp_sandbox.core.files import FileInfo, FileKind, RemoveRequest, RenameRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec, Workspace, WorkspaceMode
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.testing.contract import Canary, Contract
from mcp_sandbox.testing.driving import entries, new_spec, put, read_file, run, sh, status_of

__all__ = ["WorkspaceContract"]

Described = dict[str, tuple[int, int, bytes]]


def _describe(project: Path) -> Described:
    """Return mode, time and content of everything in a directory of the host."""
    found: Described = {}
    for path in sorted(project.rglob("*")):
        status = path.lstat()
        content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(project))] = (status.st_mode, status.st_mtime_ns, content)
    return found


def _plain(found: dict[str, FileInfo]) -> dict[str, FileInfo]:
    """Leave out how many links a directory has: only some file systems count its subdirectories."""
    return {
        name: replace(entry, links=1) if entry.kind is FileKind.DIRECTORY else entry for name, entry in found.items()
    }


class WorkspaceContract(Contract):
    """`WorkspaceMode.OVERLAY`; a provider that cannot do it refuses, and is skipped here."""

    @pytest.fixture
    def project(self, tmp_path: Path, canary: Canary) -> Path:
        """A project on the host, with a link that leads out of it."""
        project = tmp_path / "project"
        (project / "src" / "deep").mkdir(parents=True)
        (project / "README").write_bytes(b"read me\r\n")
        (project / "src" / "run").write_bytes(b"#!/bin/sh\necho ran\n")
        (project / "src" / "run").chmod(0o755)
        (project / "src" / "deep" / "private").write_bytes(b"\0\xff")
        (project / "src" / "deep" / "private").chmod(0o600)
        (project / "link").symlink_to("src/run")
        (project / "out").symlink_to(canary.file)
        os.utime(project / "README", ns=(981_173_106_123_456_789, 981_173_106_123_456_789))
        return project

    @pytest.fixture
    def spec(self, provider: Provider, project: Path) -> SandboxSpec:
        """A spec that asks for the project as the workspace."""
        workspace = Workspace(mode=WorkspaceMode.OVERLAY, source=str(project.resolve()))
        return replace(new_spec(provider.capabilities), workspace=workspace)

    @pytest.fixture
    async def working(self, provider: Provider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """A sandbox that works on the project."""
        try:
            sandbox = await provider.create(spec)
        except UnsupportedError as error:
            pytest.skip(f"the provider refuses a project as the workspace: {error}")
        async with sandbox:
            yield sandbox
        await provider.destroy(spec.id)

    async def test_the_project_is_there_with_modes_times_and_links(self, working: Sandbox) -> None:
        found = await entries(working, "/workspace", 9)
        assert set(found) == {"README", "src", "src/run", "src/deep", "src/deep/private", "link", "out"}
        assert await read_file(working, "/workspace/README") == b"read me\r\n"
        assert found["README"].modified_ns == 981_173_106_123_456_789
        assert (found["src/run"].mode, found["src/deep/private"].mode) == (0o755, 0o600)
        assert (found["link"].kind, found["link"].link_target) == (FileKind.SYMLINK, "src/run")

    async def test_b057_the_project_belongs_to_whoever_runs_commands(self, working: Sandbox) -> None:
        """B-057, B-059, B-061, B-065: everything in it can be read and changed, also what is private on the host."""
        await run(working, "touch", "/workspace/new")
        own = await status_of(working, "/workspace/new")
        for name, entry in (await entries(working, "/workspace", 9)).items():
            assert (entry.uid, entry.gid) == (own.uid, own.gid), name
        assert (await run(working, "cat", "src/deep/private")).stdout == b"\0\xff"
        await put(working, "/workspace/src/deep/private", b"changed")
        assert (await status_of(working, "/workspace/src/deep/private")).mode == 0o600

    async def test_nothing_that_happens_inside_changes_the_host(
        self, working: Sandbox, project: Path, canary: Canary
    ) -> None:
        before = _describe(project)
        await put(working, "/workspace/README", b"overwritten")
        await put(working, "/workspace/src/new", b"new")
        await run(working, "chmod", "000", "/workspace/src/run")
        await run(working, "tee", "-a", "/workspace/src/deep/private", stdin=b"more")
        await working.remove(RemoveRequest(path="/workspace/link"))
        await working.rename(RenameRequest(source="/workspace/src/deep", target="/workspace/moved"))
        if working.capabilities.runs_programs:
            await sh(
                working,
                "mv src elsewhere; rm -rf moved; mkdir src; echo x > src/run; echo x > out; ln elsewhere/new hard",
            )
        assert _describe(project) == before
        assert canary.file.read_text() == canary.token

    async def test_a_link_of_the_project_that_leads_out_leads_nowhere(self, working: Sandbox, canary: Canary) -> None:
        with pytest.raises(FileNotFoundError):
            await status_of(working, "/workspace/out", follow=True)
        assert canary.token.encode() not in (await run(working, "cat", "/workspace/out")).stdout

    async def test_a_directory_of_the_project_is_renamed_with_all_that_is_in_it(self, working: Sandbox) -> None:
        """By a verb and by `mv`, though the kernel cannot always rename what lies in a lower layer."""
        await working.rename(RenameRequest(source="/workspace/src", target="/workspace/renamed"))
        found = await entries(working, "/workspace", 9)
        assert {"renamed/run", "renamed/deep", "renamed/deep/private"} <= set(found)
        assert "src" not in found
        assert (found["renamed/run"].mode, found["renamed/deep/private"].mode) == (0o755, 0o600)
        assert await read_file(working, "/workspace/renamed/deep/private") == b"\0\xff"
        if working.capabilities.runs_programs:
            moved = await sh(working, "mv renamed again && again/run")
            assert (moved.exit_code, moved.stdout) == (0, b"ran\n")

    async def test_a_second_sandbox_of_the_project_starts_from_the_host_again(
        self, provider: Provider, spec: SandboxSpec, working: Sandbox
    ) -> None:
        await put(working, "/workspace/README", b"changed")
        second = replace(spec, id=new_spec(provider.capabilities).id)
        async with await provider.create(second) as other:
            assert await read_file(other, "/workspace/README") == b"read me\r\n"
        await provider.destroy(second.id)

    async def test_changes_stay_after_attaching_again(self, provider: Provider, working: Sandbox) -> None:
        await put(working, "/workspace/README", b"changed")
        await working.remove(RemoveRequest(path="/workspace/src", recursive=True))
        await working.aclose()
        async with await provider.attach(working.id) as again:
            assert await read_file(again, "/workspace/README") == b"changed"
            assert set(await entries(again, "/workspace")) == {"README", "link", "out"}

    async def test_a_restore_brings_the_project_back_as_it_was_at_the_snapshot(self, working: Sandbox) -> None:
        if not working.capabilities.supports(Verb.RESTORE):
            pytest.skip("the provider does not declare 'restore'")
        await put(working, "/workspace/README", b"at the snapshot")
        content = await working.snapshot(SnapshotRequest())
        before = _plain(await entries(working, "/workspace", 9))
        await working.remove(RemoveRequest(path="/workspace/src", recursive=True))
        await put(working, "/workspace/README", b"later")
        await put(working, "/workspace/added", b"later")
        await working.restore(content)
        assert _plain(await entries(working, "/workspace", 9)) == before
        assert await read_file(working, "/workspace/README") == b"at the snapshot"
        assert await read_file(working, "/workspace/src/deep/private") == b"\0\xff"

    # -- what changed in it

    async def test_what_changed_is_told_from_what_the_project_was(
        self, provider: Provider, working: Sandbox, project: Path
    ) -> None:
        """Where the project was copied in, what the host changes later is no change of the sandbox."""
        if not provider.capabilities.supports(Verb.DIFF):
            pytest.skip("the provider does not declare 'diff'")
        if provider.capabilities.workspace_copied:
            (project / "src" / "run").write_bytes(b"changed by the host")
            (project / "new on the host").write_bytes(b"")
        expected = {"/workspace/README": Action.MODIFIED, "/workspace/src/new": Action.ADDED}
        await put(working, "/workspace/README", b"changed")
        await put(working, "/workspace/src/new", b"new")
        assert await self.changed(provider, working) == expected
        if working.capabilities.supports(Verb.FORK):
            copy = new_spec(provider.capabilities)
            (forked,) = (await working.fork([copy])).sandboxes
            await forked.remove(RemoveRequest(path="/workspace/src/new"))
            assert await self.changed(provider, forked) == {"/workspace/README": Action.MODIFIED}
            await forked.aclose()
            await provider.destroy(copy.id)

    async def test_what_the_project_was_outlives_a_restore(self, provider: Provider, working: Sandbox) -> None:
        for verb in (Verb.DIFF, Verb.RESTORE):
            if not provider.capabilities.supports(verb):
                pytest.skip(f"the provider does not declare {verb.value!r}")
        await working.remove(RemoveRequest(path="/workspace/link"))
        content = await working.snapshot(SnapshotRequest())
        await put(working, "/workspace/README", b"changed")
        await working.restore(content)
        await provider.discard(content)
        assert await self.changed(provider, working) == {"/workspace/link": Action.DELETED}

    @staticmethod
    async def changed(provider: Provider, sandbox: Sandbox) -> dict[str, Action]:
        """Return what became of what the workspace started as."""
        states = (StartState(sandbox=sandbox.id), LiveState(sandbox=sandbox.id))
        found = await provider.diff(DiffRequest(before=states[0], after=states[1], paths=("/workspace",)))
        return {change.path: change.action for change in found.changes}
