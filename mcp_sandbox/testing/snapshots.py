"""Snapshots: immutable, complete, independent of what comes after, and restored whole or not at all."""

import hashlib
from collections.abc import AsyncIterator
from typing import NamedTuple

import anyio
import pytest

from mcp_sandbox.core.capability import Capabilities, Facet, Verb
from mcp_sandbox.core.errors import SandboxError, UnsupportedError
from mcp_sandbox.core.exec import ExecRequest, Termination
from mcp_sandbox.core.files import FileKind, MkdirRequest, RemoveRequest, RenameRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import (
    HANG_S,
    drain,
    entries,
    new_spec,
    put,
    read_file,
    run,
    sh,
    size_of,
    stops_growing,
    wait_for_file,
)

__all__ = ["SnapshotContract"]

FILES = SnapshotRequest()


class _Trace(NamedTuple):
    """What must come back of one path."""

    kind: FileKind
    mode: int
    owner: tuple[int, int]
    modified_ns: int
    links: int
    target: str | None
    digest: str


async def _census(sandbox: Sandbox, path: str = "/workspace") -> dict[str, _Trace]:
    """Describe everything below a directory, to the last byte and nanosecond."""
    found: dict[str, _Trace] = {}
    for name, entry in (await entries(sandbox, path, 99)).items():
        content = await read_file(sandbox, entry.path) if entry.kind is FileKind.FILE else b""
        links = entry.links if entry.kind is FileKind.FILE else 1
        digest = hashlib.sha256(content).hexdigest()
        owner = (entry.uid, entry.gid)
        found[name] = _Trace(entry.kind, entry.mode, owner, entry.modified_ns, links, entry.link_target, digest)
    return found


