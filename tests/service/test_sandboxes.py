"""Sandboxes by handle, the default one, and what happens when somebody else changes them."""

import time
from collections.abc import AsyncGenerator
from pathlib import Path
from types import TracebackType

import anyio
import pytest
from sandbox_world import Server, World, content, put, run

from mcp_sandbox.core.delegation import DelegatingProvider, DelegatingSandbox
from mcp_sandbox.core.errors import (
    ConfigError,
    NotFoundError,
    SandboxError,
    SandboxGoneError,
    StateError,
)
from mcp_sandbox.core.exec import ExecRequest, Execution
from mcp_sandbox.core.files import StatRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxState

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


# -- the default sandbox


async def test_b086_the_first_use_creates_the_default_sandbox(server: Server) -> None:
    live = await server.sandboxes.open()
    assert live.record.is_default
    assert live.notices == ()
    assert live.directory.is_dir()
    assert await run(live.sandbox, "echo", "hello") == "hello\n"
    assert await server.sandboxes.open("") == live


async def test_b077_nothing_is_created_or_opened_before_the_first_use(world: World) -> None:
    async with world.server() as server:
        assert list(await server.sandboxes.list()) == []
        assert await server.sandboxes.find() is None
        assert list(await server.snapshots.list()) == []
    assert world.opened == []
    assert await world.records() == ()


async def test_a_restarted_server_finds_the_default_sandbox_again(world: World) -> None:
    async with world.server() as server:
        first = await server.sandboxes.open()
        await put(first.sandbox, "/workspace/a", "kept")
    async with world.server() as server:
        again = await server.sandboxes.open()
        assert again.record.id == first.record.id
        assert again.notices == ()
        assert await content(again.sandbox, "/workspace/a") == "kept"


async def test_b085_two_servers_of_a_project_use_one_sandbox(world: World) -> None:
    async with world.server() as one, world.server() as other:
        ids: set[SandboxId] = set()

        async def first_use(server: Server) -> None:
            ids.add((await server.sandboxes.open()).record.id)

        async with anyio.create_task_group() as tasks:
            for server in (one, other) * 5:
                tasks.start_soon(first_use, server)
        assert len(ids) == 1
        await put((await one.sandboxes.open()).sandbox, "/workspace/a", "shared")
        assert await content((await other.sandboxes.open()).sandbox, "/workspace/a") == "shared"


async def test_projects_and_principals_have_their_own(world: World) -> None:
    async with world.server() as one, world.server(project="/q") as two, world.server(principal="you") as three:
        ids = {(await server.sandboxes.open()).record.id for server in (one, two, three)}
        assert len(ids) == 3
        assert [summary.record.id for summary in await two.sandboxes.list()] == [(await two.sandboxes.open()).record.id]


async def test_b082_a_lost_default_sandbox_is_replaced_and_said_so_once(world: World, server: Server) -> None:
    lost = await server.sandboxes.open()
    await _lose(world, lost.record.id)
    with pytest.raises(SandboxGoneError):
        await run(lost.sandbox, "true")
    replaced = await server.sandboxes.open()
    assert replaced.record.id != lost.record.id
    assert [lost.record.id in notice and replaced.record.id in notice for notice in replaced.notices] == [True]
    assert (await server.sandboxes.open()).notices == ()
    assert not lost.directory.exists()


async def test_b079_a_default_sandbox_lost_between_two_runs_is_replaced_and_said_so_once(world: World) -> None:
    async with world.server() as server:
        lost = await server.sandboxes.open()
    await _lose(world, lost.record.id)
    async with world.server() as server:
        assert lost.record.id in (await server.sandboxes.open()).notices[0]
        assert (await server.sandboxes.open()).notices == ()
    async with world.server() as server:
        assert (await server.sandboxes.open()).notices == ()


async def test_of_parallel_calls_one_is_told(world: World, server: Server) -> None:
    lost = await server.sandboxes.open()
    async with world.server() as other:
        await other.sandboxes.destroy(lost.record.id)
    notices: list[str] = []

    async def call() -> None:
        notices.extend((await server.sandboxes.open()).notices)

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(call)
    assert len(notices) == 1


async def test_a_default_sandbox_destroyed_by_another_server_is_replaced_and_said_so(world: World) -> None:
    async with world.server() as one, world.server() as other:
        old = await one.sandboxes.open()
        await other.sandboxes.destroy(old.record.id)
        new = await other.sandboxes.open()
        assert new.notices == ()  # it knows: it destroyed the old one itself
        mine = await one.sandboxes.open()
        assert mine.record.id == new.record.id
        assert old.record.id in mine.notices[0]


async def test_a_project_is_not_tied_to_a_provider_that_does_not_exist(world: World) -> None:
    async with world.server(provider="mistyped") as server:
        with pytest.raises(ConfigError, match="mistyped"):
            await server.sandboxes.open()
        assert await server.sandboxes.list() == []
    async with world.server() as server:
        assert (await server.sandboxes.open()).record.provider == world.provider


async def test_the_second_use_costs_no_more_than_a_stat(server: Server) -> None:
    live = await server.sandboxes.open()
    started = time.perf_counter()
    for _ in range(2000):
        assert await server.sandboxes.open() is live
    assert (time.perf_counter() - started) / 2000 < 200e-6  # 50 us are meant; this machine may be busy


async def test_use_is_noted(world: World, server: Server) -> None:
    live = await server.sandboxes.open()
    assert world.registry.get(live.record.id).last_used_at >= live.record.created_at


