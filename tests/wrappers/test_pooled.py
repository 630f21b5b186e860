"""Sandboxes that were started ahead, through the in-memory double."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.errors import NotFoundError, ProviderError, StateError
from mcp_sandbox.core.leftovers import KEEPER, Remembered
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import Limits, SandboxId, SandboxSpec, Workspace, WorkspaceMode
from mcp_sandbox.providers.memory import MemoryProvider
from mcp_sandbox.providers.memory.engine import CAPABILITIES
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.testing.driving import HANG_S, put, read_file
from mcp_sandbox.wrappers.pooled import PooledProvider

SIZE = 2


class CountingProvider(MemoryProvider):
    """Remembers what it was asked to create, and can be out of order."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.created: list[SandboxSpec] = []
        self.broken = False

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if self.broken:
            raise ProviderError("No sandbox", why="the engine is out of order", fix="Wait")
        self.created.append(spec)
        return await super().create(spec)


@pytest.fixture
def engine(tmp_path: Path) -> CountingProvider:
    return CountingProvider(tmp_path)


@pytest.fixture
async def pool(engine: CountingProvider) -> AsyncIterator[PooledProvider]:
    async with PooledProvider(engine, size=SIZE) as pool:
        yield pool


def spec(**fields: object) -> SandboxSpec:
    return replace(SandboxSpec(id=new_sandbox_id()), **fields)  # pyright: ignore[reportArgumentType]


async def ready(provider: Provider) -> "list[SandboxId]":
    """Return the blank ones, as soon as there are enough."""
    with anyio.fail_after(HANG_S):
        while len(found := [info.id for info in await provider.list() if KEEPER in info.labels]) < SIZE:
            await asyncio.sleep(0)
    return found


async def test_the_second_of_a_kind_is_one_that_was_started_ahead(
    pool: PooledProvider, engine: CountingProvider
) -> None:
    await pool.create(spec())
    await ready(engine)
    asked = spec(env={"A": "1"}, labels={"mine": "1"})
    sandbox = await pool.create(asked)
    assert sandbox.id == asked.id
    assert asked not in engine.created
    assert [info.labels for info in await pool.list() if info.id == asked.id] == [{"mine": "1"}]
    await ready(engine)
    assert len(engine.created) == 1 + SIZE + 1


async def test_what_is_expected_is_started_before_anybody_asks(pool: PooledProvider, engine: CountingProvider) -> None:
    await pool.prepare(spec())
    await ready(engine)
    asked = spec()
    assert (await pool.create(asked)).id == asked.id
    assert asked not in engine.created


async def test_one_with_another_spec_is_made_and_from_then_on_kept_ready(
    pool: PooledProvider, engine: CountingProvider
) -> None:
    await pool.prepare(spec())
    before = await ready(engine)
    other = spec(limits=Limits(pids=100))
    await pool.create(other)
    assert other in engine.created
    with anyio.fail_after(HANG_S):
        while set(await ready(engine)) & set(before):
            await asyncio.sleep(0)
    asked = spec(limits=Limits(pids=100))
    await pool.create(asked)
    assert asked not in engine.created


async def test_a_project_is_brought_when_it_is_handed_out(
    pool: PooledProvider, engine: CountingProvider, tmp_path: Path
) -> None:
    source = tmp_path / "project"
    source.mkdir()
    workspace = Workspace(mode=WorkspaceMode.OVERLAY, source=str(source))
    await pool.prepare(spec(workspace=workspace))
    await ready(engine)
    (source / "late").write_text("written later")
    asked = spec(workspace=workspace)
    sandbox = await pool.create(asked)
    assert asked not in engine.created
    assert await read_file(sandbox, "/workspace/late") == b"written later"


async def test_a_dead_one_is_never_handed_out(pool: PooledProvider, engine: CountingProvider) -> None:
    await pool.prepare(spec())
    for blank in await ready(engine):
        await engine.destroy(blank)
    asked = spec()
    sandbox = await pool.create(asked)
    assert asked in engine.created
    await put(sandbox, "/workspace/file", b"works")


async def test_many_at_once_get_one_each(pool: PooledProvider, engine: CountingProvider) -> None:
    await pool.prepare(spec())
    await ready(engine)
    asked = [spec() for _ in range(8)]
    made = await asyncio.gather(*[pool.create(each) for each in asked])
    assert [sandbox.id for sandbox in made] == [each.id for each in asked]
    assert {each.id for each in asked} <= {info.id for info in await pool.list()}


async def test_a_taken_id_is_refused_and_the_blank_one_stays(pool: PooledProvider, engine: CountingProvider) -> None:
    there = spec()
    await pool.create(there)
    before = await ready(engine)
    with pytest.raises(StateError):
        await pool.create(replace(spec(), id=there.id))
    assert set(before) == set(await ready(engine))


async def test_an_engine_out_of_order_fails_the_next_create_and_not_the_pool(
    pool: PooledProvider, engine: CountingProvider
) -> None:
    engine.broken = True
    await pool.prepare(spec())
    with pytest.raises(ProviderError):
        await pool.create(spec())
    engine.broken = False
    await pool.create(spec())
    assert await ready(engine)


async def test_blank_ones_show_in_no_list_and_go_with_the_pool(engine: CountingProvider) -> None:
    async with PooledProvider(engine, size=SIZE) as pool:
        await pool.prepare(spec())
        await ready(engine)
        assert await pool.list() == []
    assert await engine.list() == []


async def test_what_a_killed_process_kept_ready_is_removed_and_what_a_live_one_keeps_is_not(
    engine: CountingProvider, pool: PooledProvider
) -> None:
    """Its pid may belong to another process by now."""
    await pool.prepare(spec())
    live = await ready(engine)
    left = await engine.create(spec(labels={KEEPER: f"{os.getpid()}/17/another-boot"}))
    remembered = Remembered(sandbox=lambda _: False, snapshot=lambda _: False)
    async with PooledProvider(engine) as other:
        for dry_run in (True, False):
            found = await other.collect(remembered, kept_s=0, now=0, dry_run=dry_run)
            assert [leftover.name for leftover in found] == [left.id]
    assert set(live) == {info.id for info in await engine.list()}
    with pytest.raises(NotFoundError):
        await engine.attach(left.id)


class Unadoptable(MemoryProvider):
    """A provider of somebody who never heard of it."""

    capabilities = replace(CAPABILITIES, verbs={})  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


@pytest.mark.parametrize("size", [0, 1])
async def test_a_provider_that_cannot_works_without_a_pool_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    async with PooledProvider(Unadoptable(tmp_path), size=size) as provider:
        asked = spec()
        assert (await provider.create(asked)).id == asked.id
        assert [info.id for info in await provider.list()] == [asked.id]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * size
    assert ("--pool (MCP_SANDBOX_POOL) does nothing" in caplog.text) is bool(size)
