"""Deep stacks of layers are merged, and whatever is merged shows what it showed before."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_sandbox.core.differences import DiffRequest
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.engines import layer_store
from mcp_sandbox.engines.layer_store import EngineState, LayerStore
from mcp_sandbox.engines.squashing import DEPTH
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.testing.driving import HANG_S, put, run, sh, until_exit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")

FILES = SnapshotRequest()
CENSUS = """
cd /workspace && find . -printf '%P %y %m %U %G %T@ %l %s\\n' | sed 's/ [0-9]*$//;t' | sort
find . -type f -exec sha256sum {} + | sort -k2
ls -lR --time-style=full-iso /etc/hosts /root /usr/local/bin /opt 2>&1 | awk '{$2=""; print}'
"""
STEP = """
set -e
cd /workspace
n=$1
echo $n > file-$((n % 7))
echo $n >> appended
rm -rf gone-$((n % 5)); mkdir gone-$((n % 5)); echo $n > gone-$((n % 5))/inner
case $((n % 6)) in
0) mkdir -p deep/er; echo $n > deep/er/$n;;
1) rm -rf deep;;
2) mkdir -p deep; chmod 700 deep; ln -f file-1 hard-$n;;
3) rm -rf kind; ln -s $n kind;;
4) rm -rf kind; mkdir kind; mkfifo kind/fifo;;
5) [ -d moved ] && { rm -rf moved2; mv moved moved2; } || { mkdir moved; echo $n > moved/x; }; rm -f appended;;
esac
echo $n > /root/state; echo $n > /usr/local/bin/tool; rm -f /etc/hosts; [ $((n % 2)) = 0 ] || echo $n > /etc/hosts
"""


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    """The embedded engine on a store of its own."""
    async with LocalProvider(tmp_path) as opened:
        yield opened
        for info in await opened.list():
            await opened.destroy(info.id)


@pytest.fixture
def store(provider: LocalProvider) -> LayerStore:
    """The same store."""
    engine: Any = getattr(provider, "_engine")  # noqa: B009 (private: what is looked at is on the disk)
    return engine.store


async def _settled(provider: LocalProvider) -> None:
    """Wait until nothing is merged or removed any more, and layers that nobody names are gone, however young."""
    await _merged(provider)
    with pytest.MonkeyPatch.context() as patch:  # only while nobody makes a layer that is not named yet
        patch.setattr(layer_store, "SETTLED_S", 0.0)
        await _merged(provider)


async def _merged(provider: LocalProvider) -> None:
    engine: Any = getattr(provider, "_engine")  # noqa: B009
    engine.sweep()
    with anyio.fail_after(HANG_S):
        await asyncio.gather(*getattr(engine, "_behind"))  # noqa: B009


async def _census(sandbox: Sandbox) -> bytes:
    shown = await sh(sandbox, CENSUS)
    assert shown.exit_code == 0, shown.stderr
    return shown.stdout


async def _new(provider: LocalProvider) -> Sandbox:
    return await provider.create(SandboxSpec(id=new_sandbox_id()))


def _layers(store: LayerStore) -> set[str]:
    return {path.name for path in (store.root / "layers").iterdir()}


def _state(store: LayerStore, sandbox: Sandbox) -> EngineState:
    return store.load(sandbox.id)


@pytest.mark.timeout(180)
async def test_eighty_snapshots_in_a_row_stay_shallow_and_each_restores_to_its_own_content(
    provider: LocalProvider, store: LayerStore
) -> None:
    sandbox = await _new(provider)
    taken: list[tuple[NativeContent, bytes]] = []
    for number in range(80):
        done = await sh(sandbox, STEP, str(number))
        assert done.exit_code == 0, done.stderr
        census = await _census(sandbox)
        taken.append((await sandbox.snapshot(FILES), census))
        assert await _census(sandbox) == census
    await _settled(provider)
    assert len(_state(store, sandbox).layers) <= DEPTH
    assert all(len(store.load_snapshot(content.ref).layers) <= DEPTH for content, _ in taken)
    for content, census in taken[::5]:
        copy = await provider.restore(content, SandboxSpec(id=new_sandbox_id()))
        assert await _census(copy) == census
        await copy.aclose()
        await provider.destroy(copy.id)
    await sandbox.restore(taken[40][0])
    assert await _census(sandbox) == taken[40][1]


async def test_layers_that_only_one_another_need_become_one_and_what_they_hid_is_freed(
    provider: LocalProvider, store: LayerStore
) -> None:
    sandbox = await _new(provider)
    contents: list[NativeContent] = []
    for letter in b"abc":
        await put(sandbox, "/workspace/large", bytes([letter]) * (4 << 20))
        contents.append(await sandbox.snapshot(FILES))
    await put(sandbox, "/workspace/small", b"x")
    assert (await sh(sandbox, "echo twice > one; ln one other")).exit_code == 0
    await _settled(provider)
    assert _used(store) >= 12 << 20
    for content in contents[:2]:
        await provider.discard(content)
    await _settled(provider)
    assert len(store.load_snapshot(contents[2].ref).layers) == 1
    assert len(_state(store, sandbox).layers) == 1
    census = await _census(sandbox)
    await sandbox.snapshot(FILES)  # starts it on the merged layer
    assert await _census(sandbox) == census
    assert len(set((await run(sandbox, "stat", "-c", "%i", "one", "other")).stdout.split())) == 1
    await _settled(provider)
    assert _used(store) < 5 << 20
    await provider.discard(contents[2])
    await provider.destroy(sandbox.id)
    for ref in store.snapshots():
        store.remove_snapshot(ref)
    await _settled(provider)
    assert _layers(store) == set()


def _used(store: LayerStore) -> int:
    seen = {
        (status.st_ino): status.st_blocks * 512
        for path in (store.root / "layers").rglob("*")
        if (status := path.lstat())
    }
    return sum(seen.values())


async def test_a_layer_that_is_mounted_stays_until_its_sandbox_starts_again(
    provider: LocalProvider, store: LayerStore
) -> None:
    sandbox = await _new(provider)
    contents: list[NativeContent] = []
    for number in range(3):
        await put(sandbox, f"/workspace/{number}", b"%d" % number)
        contents.append(await sandbox.snapshot(FILES))
    mounted = set(_state(store, sandbox).layers)
    async with await sandbox.exec(ExecRequest(argv=("sh", "-c", "read line; cat 0 1 2"), stdin=True)) as running:
        for content in contents:
            await provider.discard(content)
        await _settled(provider)
        assert len(_state(store, sandbox).layers) == 1
        assert mounted <= _layers(store)
        await running.write_stdin(b"go on\n")
        assert (await until_exit(running)).stdout == b"012"
    await sandbox.snapshot(FILES)
    assert (await run(sandbox, "cat", "0", "1", "2")).stdout == b"012"
    await _settled(provider)
    assert not mounted & _layers(store)


async def test_a_renamed_directory_of_a_lower_layer_is_found_through_a_merged_one(
    provider: LocalProvider, store: LayerStore
) -> None:
    sandbox = await _new(provider)
    await put(sandbox, "/workspace/a/b/c", b"deep")
    base = await sandbox.snapshot(FILES)
    for script in (
        "mv a x; mkdir a; echo new > a/n",
        "mv x/b y; echo more > y/d",
        "mv y x/z; rm -r a",
        "mv x a; echo e > a/z/e",
    ):
        assert (await sh(sandbox, script)).exit_code == 0
        census = await _census(sandbox)
        last = await sandbox.snapshot(FILES)
        assert await _census(sandbox) == census
    refs = [ref for ref in store.snapshots() if ref not in (base.ref, last.ref)]
    for ref in refs:
        store.remove_snapshot(ref)
    before = (await provider.diff(DiffRequest(before=base, after=last))).changes
    await _settled(provider)
    assert len(store.load_snapshot(last.ref).layers) == 2
    copy = await provider.restore(last, SandboxSpec(id=new_sandbox_id()))
    assert await _census(copy) == census
    assert (await provider.diff(DiffRequest(before=base, after=last))).changes == before
    await sandbox.restore(base)
    assert (await run(sandbox, "cat", "a/b/c")).stdout == b"deep"


async def test_a_snapshot_taken_while_layers_are_merged_is_whole(provider: LocalProvider, store: LayerStore) -> None:
    sandbox = await _new(provider)
    taken: list[NativeContent] = []
    for number in range(DEPTH + 5):
        await put(sandbox, "/workspace/file", b"%d" % number)
        await put(sandbox, f"/workspace/{number}", b"%d" % number)
        taken.append(await sandbox.snapshot(FILES))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_merged, provider)
        for content in taken[:: DEPTH // 4]:
            copy = await provider.restore(content, SandboxSpec(id=new_sandbox_id()))
            assert (await run(copy, "cat", "file")).stdout == b"%d" % taken.index(content)
            await sandbox.snapshot(FILES)
    await _settled(provider)
    assert len(_state(store, sandbox).layers) <= DEPTH


LINK_STORM = """
import os
os.mkdir("storm")
os.chdir("storm")
open("first", "w").write("one file")
for number in range(17000):
    os.link("first", str(number))
"""


async def test_a_file_with_very_many_names_stays_one_file_when_layers_are_merged(
    provider: LocalProvider, store: LayerStore
) -> None:
    """Each merge gave it as many names again, until the file system refused: then the stack could only grow."""
    sandbox = await _new(provider)
    assert (await run(sandbox, "python3", "-c", LINK_STORM)).exit_code == 0
    first = await sandbox.snapshot(FILES)
    await put(sandbox, "/workspace/other", b"x")
    last = await sandbox.snapshot(FILES)
    await provider.discard(first)
    await _settled(provider)
    (layer,) = store.load_snapshot(last.ref).layers
    storm = store.root / "layers" / layer / "workspace" / "storm"
    assert len({path.stat().st_ino for path in storm.iterdir()}) == 1
    assert (storm / "16999").stat().st_nlink == 17001
    copy = await provider.restore(last, SandboxSpec(id=new_sandbox_id()))
    assert (await sh(copy, "cat storm/first storm/16999; ls storm | wc -l")).stdout == b"one fileone file17001\n"
    await copy.aclose()
    await provider.destroy(copy.id)
