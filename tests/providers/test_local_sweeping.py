"""What `local` removes from the disk behind the answers, it removes once."""

import socket
import sys
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.errors import ProviderUnavailableError
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.engines import local_carrier
from mcp_sandbox.engines.init_process import wait_dead
from mcp_sandbox.engines.launcher import Launcher
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.store.identity import new_sandbox_id

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")

MANY = 30


async def test_many_sandboxes_destroyed_at_once_are_removed_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    run = Launcher.run

    async def counted(launcher: Launcher, *arguments: str) -> bytes:
        if arguments[0] == "remove":
            removed.append(arguments[1])
        return await run(launcher, *arguments)

    async with LocalProvider(tmp_path / "state") as provider:
        made = [await provider.create(SandboxSpec(id=new_sandbox_id())) for _ in range(MANY)]
        monkeypatch.setattr(Launcher, "run", counted)
        async with anyio.create_task_group() as tasks:
            for sandbox in made:
                tasks.start_soon(provider.destroy, sandbox.id)
        with anyio.fail_after(10):
            while any((tmp_path / "state/trash").iterdir()):
                await anyio.sleep(0.02)
    assert {path.partition("/")[2].partition("-")[0] for path in removed} >= {sandbox.id for sandbox in made}
    assert len(removed) == len(set(removed))


async def test_what_was_destroyed_goes_although_another_sandbox_is_damaged(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "state") as provider:
        damaged, other = [await provider.create(SandboxSpec(id=new_sandbox_id())) for _ in range(2)]
        (tmp_path / "state/sandboxes" / damaged.id / "state.json").write_text("{")
        await provider.destroy(other.id)
        with anyio.fail_after(10):
            while any((tmp_path / "state/trash").iterdir()):
                await anyio.sleep(0.02)


async def test_a_sandbox_whose_init_says_nothing_is_told_listed_around_and_destroyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LocalProvider(tmp_path / "state") as provider:
        silent, other = [await provider.create(SandboxSpec(id=new_sandbox_id())) for _ in range(2)]
        await silent.aclose()
        directory = tmp_path / "state/sandboxes" / silent.id
        await wait_dead(directory)
        (directory / "agent.sock").unlink()
        monkeypatch.setattr(local_carrier, "WELCOME_S", 1.0)
        monkeypatch.chdir(directory)  # its path may be too long for a socket
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind("agent.sock")
            listener.listen()
            with pytest.raises(ProviderUnavailableError, match="did not answer"):
                await provider.attach(silent.id)
            assert [info.id for info in await provider.list()] == [other.id]
            await provider.destroy(silent.id)
        await provider.destroy(other.id)
        assert await provider.list() == []
