"""Preparing sandboxes while somebody waits, on the embedded engine."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from sandbox_world import World, content

from mcp_sandbox.core.errors import CapacityError, ConfigError, ProviderUnavailableError, UnsupportedError
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.service.demands import Demands
from mcp_sandbox.service.preparation import Preparation, Step
from mcp_sandbox.service.preparing import Preparer
from mcp_sandbox.store.record import Owner

__all__: list[str] = []

_OWNER = Owner(principal="me", project="")


def _spec(name: str) -> SandboxSpec:
    return SandboxSpec(id=SandboxId(f"sb_{name}"))


async def test_who_waits_too_long_is_told_to_call_again_and_the_work_goes_on(
    tmp_path: Path, warm_state: Callable[[Path], Path]
) -> None:
    warm_state(tmp_path / "state")
    world = World.make(tmp_path, "local")
    demands = Demands(preparation=Preparation(steps=(Step(run="sleep 2; echo run >> /root/ran"),)))
    try:
        async with world.engine() as provider, Preparer(world.store, _OWNER, patience_s=0.2) as preparer:
            with pytest.raises(CapacityError, match=r"is being prepared: .*, for \d+ s in all\. Call again"):
                await preparer.make(provider, _spec("one"), demands)
            with anyio.fail_after(30):
                while True:
                    try:
                        sandbox, told = await preparer.make(provider, _spec("one"), demands)
                    except CapacityError:
                        continue
                    break
            assert await content(sandbox, "/root/ran") == "run\n", "it was not begun again"
            second, again = await preparer.make(provider, _spec("two"), demands)
            assert (again, await content(second, "/root/ran")) == ("", "run\n")
            assert "is kept for the next one" in told or not told
            for made in (sandbox, second):
                await made.aclose()
                await provider.destroy(made.id)
            assert [info.id for info in await provider.list()] == []
    except ProviderUnavailableError as error:
        pytest.skip(str(error))


async def test_an_error_is_told_to_everybody_who_waits_and_tried_again_next_time(
    tmp_path: Path, warm_state: Callable[[Path], Path]
) -> None:
    warm_state(tmp_path / "state")
    world = World.make(tmp_path, "local")
    demands = Demands(preparation=Preparation(steps=(Step(run="sleep 0.5; exit 7"),)))
    told: list[str] = []

    try:
        async with world.engine() as provider, Preparer(world.store, _OWNER, patience_s=None) as preparer:

            async def ask(name: str) -> None:
                with pytest.raises(ConfigError) as caught:
                    await preparer.make(provider, _spec(name), demands)
                told.append(str(caught.value))

            async with anyio.create_task_group() as tasks:
                for name in ("one", "two"):
                    tasks.start_soon(ask, name)
            await ask("three")
            assert len(told) == 3
            assert all("setup[0] in the manifest failed: it ended with status 7" in each for each in told)
            assert world.store.list(principal="me") == ()
    except ProviderUnavailableError as error:
        pytest.skip(str(error))


async def test_a_provider_without_snapshots_refuses_what_it_cannot_keep(tmp_path: Path) -> None:
    from mcp_sandbox.core.capability import Capabilities, Isolation
    from mcp_sandbox.core.delegation import DelegatingProvider

    class Forgetful(DelegatingProvider):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(isolation=Isolation.NONE)

    world = World.make(tmp_path, "memory")
    demands = Demands(preparation=Preparation(steps=(Step(run="true"),)))
    async with world.engine() as engine, Preparer(world.store, _OWNER, patience_s=None) as preparer:
        with pytest.raises(UnsupportedError, match="`setup`, `files`"):
            await preparer.make(Forgetful(engine), _spec("one"), demands)
        assert await engine.list() == []
