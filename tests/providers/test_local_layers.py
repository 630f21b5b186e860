"""A snapshot's layer is never written again, whoever is in the middle of a write."""

import sys
import time
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.files import ListRequest, ReadRequest, WriteRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.core.streams import read_all
from mcp_sandbox.engines.identity import choose_identity
from mcp_sandbox.engines.layer_store import BEING_MADE, LayerStore
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.store.identity import new_sandbox_id

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")


class _Halting(ByteReceiveStream):
    """Gives one half, waits until it may go on, and gives the other."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.go_on = anyio.Event()
        self._halves = [b"second", b"first "]

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self._halves:
            raise anyio.EndOfStream
        if len(self._halves) == 1:
            self.begun.set()
            await self.go_on.wait()
        return self._halves.pop()

    async def aclose(self) -> None:
        self._halves.clear()


async def _content(sandbox: Sandbox, path: str) -> bytes:
    async with await sandbox.read(ReadRequest(path=path)) as reader:
        return await read_all(reader, 1000)


async def test_a_snapshot_waits_for_a_write_under_way_through_another_connection(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider, LocalProvider(tmp_path) as other:
        sandbox = await provider.create(SandboxSpec(id=new_sandbox_id()))
        second = await other.attach(sandbox.id)
        source = _Halting()
        taken: list[NativeContent] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.write, WriteRequest(path="/workspace/file"), source)
            await source.begun.wait()

            async def snapshot() -> None:
                taken.append(await second.snapshot(SnapshotRequest()))

            tasks.start_soon(snapshot)
            await anyio.sleep(0.2)
            assert not taken
            source.go_on.set()
        copy = await other.restore(taken[0], SandboxSpec(id=new_sandbox_id()))
        assert await _content(copy, "/workspace/file") == b"first second"
        assert [entry.path for entry in (await copy.list(ListRequest(path="/workspace"))).entries] == [
            "/workspace/file"
        ]
        for made in (sandbox, copy):
            await provider.destroy(made.id)


async def test_a_base_that_is_being_made_is_not_taken_for_rubbish(tmp_path: Path) -> None:
    """A server that swept meanwhile removed what another one, or it itself, was about to use."""
    store = LayerStore(tmp_path, choose_identity())
    (tmp_path / "trash" / f"{BEING_MADE}1234").mkdir()
    (tmp_path / "trash" / "layer-1234").mkdir()
    assert store.collect("") == ["trash/layer-1234"]
    assert sorted(store.collect("", now=time.time() + 7200)) == [f"trash/{BEING_MADE}1234", "trash/layer-1234"]
