"""Blank sandboxes that were started ahead become the one that is asked for, and nothing else."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_sandbox.core.capability import Capabilities, Verb
from mcp_sandbox.core.errors import NotFoundError, SandboxError, StateError
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import Workspace, WorkspaceMode
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import new_spec, put, read_file, run

__all__ = ["AdoptionContract"]


class AdoptionContract(Contract):
    """Skipped where undeclared, which `LifecycleContract` checks."""

    @pytest.fixture
    def adopts(self, capabilities: Capabilities) -> None:
        """A provider whose sandboxes can become others, or a skip."""
        if not capabilities.supports(Verb.ADOPT):
            pytest.skip("the provider does not declare 'adopt'")

    @pytest.fixture
    async def blank(self, adopts: None, provider: Provider) -> AsyncIterator[Sandbox]:
        """A sandbox that nothing ran in."""
        spec = replace(new_spec(provider.capabilities), labels={"blank": "yes"})
        sandbox = await provider.create(spec)
        yield sandbox
        await sandbox.aclose()
        await provider.destroy(spec.id)

    async def test_a_blank_sandbox_becomes_another_one_whole(self, blank: Sandbox, provider: Provider) -> None:
        """Id, variables and labels are the new one's, for every connection; the old id is gone."""
        spec = replace(new_spec(provider.capabilities, env={"GIVEN": "yes"}), labels={"mine": "1"})
        async with await blank.adopt(spec) as sandbox:
            assert sandbox.id == spec.id
            assert b"GIVEN=yes\0" in (await run(sandbox, "env", "-0")).stdout
            await put(sandbox, "/workspace/file", b"kept")
            (info,) = [info for info in await provider.list() if info.id in (spec.id, blank.id)]
            assert (info.id, info.labels.get("mine"), info.labels.get("blank")) == (spec.id, "1", None)
            with pytest.raises(NotFoundError):
                await provider.attach(blank.id)
        async with await provider.attach(spec.id) as again:
            assert await read_file(again, "/workspace/file") == b"kept"
            assert b"GIVEN=yes\0" in (await run(again, "env", "-0")).stdout
        await provider.destroy(spec.id)
        assert spec.id not in {info.id for info in await provider.list()}

    async def test_a_blank_sandbox_becomes_one_with_a_project(
        self, adopts: None, provider: Provider, tmp_path: Path
    ) -> None:
        """As the project is by then, whether it is copied or shown."""
        project = tmp_path / "project"
        (project / "src").mkdir(parents=True)
        (project / "src" / "main.py").write_text("old")
        workspace = Workspace(mode=WorkspaceMode.OVERLAY, source=str(project.resolve()))
        spec = replace(new_spec(provider.capabilities), workspace=workspace)
        early = Workspace() if provider.capabilities.workspace_copied else workspace
        blank = await provider.create(replace(new_spec(provider.capabilities), workspace=early))
        (project / "src" / "main.py").write_text("new")
        async with await blank.adopt(spec) as sandbox:
            assert await read_file(sandbox, "/workspace/src/main.py") == b"new"
            await put(sandbox, "/workspace/src/main.py", b"changed inside")
        assert (project / "src" / "main.py").read_text() == "new"
        await provider.destroy(spec.id)

    async def test_an_id_that_is_taken_is_refused_and_both_go_on(
        self, blank: Sandbox, sandbox: Sandbox, provider: Provider
    ) -> None:
        await put(sandbox, "/workspace/file", b"mine")
        with pytest.raises(StateError):
            await blank.adopt(replace(new_spec(provider.capabilities), id=sandbox.id))
        assert await read_file(sandbox, "/workspace/file") == b"mine"
        assert (await run(blank, "echo", "blank")).stdout == b"blank\n"
        async with await provider.attach(sandbox.id) as again:
            assert await read_file(again, "/workspace/file") == b"mine"

    async def test_a_destroyed_one_becomes_nothing(self, blank: Sandbox, provider: Provider) -> None:
        await provider.destroy(blank.id)
        spec = new_spec(provider.capabilities)
        with pytest.raises(SandboxError):
            await blank.adopt(spec)
        assert spec.id not in {info.id for info in await provider.list()}
