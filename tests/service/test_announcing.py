"""A project's own sandbox where somebody asks for another provider than it has."""

from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
from sandbox_world import World

from mcp_sandbox.core.capability import Capabilities, Isolation
from mcp_sandbox.core.delegation import DelegatingProvider
from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.core.provider import Sandbox

__all__: list[str] = []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.make(tmp_path)


async def test_b083_another_provider_is_announced_and_the_old_sandbox_stays(world: World) -> None:
    world.aliases["other"] = world.provider
    async with world.server() as server:
        old = await server.sandboxes.open()
    async with world.server(provider="other") as server:
        live = await server.sandboxes.open()
        assert live.record.id == old.record.id
        assert ["'other'" in notice for notice in live.notices] == [True]
        assert (await server.sandboxes.open()).notices == ()


class _Stronger(DelegatingProvider):
    """As every provider, with a kernel of its own in new sandboxes of one that is opened as the second."""

    opened = 0

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        _Stronger.opened += 1
        self._is_second = _Stronger.opened == 2
        return self

    @property
    def capabilities(self) -> Capabilities:
        found = super().capabilities
        return replace(found, isolation=Isolation.USER_KERNEL) if self._is_second else found

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        return sandbox


async def test_a_sandbox_with_weaker_isolation_than_the_provider_that_was_named_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.aliases["stronger"] = world.provider
    async with world.server() as server:
        old = await server.sandboxes.open()
    world.wrap = _Stronger
    monkeypatch.setattr(_Stronger, "opened", 0)
    async with world.server(provider="stronger") as server:
        for _ in range(2):
            with pytest.raises(
                ConfigError, match=r"'memory', whose isolation is weaker.*`mcp-sandbox rm --own`, or leave"
            ):
                await server.sandboxes.open()
        await server.sandboxes.destroy(old.record.id)
        assert (await server.sandboxes.open()).record.provider == "stronger"


async def test_the_person_at_the_command_line_gets_the_provider_that_was_named_or_an_error(world: World) -> None:
    world.aliases["other"] = world.provider
    async with world.server() as server:
        old = await server.sandboxes.open()
    async with world.server(provider="other", everywhere=True) as server:
        with pytest.raises(
            ConfigError, match=r"runs on provider 'memory'.*leave out --provider \(MCP_SANDBOX_PROVIDER"
        ):
            await server.sandboxes.open()
    async with world.server(provider=world.provider, everywhere=True) as server:
        assert (await server.sandboxes.open()).record.id == old.record.id


async def test_an_existing_sandbox_is_used_without_a_word_where_nobody_named_a_provider(world: World) -> None:
    world.aliases["other"] = world.provider
    async with world.server(provider="other") as server:
        old = await server.sandboxes.open()
    for everywhere in (False, True):
        async with world.server(everywhere=everywhere) as server:
            live = await server.sandboxes.open()
            assert (live.record.id, live.notices) == (old.record.id, ())
