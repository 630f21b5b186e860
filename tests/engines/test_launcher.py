"""What the zygote of the embedded engine takes along from the server, and what it says when it cannot start one."""

import errno
import itertools
import os
import signal
import socket
from pathlib import Path

import anyio
import pytest
from guest_world import namespaces_work

from mcp_sandbox.core.errors import ProviderUnavailableError
from mcp_sandbox.engines.embedded import EmbeddedEngine
from mcp_sandbox.engines.identity import choose_identity
from mcp_sandbox.engines.launcher import Launcher, tokens

__all__: list[str] = []


@pytest.mark.skipif(bool(namespaces_work()), reason=namespaces_work())
async def test_b111_the_zygote_holds_none_of_the_servers_standard_streams(tmp_path: Path) -> None:
    """A server's standard streams carry the protocol: whoever holds them keeps the client waiting."""
    before = set(_children())
    async with Launcher(tmp_path, choose_identity()):
        (zygote,) = set(_children()) - before
        held = [os.readlink(f"/proc/{zygote}/fd/{number}") for number in range(3)]
    assert held == [os.devnull] * 3


@pytest.mark.skipif(bool(namespaces_work()), reason=namespaces_work())
async def test_a_step_that_the_launcher_itself_cannot_take_is_named_at_once(tmp_path: Path) -> None:
    """Where user namespaces are switched off, this is what `doctor` explains; nothing of the attempt is left open."""
    impossible = tokens("namespaces", 0x800, "--")  # CLONE_SIGHAND alone: man 2 clone, EINVAL
    before = set(_children())
    async with Launcher(tmp_path, choose_identity()) as launcher:
        (zygote,) = set(_children()) - before
        held = sorted(os.listdir(f"/proc/{zygote}/fd"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as anything, anyio.fail_after(5):
            for _ in range(3):
                with pytest.raises(OSError, match="clone namespaces") as raised:
                    await launcher.start(impossible, [anything.fileno()] * 3)
                assert raised.value.errno == errno.EINVAL
            while sorted(os.listdir(f"/proc/{zygote}/fd")) != held:  # it answers first, then it closes
                await anyio.sleep(0.01)


@pytest.mark.skipif(bool(namespaces_work()), reason=namespaces_work())
async def test_an_answer_that_came_too_late_is_not_taken_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every sandbox would from then on be taken for the one that was started before it."""
    impossible = tokens("namespaces", 0x800, "--")  # CLONE_SIGHAND alone: man 2 clone, EINVAL
    async with Launcher(tmp_path, choose_identity()) as launcher:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as anything:
            os.kill(launcher.pid, signal.SIGSTOP)
            try:
                with monkeypatch.context() as quick:
                    quick.setattr("mcp_sandbox.engines.launcher.ANSWER_S", 0.1)
                    for _ in range(2):
                        with pytest.raises(ProviderUnavailableError, match="did not answer"):
                            await launcher.start(impossible, [anything.fileno()] * 3)
            finally:
                os.kill(launcher.pid, signal.SIGCONT)
            with anyio.fail_after(5):
                with pytest.raises(OSError, match="open_tree") as raised:
                    await launcher.mount_idmapped(str(tmp_path / "missing"), "missing")
                assert "clone namespaces" not in str(raised.value)
                with pytest.raises(OSError, match="clone namespaces"):
                    await launcher.start(impossible, [anything.fileno()] * 3)


def _children() -> list[str]:
    """The processes that any thread of this one started."""
    return [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]


@pytest.mark.skipif(bool(namespaces_work()), reason=namespaces_work())
async def test_an_engine_whose_opening_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    before, children = sorted(os.listdir("/proc/self/fd")), set(_children())
    opened = False
    for tenth_ms in itertools.count(1):
        with anyio.move_on_after(tenth_ms / 10_000):
            async with EmbeddedEngine(tmp_path):
                opened = True
        if opened:
            break
        assert sorted(os.listdir("/proc/self/fd")) == before
        assert set(_children()) == children


@pytest.mark.skipif(bool(namespaces_work()), reason=namespaces_work())
async def test_work_on_a_tree_that_nobody_waits_for_ends_at_once(tmp_path: Path) -> None:
    """A server that ends does not wait until a large tree is removed."""
    for number in range(200):
        (tmp_path / "tree" / str(number)).mkdir(parents=True)
        for name in range(100):
            (tmp_path / "tree" / str(number) / str(name)).touch()
    async with Launcher(tmp_path, choose_identity()) as launcher:
        before = set(_children())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(launcher.run, "remove", "tree")
            with anyio.fail_after(5):
                while not set(_children()) - before:
                    await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(5):
            while set(_children()) - before:
                await anyio.sleep(0.001)
        assert (tmp_path / "tree").exists()
        await launcher.run("remove", "tree")
    assert not (tmp_path / "tree").exists()