class SnapshotContract(Contract):
    """Take, restore, branch off, fork and discard; skipped where undeclared, which `LifecycleContract` checks."""

    @pytest.fixture
    def snapshots(self, capabilities: Capabilities) -> None:
        """A provider that takes and restores snapshots, or a skip."""
        for verb in (Verb.SNAPSHOT, Verb.RESTORE):
            if not capabilities.supports(verb):
                pytest.skip(f"the provider does not declare {verb.value!r}")

    @pytest.fixture
    def branches(self, snapshots: None, capabilities: Capabilities) -> None:
        """A provider that creates sandboxes from snapshots, or a skip."""
        if not capabilities.supports(Verb.CREATE_FROM_SNAPSHOT):
            pytest.skip("the provider does not declare 'create_from_snapshot'")

    @pytest.fixture
    async def furnished(self, snapshots: None, sandbox: Sandbox) -> AsyncIterator[Sandbox]:
        """A sandbox with one of everything in its workspace."""
        await put(sandbox, "/workspace/plain", b"plain\r\n\0\xff")
        await put(sandbox, "/workspace/script", b"#!/bin/sh\n", 0o755)
        await put(sandbox, "/workspace/secret", b"", 0o600)
        await put(sandbox, "/workspace/deep/er/big", b"0123456789abcdef" * 65_536)
        await put(sandbox, "/workspace/not UTF-8 \udc85\nname", b"odd")
        await sandbox.mkdir(MkdirRequest(path="/workspace/empty", mode=0o1777))
        await run(sandbox, "ln", "script", "second-name")
        await run(sandbox, "ln", "-s", "/absolute/elsewhere", "absolute")
        await run(sandbox, "ln", "-s", "deep", "relative")
        if sandbox.capabilities.keeps_fifos:
            await run(sandbox, "mkfifo", "fifo")
        if sandbox.capabilities.runs_programs:
            await sh(sandbox, "find . -depth -exec touch -h -d '2001-02-03 04:05:06.123456789' {} +")
        yield sandbox

    # -- take and restore

    async def test_b090_a_wrecked_workspace_comes_back_to_the_last_byte(self, furnished: Sandbox) -> None:
        """B-090: modes, times, links, owners and content, and nothing that was not there; the id stays."""
        sandbox, before, own_id = furnished, await _census(furnished), furnished.id
        content = await sandbox.snapshot(FILES)
        await put(sandbox, "/workspace/plain", b"overwritten")
        await put(sandbox, "/workspace/added/file", b"new")
        await sandbox.remove(RemoveRequest(path="/workspace/script"))
        await sandbox.remove(RemoveRequest(path="/workspace/empty"))
        await sandbox.rename(RenameRequest(source="/workspace/secret", target="/workspace/deep/secret"))
        await sandbox.rename(RenameRequest(source="/workspace/deep/er", target="/workspace/elsewhere"))
        assert await _census(sandbox) != before
        await sandbox.restore(content)
        assert await _census(sandbox) == before
        assert sandbox.id == own_id

    async def test_an_emptied_workspace_comes_back(self, furnished: Sandbox) -> None:
        sandbox, before = furnished, await _census(furnished)
        content = await sandbox.snapshot(FILES)
        for name in await entries(sandbox, "/workspace"):
            await sandbox.remove(RemoveRequest(path=f"/workspace/{name}", recursive=True))
        await sandbox.restore(content)
        assert await _census(sandbox) == before

    async def test_the_workspace_directory_itself_keeps_its_mode_and_time(
        self, snapshots: None, programs: None, sandbox: Sandbox
    ) -> None:
        """Also when nothing else changed, and in the live sandbox: taking a snapshot is no change."""
        for mode in ("710", "700", "000"):
            made = await sh(sandbox, f"touch -d '2001-02-03 04:05:06.123456789' . && chmod {mode} .; stat -c '%a %y' .")
            content = await sandbox.snapshot(FILES)
            assert (await sh(sandbox, "stat -c '%a %y' /workspace")).stdout == made.stdout
            await sh(sandbox, "chmod 755 /workspace; echo x > /workspace/file")
            await sandbox.restore(content)
            assert (await sh(sandbox, "stat -c '%a %y' /workspace")).stdout == made.stdout

    async def test_paths_that_became_something_else_come_back_as_what_they_were(self, furnished: Sandbox) -> None:
        sandbox, before = furnished, await _census(furnished)
        content = await sandbox.snapshot(FILES)
        for name in {"plain", "deep", "absolute", "relative", "fifo"} & set(before):
            await sandbox.remove(RemoveRequest(path=f"/workspace/{name}", recursive=True))
        await put(sandbox, "/workspace/plain/now/a/directory")
        await put(sandbox, "/workspace/deep", b"now a file")
        await put(sandbox, "/workspace/relative", b"now a file")
        await run(sandbox, "ln", "-s", "plain", "fifo")
        await sandbox.mkdir(MkdirRequest(path="/workspace/absolute"))
        await sandbox.restore(content)
        assert await _census(sandbox) == before

    async def test_a_directory_made_again_does_not_show_what_it_held_before(self, furnished: Sandbox) -> None:
        """Neither in the live sandbox nor in a snapshot of it."""
        sandbox = furnished
        await sandbox.snapshot(FILES)
        await sandbox.remove(RemoveRequest(path="/workspace/deep", recursive=True))
        await put(sandbox, "/workspace/deep/only", b"1")
        content = await sandbox.snapshot(FILES)
        assert set(await entries(sandbox, "/workspace/deep", 9)) == {"only"}
        await sandbox.remove(RemoveRequest(path="/workspace/deep", recursive=True))
        await sandbox.restore(content)
        assert set(await entries(sandbox, "/workspace/deep", 9)) == {"only"}

    async def test_later_writes_do_not_reach_a_snapshot(self, snapshots: None, sandbox: Sandbox) -> None:
        """In place, appended, cut short, by another mode: the snapshot stays as it was taken."""
        states: list[tuple[NativeContent, dict[str, _Trace]]] = []
        await put(sandbox, "/workspace/file", b"x" * 100_000)
        for turn in range(4):
            await run(sandbox, "tee", "-a", "/workspace/log", stdin=b"%d\n" % turn)
            await put(sandbox, "/workspace/file", b"%d" % turn * (1000 - turn))
            await run(sandbox, "chmod", f"7{turn}0", "/workspace/file")
            states.append((await sandbox.snapshot(FILES), await _census(sandbox)))
        for turn in (1, 3, 0, 2, 0):
            content, expected = states[turn]
            await sandbox.restore(content)
            assert await _census(sandbox) == expected
            await put(sandbox, "/workspace/file", b"written after the restore")

    async def test_home_and_the_rest_of_the_writable_tree_come_back_too(
        self, snapshots: None, capabilities: Capabilities, sandbox: Sandbox
    ) -> None:
        home = (await run(sandbox, "env", "-0")).stdout.split(b"HOME=")[1].split(b"\0")[0].decode()
        places = [f"{home}/.config/tool"]
        if capabilities.root_inside and "/" in capabilities.writable_roots:
            places += ["/etc/added.conf", "/usr/local/lib/added/file", "/opt/added", "/var/lib/added"]
        for place in places:
            await put(sandbox, place, place.encode())
        content = await sandbox.snapshot(FILES)
        for place in places:
            await sandbox.remove(RemoveRequest(path=place))
        await sandbox.restore(content)
        assert [await read_file(sandbox, place) for place in places] == [place.encode() for place in places]

    async def test_a_program_of_the_image_that_was_deleted_comes_back(
        self, snapshots: None, programs: None, capabilities: Capabilities, sandbox: Sandbox
    ) -> None:
        if not (capabilities.root_inside and "/" in capabilities.writable_roots):
            pytest.skip("the provider declares that the image cannot be changed from inside")
        content = await sandbox.snapshot(FILES)
        assert (await sh(sandbox, 'rm "$(command -v env)" && ! env')).exit_code == 0
        deleted = await sandbox.snapshot(FILES)
        await sandbox.restore(content)
        assert (await run(sandbox, "env")).exit_code == 0
        await sandbox.restore(deleted)
        assert (await run(sandbox, "env")).exit_code == 127

    async def test_a_virtual_environment_with_absolute_links_works_after_a_restore(
        self, snapshots: None, python: str, sandbox: Sandbox
    ) -> None:
        made = await run(sandbox, python, "-m", "venv", "--without-pip", "/workspace/venv")
        if made.exit_code != 0:
            pytest.skip("the Python inside has no venv module")
        before = await _census(sandbox)
        content = await sandbox.snapshot(FILES)
        await sh(sandbox, "rm -rf venv; mkdir -p venv/bin; echo broken > venv/bin/python")
        await sandbox.restore(content)
        assert await _census(sandbox) == before
        shown = await run(sandbox, "/workspace/venv/bin/python", "-c", "import sys; print(sys.prefix)")
        assert shown.stdout == b"/workspace/venv\n"

    async def test_restore_ends_running_commands_and_the_next_one_works(
        self, snapshots: None, sandbox: Sandbox
    ) -> None:
        content = await sandbox.snapshot(FILES)
        async with await sandbox.exec(ExecRequest(argv=("sleep", "60"))) as execution:
            with anyio.fail_after(HANG_S):
                await sandbox.restore(content)
                result = await execution.wait()
        assert result.exit_code is None
        assert result.termination in (Termination.LOST, Termination.KILLED)
        assert (await run(sandbox, "echo", "next")).stdout == b"next\n"

    async def test_every_connection_sees_the_restored_state(
        self, snapshots: None, provider: Provider, sandbox: Sandbox
    ) -> None:
        await put(sandbox, "/workspace/file", b"old")
        async with await provider.attach(sandbox.id) as second:
            content = await sandbox.snapshot(FILES)
            await put(second, "/workspace/file", b"new")
            await sandbox.restore(content)
            assert await read_file(second, "/workspace/file") == b"old"
            assert (await run(second, "cat", "/workspace/file")).stdout == b"old"

    async def test_restoring_what_does_not_exist_changes_nothing(self, furnished: Sandbox) -> None:
        """Whole or not at all."""
        before = await _census(furnished)
        real = await furnished.snapshot(FILES)
        nowhere = NativeContent(
            provider=real.provider, ref=real.ref[:-4] + "beef", holds=real.holds, size_bytes=real.size_bytes
        )
        with pytest.raises(SandboxError):
            await furnished.restore(nowhere)
        assert await _census(furnished) == before

    async def test_a_record_says_what_it_holds(self, snapshots: None, provider: Provider, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/big", bytes(range(256)) * 4096)
        content = await sandbox.snapshot(FILES)
        assert content.provider == provider.name
        assert Facet.FILES in content.holds
        assert content.holds <= provider.capabilities.snapshot_holds
        for _ in range(2):
            measured = await provider.measure(content)
            assert measured is None or measured >= 1 << 20
        assert content.paused_s >= 0

    async def test_a_facet_that_is_not_declared_is_refused(
        self, snapshots: None, capabilities: Capabilities, sandbox: Sandbox
    ) -> None:
        for facet in set(Facet) - capabilities.snapshot_holds:
            with pytest.raises(UnsupportedError):
                await sandbox.snapshot(SnapshotRequest(holds=frozenset({Facet.FILES, facet})))

    @pytest.mark.timeout(240)
    async def test_a_long_chain_of_snapshots_keeps_every_link(self, snapshots: None, sandbox: Sandbox) -> None:
        """More than layers can be stacked: none is lost when they are merged."""
        contents: list[NativeContent] = []
        for turn in range(45):
            await put(sandbox, f"/workspace/{turn}", b"%d" % turn)
            await put(sandbox, "/workspace/latest", b"%d" % turn)
            if turn >= 3:
                await sandbox.remove(RemoveRequest(path=f"/workspace/{turn - 3}"))
            contents.append(await sandbox.snapshot(FILES))
        for turn in (0, 20, 44, 31, 3):
            await sandbox.restore(contents[turn])
            assert await read_file(sandbox, "/workspace/latest") == b"%d" % turn
            kept = {str(number) for number in range(max(0, turn - 2), turn + 1)}
            assert set(await entries(sandbox, "/workspace")) == kept | {"latest"}

    # -- while something runs

    async def test_b093_a_snapshot_while_a_command_runs_leaves_it_running(
        self, branches: None, programs: None, provider: Provider, sandbox: Sandbox
    ) -> None:
        """B-093: an open file goes on growing in the live sandbox, and stays as it was in the snapshot."""
        script = "exec 3>>beat; while :; do echo x >&3; sleep 0.02; done"
        async with await sandbox.exec(ExecRequest(argv=("sh", "-c", script))) as execution:
            await wait_for_file(sandbox, "/workspace/beat", least_bytes=6)
            content = await sandbox.snapshot(FILES)
            taken = await size_of(sandbox, "/workspace/beat")
            await wait_for_file(sandbox, "/workspace/beat", least_bytes=taken + 6)
            spec = new_spec(provider.capabilities)
            async with await provider.restore(content, spec) as copy:
                held = await size_of(copy, "/workspace/beat")
                assert 6 <= held <= await size_of(sandbox, "/workspace/beat")
                assert await stops_growing(copy, "/workspace/beat")
            await provider.destroy(spec.id)
            assert not await stops_growing(sandbox, "/workspace/beat")
            await execution.kill()

    async def test_snapshots_during_writes_hold_whole_files(
        self, branches: None, provider: Provider, sandbox: Sandbox
    ) -> None:
        versions = [letter * 300_000 for letter in (b"a", b"b")]
        await put(sandbox, "/workspace/file", versions[0])
        contents: list[NativeContent] = []

        async def write() -> None:
            for turn in range(30):
                await put(sandbox, "/workspace/file", versions[turn % 2])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            contents.extend([await sandbox.snapshot(FILES) for _ in range(4)])
        for content in contents:
            spec = new_spec(provider.capabilities)
            async with await provider.restore(content, spec) as copy:
                assert await read_file(copy, "/workspace/file") in versions
            await provider.destroy(spec.id)

    # -- branches, forks, discarding

    async def test_a_sandbox_from_a_snapshot_starts_there_and_goes_its_own_way(
        self, branches: None, furnished: Sandbox, provider: Provider
    ) -> None:
        before = await _census(furnished)
        content = await furnished.snapshot(FILES)
        await put(furnished, "/workspace/only-here", b"1")
        spec = new_spec(provider.capabilities, env={"BRANCH": "yes"})
        async with await provider.restore(content, spec) as copy:
            assert copy.id == spec.id
            assert await _census(copy) == before
            await put(copy, "/workspace/only-there", b"2")
            assert b"BRANCH=yes\0" in (await run(copy, "env", "-0")).stdout
            assert "only-there" not in await entries(furnished, "/workspace")
            assert "only-here" not in await entries(copy, "/workspace")
        await provider.destroy(spec.id)

    async def test_a_snapshot_outlives_its_sandbox(self, branches: None, provider: Provider) -> None:
        source, copy = new_spec(provider.capabilities), new_spec(provider.capabilities)
        async with await provider.create(source) as sandbox:
            await put(sandbox, "/workspace/file", b"kept")
            content = await sandbox.snapshot(FILES)
        await provider.destroy(source.id)
        async with await provider.restore(content, copy) as sandbox:
            assert await read_file(sandbox, "/workspace/file") == b"kept"
        await provider.destroy(copy.id)

    async def test_b091_forks_start_alike_and_do_not_see_each_other(
        self, capabilities: Capabilities, provider: Provider, sandbox: Sandbox
    ) -> None:
        """B-091: one call, several sandboxes, and the original goes on."""
        if not capabilities.supports(Verb.FORK):
            pytest.skip("the provider does not declare 'fork'")
        await put(sandbox, "/workspace/file", b"common")
        specs = [new_spec(capabilities, env={"FORK": str(number)}) for number in range(3)]
        async with await sandbox.exec(ExecRequest(argv=("cat",), stdin=True)) as execution:
            forked = await sandbox.fork(specs)
            forks = forked.sandboxes
            assert 0 <= forked.paused_s < HANG_S
            assert [fork.id for fork in forks] == [spec.id for spec in specs]
            for number, fork in enumerate(forks):
                assert await read_file(fork, "/workspace/file") == b"common"
                assert b"FORK=%d\0" % number in (await run(fork, "env", "-0")).stdout
                await put(fork, "/workspace/file", b"%d" % number)
            assert [await read_file(fork, "/workspace/file") for fork in forks] == [b"0", b"1", b"2"]
            assert await read_file(sandbox, "/workspace/file") == b"common"
            await execution.write_stdin(b"alive")
            await execution.close_stdin()
            assert (await drain(execution)).stdout == b"alive"
        for fork in forks:
            await fork.aclose()
            await provider.destroy(fork.id)

    async def test_a_discarded_snapshot_is_gone_and_the_others_are_not(
        self, branches: None, provider: Provider, sandbox: Sandbox
    ) -> None:
        contents: list[NativeContent] = []
        for turn in range(3):
            await put(sandbox, f"/workspace/{turn}", b"%d" % turn)
            contents.append(await sandbox.snapshot(FILES))
        spec = new_spec(provider.capabilities)
        async with await provider.restore(contents[1], spec) as copy:
            await provider.discard(contents[1])
            await provider.discard(contents[1])
            assert set(await entries(copy, "/workspace")) == {"0", "1"}
            await put(copy, "/workspace/still", b"writable")
        await provider.destroy(spec.id)
        with pytest.raises(SandboxError):
            await sandbox.restore(contents[1])
        assert set(await entries(sandbox, "/workspace")) == {"0", "1", "2"}
        await sandbox.restore(contents[0])
        assert set(await entries(sandbox, "/workspace")) == {"0"}
        await sandbox.restore(contents[2])
        assert set(await entries(sandbox, "/workspace")) == {"0", "1", "2"}
