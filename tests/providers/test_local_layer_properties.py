"""Whatever is done to a tree: layers show the same after they are merged, and a diff says what a plain walk would."""

import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_sandbox.core.differences import Action, DiffRequest, LiveState, State
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.engines import squashing
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.testing.driving import run
from tests.providers.layer_trees import CENSUS, CHANGE, ROOTS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")

EXAMPLES = int(os.environ.get("MCP_SANDBOX_TEST_EXAMPLES", "12"))
Census = Mapping[str, list[Any]]
Step = list[str]

NAMES = st.sampled_from(["a", "b", "c", "new\nline", "\udcff\udcfe", "x" * 255, ".wh.a"])
PATHS = st.tuples(st.sampled_from(ROOTS), st.lists(NAMES, min_size=1, max_size=3)).map(
    lambda found: "/".join([found[0], *found[1]])
)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["mkdir", "mkdir", "remove", "rmtree", "fifo", "bind", "whiteout", "touch"]), PATHS),
    st.tuples(st.sampled_from(["rename", "rename", "exchange", "link"]), PATHS, PATHS),
    st.tuples(st.sampled_from(["fill", "replace"]), PATHS, st.sampled_from(["", "1", "two", "x" * 5000])),
    st.tuples(st.just("symlink"), PATHS, st.sampled_from(["/etc/passwd", "a", "..", "/", "x" * 4000])),
    st.tuples(st.just("chmod"), PATHS, st.sampled_from(["0", "700", "7777", "555"])),
    st.tuples(st.just("chown"), PATHS, st.sampled_from(["0", "5"])),
    st.tuples(st.just("truncate"), PATHS, st.sampled_from(["0", "3", "100000"])),
    st.tuples(st.just("mark"), PATHS, st.sampled_from(["opaque", "redirect", "whiteout", "metacopy", "note"])),
    st.tuples(st.just("deep"), PATHS, st.just("20")),
).map(list)
HISTORIES = st.lists(st.lists(STEPS, min_size=1, max_size=12), min_size=3, max_size=5)


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    """The embedded engine, in memory where there is room: on a disk each example takes seconds."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as directory:
        async with LocalProvider(Path(directory)) as opened:
            yield opened


async def census(sandbox: Sandbox) -> Census:
    """Return what a walk inside finds."""
    done = await run(sandbox, "python3", "-c", CENSUS, *ROOTS)
    assert done.exit_code == 0, done.stderr
    found: dict[str, list[Any]] = json.loads(done.stdout)
    found[ROOTS[0]].pop()  # the time of a mount point is that of the layer that is written
    return found


def plain_differences(before: Census, after: Census) -> dict[str, Action]:
    """Return what a walk of both states says: times and extended attributes are no change, and sockets are nothing."""
    found: dict[str, Action] = {}
    for path in before.keys() | after.keys():
        old, new = (each if each and each[0] != "s" else None for each in (before.get(path), after.get(path)))
        if old is None and new is not None:
            found[path] = Action.ADDED
        elif old is not None and new is None:
            found[path] = Action.DELETED
        elif old is not None and new is not None:
            facts = slice(2, 5) if old[0] == "l" else slice(1, 5)
            if old[0] != new[0]:
                found[path] = Action.TYPE_CHANGED
            elif old[facts] != new[facts]:
                found[path] = Action.MODIFIED
    return found


async def differences(provider: LocalProvider, before: State, after: State) -> dict[str, Action]:
    """Return what the engine says, of the places that are walked."""
    found = await provider.diff(DiffRequest(before=before, after=after, paths=ROOTS))
    assert (found.truncated, found.unseen) == (False, ())
    assert len({change.path for change in found.changes}) == len(found.changes)
    return {change.path: change.action for change in found.changes}


async def shown_by(provider: LocalProvider, content: NativeContent) -> Census:
    """Return what a snapshot shows when it is mounted."""
    copy = await provider.restore(content, SandboxSpec(id=new_sandbox_id()))
    try:
        return await census(copy)
    finally:
        await copy.aclose()
        await provider.destroy(copy.id)


@pytest.mark.timeout(20 + 15 * EXAMPLES)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=HISTORIES)
async def test_merged_layers_show_what_they_showed_and_a_diff_says_what_changed(
    provider: LocalProvider, history: list[list[Step]]
) -> None:
    engine: Any = getattr(provider, "_engine")  # noqa: B009 (private: merging has no verb)
    sandbox = await provider.create(SandboxSpec(id=new_sandbox_id()))
    taken: list[tuple[NativeContent, Census]] = []
    try:
        await run(sandbox, "mkdir", "-p", *ROOTS)
        for steps in history:
            await run(sandbox, "python3", "-c", CHANGE, json.dumps(steps))
            shown = await census(sandbox)
            if taken:
                content, before = taken[-1]
                live = await differences(provider, content, LiveState(sandbox=sandbox.id))
                assert live == plain_differences(before, shown)
            taken.append((await sandbox.snapshot(SnapshotRequest()), shown))
        (first, at_first), (last, at_last) = taken[0], taken[-1]
        expected = plain_differences(at_first, at_last)
        assert await differences(provider, first, last) == expected
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(squashing, "DEPTH", 2)
            await squashing.squash(engine.store, engine.launcher, engine.marks)
        assert all(len(engine.store.load_snapshot(content.ref).layers) <= 2 for content, _ in taken)
        assert await shown_by(provider, last) == at_last
        assert await shown_by(provider, first) == at_first
        assert await differences(provider, first, last) == expected
    finally:
        await sandbox.aclose()
        await provider.destroy(sandbox.id)
        for content, _ in taken:
            await provider.discard(content)
