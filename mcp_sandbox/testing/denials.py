"""Parts of a project that a sandbox must not see: by no tool or command, whatever is renamed, whenever it starts."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.differences import DiffRequest, LiveState, StartState
from mcp_sandbox.core.errors import UnsupportedError
from mcp_sandbox.core.files import RenameRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec, Workspace, WorkspaceMode
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import entries, new_spec, put, read_file, sh

__all__ = ["DenialContract"]

GLOBS: Final = ("secrets/**", ".env", "**/*.pem", "a/b/named")
TOKEN: Final = "denied-canary"
HIDDEN: Final = ("secrets/key", "secrets/deep/key", ".env", "top.pem", "a/b/k.pem", "a/b/named")
SEEN: Final = ("a/b/seen", "a/.env.example", "secrets.txt")
EVERYTHING: Final = (
    "grep -rl denied-canary /workspace /tmp /root /home /opt /var 2>/dev/null; "
    "tar c -C / workspace | grep -c denied-canary"
)


class DenialContract(Contract):
    """`SandboxSpec.denied`, in every mode that a provider declares; one that declares none refuses."""

    @pytest.fixture
    def guarded_project(self, tmp_path: Path) -> Path:
        """A project with secrets in it."""
        project = tmp_path / "guarded"
        for name in (*HIDDEN, *SEEN):
            path = project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(TOKEN if name in HIDDEN else "harmless")
        (project / "to-secret").symlink_to("secrets/key")
        return project.resolve()

    @pytest.fixture(params=[mode for mode in WorkspaceMode if mode is not WorkspaceMode.EMPTY])
    def guarded_spec(self, request: pytest.FixtureRequest, provider: Provider, guarded_project: Path) -> SandboxSpec:
        """A spec that denies them."""
        workspace = Workspace(mode=request.param, source=str(guarded_project))
        return replace(new_spec(provider.capabilities), workspace=workspace, denied=GLOBS)

    @pytest.fixture
    async def guarded(self, provider: Provider, guarded_spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """A sandbox that must not see them."""
        if guarded_spec.workspace.mode not in provider.capabilities.denies:
            pytest.skip(f"denials in mode {guarded_spec.workspace.mode.value!r} are refused, as is checked elsewhere")
        async with await provider.create(guarded_spec) as sandbox:
            yield sandbox
        await provider.destroy(guarded_spec.id)

    async def test_denials_that_cannot_be_enforced_are_refused_by_name(
        self, provider: Provider, guarded_spec: SandboxSpec
    ) -> None:
        mode, able = guarded_spec.workspace.mode, provider.capabilities
        if mode in able.denies or mode not in able.workspaces:
            pytest.skip("they can, or there is no such mode")
        with pytest.raises(UnsupportedError, match=r"capabilities\.filesystem\.denied refused: secrets/"):
            await provider.create(guarded_spec)
        assert guarded_spec.id not in [info.id for info in await provider.list()]

    async def test_fs11_what_is_denied_is_there_for_no_tool_and_no_command(self, guarded: Sandbox) -> None:
        found = set(await entries(guarded, "/workspace", 9))
        assert {name for name in found if not name.endswith(("a", "a/b"))} == {*SEEN, "to-secret"}
        for name in (*HIDDEN, "to-secret"):
            with pytest.raises((FileNotFoundError, NotADirectoryError)):
                await read_file(guarded, f"/workspace/{name}")
        if guarded.capabilities.runs_programs:
            outcome = await sh(guarded, EVERYTHING)
            assert (outcome.stdout, outcome.exit_code) == (b"0\n", 1)
            assert (await sh(guarded, "cat .env secrets/key a/b/k.pem to-secret")).stdout == b""

    async def test_fs10_it_stays_away_whatever_is_renamed_and_however_often_it_starts(
        self, provider: Provider, guarded: Sandbox
    ) -> None:
        await guarded.rename(RenameRequest(source="/workspace/a", target="/workspace/moved"))
        assert set(await entries(guarded, "/workspace/moved", 3)) == {"b", "b/seen", ".env.example"}
        if guarded.capabilities.runs_programs:
            await sh(guarded, "mv moved/b b; mkdir a; ln -s /workspace/b a/b; rmdir secrets; mkdir -p again")
        await guarded.aclose()
        async with await provider.attach(guarded.id) as again:
            names = set(await entries(again, "/workspace", 9))
            assert not [name for name in names if name.endswith((".pem", "/named", "key"))]
            if again.capabilities.runs_programs:
                assert (await sh(again, EVERYTHING)).stdout == b"0\n"

    async def test_fs11_no_snapshot_fork_or_comparison_shows_it(self, provider: Provider, guarded: Sandbox) -> None:
        await put(guarded, "/workspace/.env", b"its own")
        if guarded.capabilities.supports(Verb.DIFF):
            request = DiffRequest(
                before=StartState(sandbox=guarded.id), after=LiveState(sandbox=guarded.id), text_bytes=1 << 16,
            )  # fmt: skip
            (change,) = [each for each in (await provider.diff(request)).changes if each.path == "/workspace/.env"]
            assert (change.before, change.after and change.after.text) == (None, b"its own")
        if not guarded.capabilities.supports(Verb.RESTORE):
            pytest.skip("the provider does not declare 'restore'")
        content = await guarded.snapshot(SnapshotRequest())
        await guarded.restore(content)
        assert await read_file(guarded, "/workspace/.env") == b"its own"
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            await read_file(guarded, "/workspace/secrets/key")
        await provider.discard(content)

    async def test_the_host_keeps_its_files(self, guarded: Sandbox, guarded_project: Path) -> None:
        if guarded.capabilities.runs_programs:
            await sh(guarded, "rm -rf .env secrets a; echo x > .env; mkdir secrets; echo x > secrets/key")
        assert {name: (guarded_project / name).read_text() for name in HIDDEN} == dict.fromkeys(HIDDEN, TOKEN)
