"""Differences between snapshots, live sandboxes and what they started as: complete, exact, and nothing else."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_sandbox.core.capability import Capabilities, Verb
from mcp_sandbox.core.differences import Action, DiffRequest, LiveState, ProjectState, StartState, State
from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.files import FileKind, MkdirRequest, RemoveRequest, RenameRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import Workspace, WorkspaceMode
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import new_spec, put, run, sh

__all__ = ["DifferenceContract"]

FILES = SnapshotRequest()


async def _changes(provider: Provider, before: State, after: State, *paths: str) -> dict[str, str]:
    """Return what changed below the workspace, or below some paths, by path relative to the workspace."""
    request = DiffRequest(before=before, after=after, paths=paths or ("/workspace",))
    found = await provider.diff(request)
    assert not found.truncated
    assert [change.path for change in found.changes] == sorted(change.path for change in found.changes)
    return {change.path.removeprefix("/workspace").lstrip("/"): change.action for change in found.changes}


class DifferenceContract(Contract):
    """What `Verb.DIFF` promises; skipped where it is undeclared, which `LifecycleContract` checks."""

    @pytest.fixture
    async def compared(self, capabilities: Capabilities, sandbox: Sandbox) -> AsyncIterator[Sandbox]:
        """A sandbox with something in its workspace, on a provider that compares, or a skip."""
        for verb in (Verb.SNAPSHOT, Verb.DIFF):
            if not capabilities.supports(verb):
                pytest.skip(f"the provider does not declare {verb.value!r}")
        for name in ("same", "deleted", "rewritten", "mode", "type", "tree/one", "tree/two/three"):
            await put(sandbox, f"/workspace/{name}", b"then\n")
        await run(sandbox, "ln", "-s", "then", "/workspace/link")
        yield sandbox

    async def test_nothing_is_a_change_but_what_somebody_did(self, provider: Provider, compared: Sandbox) -> None:
        request = DiffRequest(before=StartState(sandbox=compared.id), after=LiveState(sandbox=compared.id))
        found = await provider.diff(request)
        assert [change.path for change in found.changes if not change.path.startswith("/workspace/")] == []

    async def test_every_kind_of_change_is_found_and_nothing_else(self, compared: Sandbox, provider: Provider) -> None:
        sandbox, then = compared, await compared.snapshot(FILES)
        await sandbox.remove(RemoveRequest(path="/workspace/deleted"))
        await put(sandbox, "/workspace/rewritten", b"now\n")
        await put(sandbox, "/workspace/mode", b"then\n", 0o700)
        await put(sandbox, "/workspace/same", b"then\n")
        await sandbox.remove(RemoveRequest(path="/workspace/type"))
        await sandbox.mkdir(MkdirRequest(path="/workspace/type"))
        await put(sandbox, "/workspace/type/inner", b"now\n")
        await sandbox.remove(RemoveRequest(path="/workspace/tree", recursive=True))
        await put(sandbox, "/workspace/not UTF-8 \udc85\nname", b"odd")
        await sandbox.remove(RemoveRequest(path="/workspace/link"))
        await run(sandbox, "ln", "-s", "now", "/workspace/link")
        live = LiveState(sandbox=sandbox.id)
        expected = {
            "deleted": Action.DELETED,
            "rewritten": Action.MODIFIED,
            "mode": Action.MODIFIED,
            "type": Action.TYPE_CHANGED,
            "type/inner": Action.ADDED,
            "tree": Action.DELETED,
            "tree/one": Action.DELETED,
            "tree/two": Action.DELETED,
            "tree/two/three": Action.DELETED,
            "not UTF-8 \udc85\nname": Action.ADDED,
            "link": Action.MODIFIED,
        }
        assert await _changes(provider, then, live) == expected
        now = await sandbox.snapshot(FILES)
        assert await _changes(provider, then, now) == expected
        assert await _changes(provider, now, live) == {}
        backwards = await _changes(provider, now, then)
        assert backwards["deleted"] == backwards["tree/two/three"] == Action.ADDED
        assert backwards["type/inner"] == Action.DELETED

    async def test_a_sandbox_is_compared_with_what_it_started_as(self, compared: Sandbox, provider: Provider) -> None:
        sandbox, start = compared, StartState(sandbox=compared.id)
        assert set(await _changes(provider, start, LiveState(sandbox=sandbox.id))) == {
            *("same", "deleted", "rewritten", "mode", "type", "tree", "tree/one", "tree/two", "tree/two/three", "link")
        }
        await sandbox.snapshot(FILES)
        await sandbox.remove(RemoveRequest(path="/workspace/tree", recursive=True))
        assert set(await _changes(provider, start, LiveState(sandbox=sandbox.id))) == {
            *("same", "deleted", "rewritten", "mode", "type", "link")
        }

    async def test_one_from_a_snapshot_starts_there_and_a_fork_where_its_source_did(
        self, compared: Sandbox, provider: Provider, capabilities: Capabilities
    ) -> None:
        for verb in (Verb.CREATE_FROM_SNAPSHOT, Verb.FORK):
            if not capabilities.supports(verb):
                pytest.skip(f"the provider does not declare {verb.value!r}")
        branch, copy = new_spec(capabilities), new_spec(capabilities)
        async with await provider.restore(await compared.snapshot(FILES), branch) as one:
            await put(one, "/workspace/new", b"now")
            assert await _changes(provider, StartState(sandbox=branch.id), LiveState(sandbox=branch.id)) == {
                "new": Action.ADDED
            }
            forked = await one.fork([copy])
            await put(forked.sandboxes[0], "/workspace/newer", b"now")
            assert set(await _changes(provider, StartState(sandbox=copy.id), LiveState(sandbox=copy.id))) == {
                *("new", "newer")
            }
            await forked.sandboxes[0].aclose()
        for spec in (branch, copy):
            await provider.destroy(spec.id)

    async def test_the_project_alone_is_a_state_also_for_a_sandbox_from_a_snapshot(
        self, provider: Provider, capabilities: Capabilities, tmp_path: Path
    ) -> None:
        for verb in (Verb.SNAPSHOT, Verb.CREATE_FROM_SNAPSHOT, Verb.DIFF):
            if not capabilities.supports(verb):
                pytest.skip(f"the provider does not declare {verb.value!r}")
        if WorkspaceMode.OVERLAY not in capabilities.workspaces:
            pytest.skip("the provider has no workspace that starts as a project")
        project = tmp_path / "project"
        project.mkdir()
        (project / "there").write_text("then\n")
        overlay = Workspace(mode=WorkspaceMode.OVERLAY, source=str(project.resolve()))
        first, second = (replace(new_spec(capabilities), workspace=overlay) for _ in range(2))
        async with await provider.create(first) as one:
            await put(one, "/workspace/new", b"now\n")
            assert await _changes(provider, ProjectState(sandbox=first.id), LiveState(sandbox=first.id)) == {
                "new": Action.ADDED
            }
            then = await one.snapshot(FILES)
        async with await provider.restore(then, second) as other:
            await put(other, "/workspace/there", b"now\n")
            live = LiveState(sandbox=second.id)
            assert await _changes(provider, StartState(sandbox=second.id), live) == {"there": Action.MODIFIED}
            if not capabilities.workspace_copied:  # else only who made the first one knows what it was
                assert await _changes(provider, ProjectState(sandbox=second.id), live) == {
                    "new": Action.ADDED,
                    "there": Action.MODIFIED,
                }
        for spec in (first, second):
            await provider.destroy(spec.id)

    async def test_sizes_modes_and_texts_are_those_of_both_sides(self, compared: Sandbox, provider: Provider) -> None:
        then = await compared.snapshot(FILES)
        await put(compared, "/workspace/rewritten", b"longer than before\n", 0o600)
        await put(compared, "/workspace/large", b"x" * 2000)
        request = DiffRequest(
            before=then,
            after=LiveState(sandbox=compared.id),
            paths=("/workspace/rewritten", "/workspace/large"),
            text_bytes=1000,
        )
        large, rewritten = (await provider.diff(request)).changes
        assert (rewritten.before, rewritten.after) != (None, None)
        assert rewritten.before is not None
        assert rewritten.after is not None
        assert (rewritten.before.size_bytes, rewritten.before.mode, rewritten.before.text) == (5, 0o644, b"then\n")
        assert (rewritten.after.size_bytes, rewritten.after.mode, rewritten.after.text) == (
            *(19, 0o600), b"longer than before\n",
        )  # fmt: skip
        assert large.after is not None
        assert (large.after.size_bytes, large.after.text, large.before) == (2000, None, None)

    async def test_a_limit_cuts_the_list_and_says_so(self, compared: Sandbox, provider: Provider) -> None:
        request = DiffRequest(
            before=StartState(sandbox=compared.id),
            after=LiveState(sandbox=compared.id),
            paths=("/workspace",),
            limit=3,
        )
        found = await provider.diff(request)
        assert (len(found.changes), found.truncated) == (3, True)

    async def test_paths_choose(self, compared: Sandbox, provider: Provider) -> None:
        start, live = StartState(sandbox=compared.id), LiveState(sandbox=compared.id)
        assert set(await _changes(provider, start, live, "/workspace/tree/two", "/workspace/link/")) == {
            *("tree/two", "tree/two/three", "link")
        }
        assert await _changes(provider, start, live, "/workspace/tre", "/workspace/nothing") == {}

    async def test_directories_that_were_renamed_replaced_and_filled_again(
        self, compared: Sandbox, provider: Provider
    ) -> None:
        sandbox = compared
        first = await sandbox.snapshot(FILES)
        await sandbox.rename(RenameRequest(source="/workspace/tree", target="/workspace/moved"))
        await put(sandbox, "/workspace/tree/fresh", b"now")
        second = await sandbox.snapshot(FILES)
        await put(sandbox, "/workspace/moved/two/three", b"now")
        await sandbox.remove(RemoveRequest(path="/workspace/tree", recursive=True))
        await put(sandbox, "/workspace/tree/one", b"then\n")
        third = await sandbox.snapshot(FILES)
        assert await _changes(provider, first, second) == {
            **{f"moved{rest}": Action.ADDED for rest in ("", "/one", "/two", "/two/three")},
            **{f"tree/{rest}": Action.DELETED for rest in ("one", "two", "two/three")},
            "tree/fresh": Action.ADDED,
        }
        assert await _changes(provider, second, third) == {
            "moved/two/three": Action.MODIFIED,
            "tree/fresh": Action.DELETED,
            "tree/one": Action.ADDED,
        }
        assert await _changes(provider, first, third) == {
            **{f"moved{rest}": Action.ADDED for rest in ("", "/one", "/two", "/two/three")},
            **{f"tree/{rest}": Action.DELETED for rest in ("two", "two/three")},
        }

    async def test_what_a_command_writes_while_it_runs_is_seen(
        self, compared: Sandbox, programs: None, provider: Provider
    ) -> None:
        then = await compared.snapshot(FILES)
        script = "echo more >> same; ln rewritten second; mkfifo fifo; rm -r tree; touch deleted"
        await sh(compared, script)
        assert await _changes(provider, then, LiveState(sandbox=compared.id)) == {
            "same": Action.MODIFIED,
            "second": Action.ADDED,
            **({"fifo": Action.ADDED} if compared.capabilities.keeps_fifos else {}),
            **{f"tree{rest}": Action.DELETED for rest in ("", "/one", "/two", "/two/three")},
        }

    async def test_outside_of_the_workspace_too(self, compared: Sandbox, programs: None, provider: Provider) -> None:
        capabilities, config = compared.capabilities, f"{compared.capabilities.home}/.config"
        await put(compared, "/var/tmp/old", b"then")
        then = await compared.snapshot(FILES)
        await sh(compared, "mkdir -p ~/.config; chmod 700 /workspace; rm /var/tmp/old; echo x > /tmp/new")
        expected = {
            **{config: Action.ADDED, "/workspace": Action.MODIFIED},
            **{"/var/tmp/old": Action.DELETED, "/tmp/new": Action.ADDED},
        }
        if capabilities.root_inside:
            await sh(compared, "rm /etc/hostname; echo x > /usr/new")
            expected |= {"/etc/hostname": Action.DELETED, "/usr/new": Action.ADDED}
        request = DiffRequest(before=then, after=LiveState(sandbox=compared.id))
        found = {change.path: change for change in (await provider.diff(request)).changes}
        assert {path: change.action for path, change in found.items()} == expected
        after = found[config].after
        assert after is not None
        assert after.kind is FileKind.DIRECTORY
        assert not found["/workspace"].content_differs

    async def test_what_is_gone_cannot_be_compared(self, compared: Sandbox, provider: Provider) -> None:
        then = await compared.snapshot(FILES)
        await provider.discard(then)
        with pytest.raises(SandboxError):
            await provider.diff(DiffRequest(before=then, after=LiveState(sandbox=compared.id)))
