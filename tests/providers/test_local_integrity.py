"""What is frozen stays as it was, or `verify` says what did not."""

import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.engines import integrity, squashing
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.testing.driving import HANG_S, put, run, sh

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")

FILL = """
import os
os.makedirs("/workspace/d/e")
open("/workspace/d/e/file", "wb").write(bytes(300_000) + b"some text" + bytes(300_000))
open("/workspace/two\\nlines", "w").close()
os.setxattr("/workspace/two\\nlines", "user.note", b"kept")
os.symlink("target", "/root/link")
os.truncate("/workspace/d/e/file", 1 << 40)
os.chmod("/workspace/d/e", 0)
"""


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    """The embedded engine on a store of its own."""
    async with LocalProvider(tmp_path) as opened:
        yield opened


def engine_of(provider: LocalProvider) -> Any:
    """Return the engine: what is looked at is on the disk, and merging has no verb."""
    return getattr(provider, "_engine")  # noqa: B009 (private)


async def faults(tmp_path: Path, content: NativeContent) -> list[str]:
    """Return what a command that comes later finds wrong."""
    async with LocalProvider(tmp_path) as later:
        return [*await later.verify(content)]


async def filled(provider: LocalProvider) -> Sandbox:
    """Return a sandbox with a file, a link and an attribute."""
    sandbox = await provider.create(SandboxSpec(id=new_sandbox_id()))
    assert (await run(sandbox, "python3", "-c", FILL)).exit_code == 0
    return sandbox


def layer_of(provider: LocalProvider, content: NativeContent) -> Path:
    """Return the one layer of a snapshot."""
    (layer,) = engine_of(provider).store.load_snapshot(content.ref).layers
    return engine_of(provider).store.root / "layers" / layer


def flip(layer: Path) -> None:
    (layer / "workspace/d/e").chmod(0o700)
    with (layer / "workspace/d/e/file").open("r+b") as file:
        file.seek(300_003)
        file.write(b"E")


def add(layer: Path) -> None:
    (layer / "usr/new").touch()


def remove(layer: Path) -> None:
    (layer / "root/root/link").unlink()


def spoil_list(layer: Path) -> None:
    whole = bytearray((layer / "contents").read_bytes())
    whole[-100] ^= 1
    (layer / "contents").write_bytes(whole)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (flip, "'/workspace/d/e/file' differs: content"),
        (add, "'/usr/new' was not there"),
        (remove, "'/root/link' is gone"),
        (spoil_list, "the list of what is in it is damaged"),
    ],
)
async def test_verify_names_what_is_not_as_it_was(
    provider: LocalProvider, tmp_path: Path, damage: Callable[[Path], None], named: str
) -> None:
    sandbox = await filled(provider)
    content = await sandbox.snapshot(SnapshotRequest())
    assert await faults(tmp_path, content) == []
    assert await faults(tmp_path, content) == []
    damage(layer_of(provider, content))
    assert any(named in fault for fault in await faults(tmp_path, content))
    await sandbox.aclose()


async def test_layers_are_listed_behind_the_answer(
    provider: LocalProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity, "QUIET_S", 0.05)
    sandbox = await filled(provider)
    content = await sandbox.snapshot(SnapshotRequest())
    listed = layer_of(provider, content) / "contents"
    with anyio.fail_after(HANG_S):
        while not listed.exists():
            await anyio.sleep(0.02)
    flip(listed.parent)
    assert await faults(tmp_path, content)
    await sandbox.aclose()


async def test_a_merged_layer_does_not_bless_what_went_wrong_before(
    provider: LocalProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await filled(provider)
    first = await sandbox.snapshot(SnapshotRequest())
    assert await faults(tmp_path, first) == []
    damaged = layer_of(provider, first)
    (damaged / "workspace/d/e").chmod(0o700)
    before = (damaged / "workspace/d/e/file").stat()
    flip(damaged)
    os.utime(damaged / "workspace/d/e/file", ns=(before.st_atime_ns, before.st_mtime_ns))
    await put(sandbox, "/workspace/more", b"x")
    await sandbox.snapshot(SnapshotRequest())
    await put(sandbox, "/workspace/more", b"y")
    last = await sandbox.snapshot(SnapshotRequest())
    monkeypatch.setattr(squashing, "DEPTH", 2)
    engine = engine_of(provider)
    await squashing.squash(engine.store, engine.launcher, engine.marks)
    assert damaged.name not in engine.store.load_snapshot(last.ref).layers
    assert any("/workspace/d/e/file" in fault for fault in await faults(tmp_path, last))
    assert (await sh(sandbox, "cat more")).stdout == b"y"
    await sandbox.aclose()
