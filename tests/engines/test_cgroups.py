"""Control groups for real, of whichever version this machine has and this user may use."""

import os
import platform
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from guest_world import namespaces_work

from mcp_sandbox.core.sandbox import Limits, SandboxSpec
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.engines.cgroup_places import Kernel, find_places
from mcp_sandbox.engines.cgroups import Cgroups
from mcp_sandbox.engines.identity import choose_identity
from mcp_sandbox.engines.launcher import Launcher, tokens
from mcp_sandbox.engines.plan import NAMESPACES
from mcp_sandbox.engines.seccomp import build_filter
from mcp_sandbox.guest.wire import Frame, Type
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.testing.driving import new_id, run, sh

__all__: list[str] = []

pytestmark = pytest.mark.skipif(bool(namespaces_work()), reason=namespaces_work())
MEMORY = Limits(memory_bytes=1 << 28)
UNIFIED = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")]


def groups_of(sandbox: str) -> list[Path]:
    """Return the groups that a sandbox has now, in any hierarchy."""
    parents = find_places(Kernel.here()).parents.values()
    return [path for parent in {*parents} if (path := parent / "mcp-sandbox" / sandbox).exists()]


def membership(pid: int) -> list[str]:
    """Return the groups of a process, a line for each hierarchy."""
    return Path(f"/proc/{pid}/cgroup").read_text().splitlines()


@pytest.fixture
def memory_is_limited() -> None:
    """Skips where no control group limits memory."""
    places = find_places(Kernel.here())
    if "memory" not in places.parents:
        pytest.skip(places.missing["memory"].why)


@pytest.fixture
def unified() -> Iterator[Path]:
    """A group of version 2, also where it has no controllers; or a skip."""
    top = next((path for path in UNIFIED if (path / "cgroup.controllers").exists()), None)
    if top is None or not os.access(top / "cgroup.procs", os.W_OK):
        pytest.skip("this user may make no group of cgroup v2")
    path = top / f"mcp-sandbox-test-{secrets.token_hex(4)}"
    path.mkdir()
    yield path
    (path / "cgroup.kill").write_text("1")
    for _ in range(100):
        try:
            path.rmdir()
        except OSError:
            time.sleep(0.02)
        else:
            break


async def test_the_group_of_a_sandbox_is_there_as_long_as_it_is(state_directory: Path, memory_is_limited: None) -> None:
    async with LocalProvider(state_directory) as provider:
        spec = SandboxSpec(id=new_id(), limits=MEMORY)
        async with await provider.create(spec):
            (group, *_) = groups_of(spec.id)
            assert (group / "cgroup.procs").read_text().split(), "its init must be in there"
        await provider.destroy(spec.id)
        assert groups_of(spec.id) == []


async def test_none_is_left_when_its_server_ends(state_directory: Path, memory_is_limited: None) -> None:
    spec = SandboxSpec(id=new_id(), limits=MEMORY)
    async with LocalProvider(state_directory) as provider:
        sandbox = await provider.create(spec)
        assert sandbox.id == spec.id
        assert groups_of(spec.id)
    assert groups_of(spec.id) == []
    async with LocalProvider(state_directory) as provider:
        async with await provider.attach(spec.id) as sandbox:
            assert (await run(sandbox, "true")).exit_code == 0
            assert groups_of(spec.id)
        await provider.destroy(spec.id)


async def test_a_sandbox_without_such_limits_has_none(state_directory: Path) -> None:
    async with LocalProvider(state_directory) as provider:
        spec = SandboxSpec(id=new_id())
        async with await provider.create(spec):
            assert groups_of(spec.id) == []
        await provider.destroy(spec.id)


async def test_what_a_killed_server_left_is_swept_but_not_what_is_young(
    state_directory: Path, memory_is_limited: None
) -> None:
    parents = {*find_places(Kernel.here()).parents.values()}
    old, young = (f"sb_test{secrets.token_hex(4)}" for _ in range(2))
    for parent in parents:
        for name in (old, young):
            (parent / "mcp-sandbox" / name).mkdir(parents=True)
        os.utime(parent / "mcp-sandbox" / old, (1e9, 1e9))
    try:
        async with LocalProvider(state_directory):
            with anyio.fail_after(5):
                while groups_of(old):
                    await anyio.sleep(0.01)
            assert len(groups_of(young)) == len(parents)
    finally:
        for path in groups_of(old) + groups_of(young):
            path.rmdir()