# -- a sandbox that ends while it is in use


class _Dying(DelegatingSandbox):
    """Ends once, before the next command."""

    dead = False

    async def exec(self, request: ExecRequest) -> Execution:
        if _Dying.dead:
            raise SandboxGoneError("Sandbox is gone", why="its init was killed", fix="Use it again")
        return await super().exec(request)


class _DyingProvider(DelegatingProvider):
    def wrap(self, sandbox: Sandbox) -> Sandbox:
        return _Dying(sandbox)

    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        _Dying.dead = False
        return await super().attach(sandbox_id)


async def test_b038_a_command_finds_a_restarted_sandbox_and_the_next_answer_says_so(world: World) -> None:
    world.wrap = _DyingProvider
    async with world.server() as server:
        live = await server.sandboxes.open()
        _Dying.dead = True
        assert await run(live.sandbox, "echo", "again") == "again\n"
        told = await server.sandboxes.open()
        assert ["started again" in notice for notice in told.notices] == [True]
        assert (await server.sandboxes.open()).notices == ()


async def test_a_lost_sandbox_with_a_handle_is_an_error_that_says_what_to_do(world: World, server: Server) -> None:
    (live,) = await server.sandboxes.create(name="box")
    await _lose(world, live.record.id)
    with pytest.raises(SandboxGoneError):
        await live.sandbox.stat(StatRequest(path="/workspace"))
    with pytest.raises(NotFoundError, match="'box' is gone"):
        await server.sandboxes.open("box")
    with pytest.raises(NotFoundError, match="No sandbox 'box'"):
        await server.sandboxes.open("box")


# -- listing and destroying


async def test_the_list_says_what_the_engine_says(world: World, server: Server) -> None:
    default = await server.sandboxes.open()
    (box,) = await server.sandboxes.create(name="box")
    await _lose(world, box.record.id)
    first, second = await server.sandboxes.list()
    assert (first.record.id, first.is_current, first.state) == (default.record.id, True, SandboxState.RUNNING)
    assert (second.record.id, second.is_current, second.state) == (box.record.id, False, SandboxState.GONE)


async def test_b081_an_engine_that_hangs_does_not_hold_up_the_list(world: World) -> None:
    class Hanging(DelegatingProvider):
        async def list(self) -> list[object]:  # type: ignore[override]
            await anyio.sleep_forever()
            return []

    world.wrap = Hanging
    async with world.server() as server:
        await server.sandboxes.open()
        with anyio.fail_after(8):
            (summary,) = await server.sandboxes.list()
        assert summary.state is None
        assert "did not answer" in summary.detail


async def test_the_person_at_the_command_line_sees_every_project(world: World) -> None:
    async with world.server(project="/q") as other:
        await other.sandboxes.create(name="there")
    async with world.server() as narrow, world.server(everywhere=True) as wide:
        await narrow.sandboxes.create(name="here")
        assert [summary.record.name for summary in await narrow.sandboxes.list()] == ["here"]
        assert {summary.record.name for summary in await wide.sandboxes.list()} == {"here", "there"}
        assert (await wide.sandboxes.open("there")).record.project == "/q"
        with pytest.raises(NotFoundError):
            await narrow.sandboxes.open("there")


async def test_a_destroyed_sandbox_leaves_nothing(world: World, server: Server) -> None:
    live = await server.sandboxes.open()
    assert (await server.sandboxes.destroy(live.record.id)).id == live.record.id
    assert not live.directory.exists()
    async with world.engine() as provider:
        assert list(await provider.list()) == []
    with pytest.raises(NotFoundError):
        await server.sandboxes.destroy(live.record.id)
    assert (await server.sandboxes.open()).notices == ()


async def test_what_was_begun_is_destroyed_even_if_the_caller_is_cancelled(world: World) -> None:
    class Slow(DelegatingProvider):
        async def destroy(self, sandbox_id: SandboxId) -> None:
            await anyio.sleep(0.05)
            await super().destroy(sandbox_id)

    world.wrap = Slow
    async with world.server() as server:
        live = await server.sandboxes.open()
        with anyio.move_on_after(0.01):
            await server.sandboxes.destroy(live.record.id)
        assert await world.records() == ()


# -- the end


class _Recorder(DelegatingProvider):
    trail: list[str] = []  # noqa: RUF012 (read by the tests)

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        return _Closing(sandbox)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await anyio.lowlevel.checkpoint()
        _Recorder.trail.append("provider")
        await super().__aexit__(kind, error, trace)


class _Closing(DelegatingSandbox):
    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()
        _Recorder.trail.append("sandbox")
        await super().aclose()


@pytest.mark.parametrize("how", ["return", "error", "cancel"])
async def test_sandboxes_then_providers_are_closed_however_a_server_ends(world: World, how: str) -> None:
    world.wrap = _Recorder
    _Recorder.trail.clear()
    with anyio.CancelScope() as scope:
        try:
            async with world.server() as server:
                await server.sandboxes.open()
                if how == "error":
                    raise StateError("a", why="b", fix="c")
                if how == "cancel":
                    scope.cancel()
                    await anyio.sleep_forever()
        except StateError:
            assert how == "error"
    assert _Recorder.trail == ["sandbox", "provider"]
    assert scope.cancelled_caught is (how == "cancel")


async def test_an_ended_server_refuses(world: World) -> None:
    async with world.server() as server:
        pass
    with pytest.raises(SandboxError, match="ending"):
        await server.sandboxes.open()
