"""Creating sandboxes, and what is left when a provider fails or a caller goes away."""

import errno
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from sandbox_world import Server, World, content, put

from mcp_sandbox.core.delegation import DelegatingProvider
from mcp_sandbox.core.errors import (
    ConfigError,
    InvalidRequestError,
    ProviderUnavailableError,
    StateError,
    UnsupportedError,
)
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.store.registry import Registry, Seen

__all__: list[str] = []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.make(tmp_path)


@pytest.fixture
async def server(world: World) -> AsyncGenerator[Server]:
    async with world.server() as opened:
        yield opened


async def _lose(world: World, sandbox_id: SandboxId) -> None:
    """Have the engine lose a sandbox behind everybody's back."""
    async with world.engine() as provider:
        await provider.destroy(sandbox_id)


# -- creating


async def test_created_sandboxes_are_found_by_id_prefix_and_name(server: Server) -> None:
    (live,) = await server.sandboxes.create(name="box")
    for handle in (live.record.id, live.record.id[:12], live.record.id[3:14], "box"):
        assert (await server.sandboxes.open(handle)).record.id == live.record.id
    assert not live.record.is_default


async def test_several_are_created_at_once_with_numbered_names(server: Server) -> None:
    made = await server.sandboxes.create(name="w", count=12)
    assert [live.record.name for live in made] == [f"w-{number}" for number in range(1, 13)]
    assert len({live.record.id for live in made}) == 12