async def test_the_group_of_a_sandbox_that_another_server_started_is_theirs(
    state_directory: Path, memory_is_limited: None
) -> None:
    spec = SandboxSpec(id=new_id(), limits=MEMORY)
    async with LocalProvider(state_directory) as theirs, await theirs.create(spec):
        async with LocalProvider(state_directory) as ours, await ours.attach(spec.id) as sandbox:
            hog = await run(sandbox, "dd", "if=/dev/zero", "of=/dev/null", "bs=1000000000", "count=1")
            assert hog.result.termination == "oom", "we read its counters"
        assert groups_of(spec.id)
        async with LocalProvider(state_directory) as ours:
            async with await ours.attach(spec.id):
                pass
            async with await ours.attach(spec.id):
                await ours.destroy(spec.id)
        assert groups_of(spec.id) == [], "who destroys the sandbox removes it"


async def test_a_group_that_is_still_busy_is_removed_later(memory_is_limited: None) -> None:
    """The kernel may still have a process when its end was told already."""
    cgroups = Cgroups(Kernel.here(), os.getpid())
    busy, other = (f"sb_test{secrets.token_hex(4)}" for _ in range(2))
    group = await cgroups.make(busy, MEMORY)
    async with await anyio.open_process(["sleep", "60"]) as process:
        (group.groups["memory"] / "cgroup.procs").write_text(str(process.pid))
        cgroups.remove(busy)
        assert groups_of(busy)
        process.kill()
        await process.wait()
    await cgroups.make(other, MEMORY)
    cgroups.remove(other)
    assert groups_of(busy) == groups_of(other) == []
    await cgroups.aclose()


async def test_inside_nothing_of_the_group_can_be_seen(state_directory: Path, memory_is_limited: None) -> None:
    """Neither its name nor the tree: whoever could write there would set its own limits."""
    async with LocalProvider(state_directory) as provider:
        spec = SandboxSpec(id=new_id(), limits=Limits(memory_bytes=1 << 28, cpu_count=1))
        async with await provider.create(spec) as sandbox:
            shown = (await run(sandbox, "cat", "/proc/self/cgroup")).stdout.decode()
            assert {line.split(":")[2] for line in shown.splitlines()} == {"/"}
            mounts = (await sh(sandbox, "cat /proc/self/mountinfo; ls -A /sys 2>/dev/null")).stdout.decode()
            assert "cgroup" not in mounts
            tried = await sh(
                sandbox, "mkdir /tmp/c && mount -t cgroup2 none /tmp/c; mount -t cgroup -o memory m /tmp/c"
            )
            assert tried.exit_code != 0
        await provider.destroy(spec.id)


async def test_a_snapshot_keeps_the_limits(state_directory: Path, memory_is_limited: None) -> None:
    """Its init starts anew, in a group of its own again."""
    async with LocalProvider(state_directory) as provider:
        spec = SandboxSpec(id=new_id(), limits=MEMORY)
        async with await provider.create(spec) as sandbox:
            await provider.discard(await sandbox.snapshot(SnapshotRequest()))
            hog = await run(sandbox, "dd", "if=/dev/zero", "of=/dev/null", "bs=1000000000", "count=1")
            assert hog.result.termination == "oom"
        await provider.destroy(spec.id)


async def test_version_2_starts_a_sandbox_in_its_group_at_once(tmp_path: Path, unified: Path) -> None:
    """`CLONE_INTO_CGROUP`: it was never anywhere else, and the kernel kills all of it with one write."""
    identity = choose_identity()
    ids = (
        tokens("map", f"0 {identity.start} {identity.count}")
        if identity.is_range
        else tokens("uid", identity.start, "gid", identity.gid)
    )
    options = tokens("namespaces", NAMESPACES, "capabilities", "0", "cgroup", unified, "grace_ms", 20_000)
    root = tokens(
        "fs", "/", "tmpfs", "mode=755", 6, "fs", "/proc", "proc", "", 14, "mkdir", "/dev", "touch", "/dev/null"
    )
    plan = options + ids + tokens("--") + root + tokens("bind", "/dev/null", "/dev/null", 10)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = os.memfd_create("seccomp")
    os.write(program, build_filter(platform.machine(), one_id=True))
    with ours, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(b"\0" + secrets.token_bytes(8))
        listener.listen()
        async with Launcher(tmp_path, identity) as launcher:
            pid, pidfd = await launcher.start(plan, [theirs.fileno(), listener.fileno(), program])
            frame = Frame.decode(await anyio.to_thread.run_sync(ours.recv, 1000))
            assert frame.type == Type.WELCOME, frame.payload
            (line,) = [each for each in membership(pid) if each.startswith("0::")]
            assert line.endswith(f"/{unified.name}")
            assert (unified / "cgroup.procs").read_text().split() == [str(pid)]
            (unified / "cgroup.kill").write_text("1")
            with anyio.fail_after(5):
                await anyio.wait_readable(pidfd)
    os.close(pidfd)
    os.close(program)