@pytest.mark.parametrize("name", ["sb_x", "-x", "a b", "a/b", "ü", "x" * 64, "a\n", "."])
async def test_odd_names_are_refused(server: Server, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be used"):
        await server.sandboxes.create(name=name)


@pytest.mark.parametrize("count", [0, -1, 101])
async def test_odd_counts_are_refused(server: Server, count: int) -> None:
    with pytest.raises(InvalidRequestError):
        await server.sandboxes.create(count=count)


async def test_a_name_that_is_taken_is_refused(server: Server) -> None:
    await server.sandboxes.create(name="box")
    with pytest.raises(StateError, match="'box'"):
        await server.sandboxes.create(name="box")


async def test_all_or_none_are_created(world: World, server: Server) -> None:
    await server.sandboxes.create(name="w-5")
    with pytest.raises(StateError, match="'w-5'"):
        await server.sandboxes.create(name="w", count=9)
    assert [record.name for record in await world.records()] == ["w-5"]
    async with world.engine() as provider:
        assert len(await provider.list()) == 1


async def test_a_sandbox_from_a_snapshot_starts_as_that(server: Server) -> None:
    live = await server.sandboxes.open()
    await put(live.sandbox, "/workspace/a", "then")
    snapshot = (await server.snapshots.create()).snapshot
    await put(live.sandbox, "/workspace/a", "now")
    made = await server.sandboxes.create(from_snapshot=snapshot.id[:10], count=2)
    assert [await content(each.sandbox, "/workspace/a") for each in made] == ["then", "then"]
    assert [each.record.parent for each in made] == [snapshot.id] * 2
    assert await content(live.sandbox, "/workspace/a") == "now"


async def test_a_snapshot_cannot_become_a_sandbox_of_another_provider(world: World, server: Server) -> None:
    snapshot = (await server.snapshots.create()).snapshot
    with pytest.raises(UnsupportedError, match="'memory', not to 'local'"):
        await server.sandboxes.create(from_snapshot=snapshot.id, provider="local")
    assert len(await world.records()) == 1


async def test_an_unknown_provider_is_refused_before_anything_is_made(world: World, server: Server) -> None:
    with pytest.raises(ConfigError, match="docker, gvisor, local"):
        await server.sandboxes.create(provider="memry")
    assert await world.records() == ()


# -- failures of providers


class _Fragile(DelegatingProvider):
    """Cannot be opened or cannot create, as told."""

    opens = True
    creates = True
    hangs = False

    async def __aenter__(self) -> Provider:  # type: ignore[override]
        if not _Fragile.opens:
            raise ProviderUnavailableError("Engine not reached", why="it is off", fix="Start it")
        return await super().__aenter__()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if _Fragile.hangs:
            await anyio.sleep_forever()
        if not _Fragile.creates:
            raise UnsupportedError("Not created", why="limits", fix="Ask for less")
        return await super().create(spec)


@pytest.fixture
def fragile(world: World) -> type[_Fragile]:
    world.wrap = _Fragile
    _Fragile.opens = _Fragile.creates = True
    _Fragile.hangs = False
    return _Fragile


async def test_a_provider_that_does_not_open_is_tried_again_next_time(world: World, fragile: type[_Fragile]) -> None:
    fragile.opens = False
    async with world.server() as server:
        for _ in range(2):
            with pytest.raises(ProviderUnavailableError, match="Start it"):
                await server.sandboxes.open()
        fragile.opens = True
        await server.sandboxes.open()
        await server.sandboxes.create()
    assert world.opened == ["memory"] * 3


async def test_a_sandbox_that_cannot_be_created_leaves_no_record(world: World, fragile: type[_Fragile]) -> None:
    fragile.creates = False
    async with world.server() as server:
        for attempt in (server.sandboxes.open, server.sandboxes.create):
            with pytest.raises(UnsupportedError):
                await attempt()
            assert await world.records() == ()
        fragile.creates = True
        await server.sandboxes.open()


async def test_a_sandbox_whose_record_cannot_be_kept_is_not_left_in_the_engine(world: World) -> None:
    class Full(Registry):
        def mark_created(self, sandbox_id: SandboxId) -> Seen:
            raise OSError(errno.ENOSPC, "No space left on device")

    world.registry_class = Full
    async with world.server() as server:
        for attempt in (server.sandboxes.open, server.sandboxes.create):
            with pytest.raises(OSError, match="No space"):
                await attempt()
        assert await world.records() == ()
        async with world.engine() as provider:
            assert list(await provider.list()) == []


async def test_a_cancelled_first_use_is_taken_up_by_the_next(world: World, fragile: type[_Fragile]) -> None:
    fragile.hangs = True
    async with world.server() as server:
        with anyio.move_on_after(0.02):
            await server.sandboxes.open()
        (record,) = await world.records()
        fragile.hangs = False
        live = await server.sandboxes.open()
        assert live.record.id == record.id
        assert live.notices == ()


async def test_a_cancelled_creation_leaves_nothing(world: World, fragile: type[_Fragile]) -> None:
    fragile.hangs = True
    async with world.server() as server:
        with anyio.move_on_after(0.02):
            await server.sandboxes.create(count=3)
        assert await world.records() == ()


async def test_a_creation_cut_short_by_a_kill_is_completed_by_the_next_server(world: World) -> None:
    async with world.server() as server:
        live = await server.sandboxes.open()
    (live.directory / "creating").touch()  # killed after the engine had made it, before it was noted
    async with world.server() as server:
        again = await server.sandboxes.open()
        assert again.record.id == live.record.id
    (live.directory / "creating").touch()
    await _lose(world, live.record.id)  # killed before the engine had made it
    async with world.server() as server:
        again = await server.sandboxes.open()
        assert again.record.id == live.record.id
        assert again.notices == ()
        assert not (live.directory / "creating").exists()


async def test_a_sandbox_whose_engine_is_gone_can_be_forgotten(world: World, fragile: type[_Fragile]) -> None:
    async with world.server() as server:
        await server.sandboxes.open()
    fragile.opens = False
    (record,) = await world.records()
    async with world.server() as server:
        with pytest.raises(ProviderUnavailableError):
            await server.sandboxes.destroy(record.id)
        assert await world.records()
        await server.sandboxes.destroy(record.id, forget=True)
    assert await world.records() == ()
