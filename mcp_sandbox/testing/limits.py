"""Ceilings: a declared one holds, an undeclared one is refused before anything is made."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields, replace
from typing import Final

import anyio
import pytest

from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.errors import UnsupportedError
from mcp_sandbox.core.exec import ExecRequest, Termination
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import HANG_S, new_spec, run, sh, until_exit

__all__ = ["LimitContract"]

MIB = 1 << 20
LEGAL: Final[Mapping[str, float]] = {
    "memory_bytes": 256 * MIB,
    "cpu_count": 0.5,
    "pids": 64,
    "open_files": 256,
    "disk_bytes": 64 * MIB,
}
"""A sensible value of every limit."""

Limited = Callable[[str], AbstractAsyncContextManager[Sandbox]]


class LimitContract(Contract):
    """One test per limit; skipped where undeclared, where the refusal is tested instead."""

    @pytest.fixture
    def limited(self, provider: Provider, programs: None) -> Limited:
        """Return a maker of sandboxes with one legal limit, which skips where the limit is not declared."""

        @asynccontextmanager
        async def make(name: str) -> AsyncGenerator[Sandbox]:
            if name not in provider.capabilities.limits:
                pytest.skip(f"the provider does not declare the limit {name!r}")
            spec = new_spec(provider.capabilities, {name: LEGAL[name]})
            async with await provider.create(spec) as sandbox:
                yield sandbox
            await provider.destroy(spec.id)

        return make

    @pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
    async def test_an_undeclared_limit_is_refused_before_anything_is_made(self, provider: Provider, name: str) -> None:
        """What cannot be enforced is refused, never approximated; and the refusal names the limit."""
        if name in provider.capabilities.limits:
            pytest.skip(f"the provider declares the limit {name!r}")
        spec = new_spec(provider.capabilities)
        value = LEGAL[name] if name == "cpu_count" else int(LEGAL[name])
        asked: dict[str, float] = {name: value}
        with pytest.raises(UnsupportedError, match=name):
            await provider.create(replace(spec, limits=replace(spec.limits, **asked)))  # pyright: ignore[reportArgumentType]
        assert spec.id not in {info.id for info in await provider.list()}

    async def test_only_limits_that_exist_are_declared(self, capabilities: Capabilities) -> None:
        assert capabilities.limits <= {field.name for field in fields(Limits)}

    # -- pids

    async def test_b039_a_fork_bomb_is_contained_and_the_next_command_works(self, limited: Limited) -> None:
        """B-039, RES-01: the deadline ends it, however many there are."""
        async with limited("pids") as sandbox:
            with anyio.fail_after(2 * HANG_S):
                outcome = await sh(sandbox, "b() { b | b & }; b; read -r line", timeout_s=2)
                assert outcome.result.termination in (Termination.TIMEOUT, Termination.EXITED)
                await self.works_again(sandbox)

    async def test_res01_a_fork_bomb_that_hides_behind_a_finished_command_does_not_outlive_the_sandbox_object(
        self, provider: Provider, limited: Limited
    ) -> None:
        async with limited("pids") as sandbox:
            bomb = ExecRequest(argv=("sh", "-c", "b() { b | b & }; b"), timeout_s=2)
            async with await sandbox.exec(bomb) as execution:
                await until_exit(execution)
            await sandbox.aclose()
            async with await provider.attach(sandbox.id) as again:
                await self.works_again(again)

    async def test_no_more_processes_than_the_limit(self, limited: Limited) -> None:
        async with limited("pids") as sandbox:
            script = "for n in $(seq 200); do sleep 30 & echo $n; done; read -r line"
            request = ExecRequest(argv=("sh", "-c", f"({script}); read -r line"), stdin=True, timeout_s=3)
            async with await sandbox.exec(request) as execution:
                outcome = await until_exit(execution)
            started = len(outcome.stdout.splitlines())
            assert 10 <= started <= LEGAL["pids"]
            await self.works_again(sandbox)

    @staticmethod
    async def works_again(sandbox: Sandbox) -> None:
        """Wait until a command starts and works."""
        with anyio.fail_after(HANG_S):
            while (outcome := await run(sandbox, "echo", "works")).exit_code != 0:
                assert outcome.result.detail, "a command that did not start must say why"
                await anyio.sleep(0.1)
        assert outcome.stdout == b"works\n"

    # -- the others

    async def test_res06_no_more_open_files_than_the_limit(self, limited: Limited) -> None:
        async with limited("open_files") as sandbox:
            shown = await sh(sandbox, "ulimit -n; ulimit -Hn; ulimit -n 100000 2>/dev/null || echo refused")
            assert shown.stdout.split() == [b"256", b"256", b"refused"]

    async def test_b037_a_command_that_needs_more_memory_than_the_limit_fails_and_the_next_one_works(
        self, limited: Limited
    ) -> None:
        """B-037, RES-02: the result names the cause where the engine knows it."""
        async with limited("memory_bytes") as sandbox:
            with anyio.fail_after(2 * HANG_S):
                hog = await sh(sandbox, "head -c 1000000000 /dev/zero | tail -c 1000000000 | wc -c", timeout_s=40)
                assert hog.stdout.strip() != b"1000000000"
                assert (await run(sandbox, "echo", "works")).stdout == b"works\n"
                alone = await run(sandbox, "tail", "-c", "2000000000", "/dev/zero", timeout_s=40)
                assert alone.result.termination is Termination.OOM or alone.exit_code not in (0, None)
                assert (await run(sandbox, "echo", "works")).stdout == b"works\n"

    async def test_res11_busy_loops_get_no_more_processor_time_than_the_limit(self, limited: Limited) -> None:
        async with limited("cpu_count") as sandbox:
            script = "(while :; do :; done) & a=$!; (while :; do :; done) & b=$!; sleep 3; kill $a $b; wait"
            result = (await sh(sandbox, script)).result
            assert 0 < result.cpu_s <= LEGAL["cpu_count"] * result.duration_s * 1.2 + 0.2

    async def test_res03_no_more_bytes_on_disk_than_the_limit(self, limited: Limited) -> None:
        async with limited("disk_bytes") as sandbox:
            for place in ("/workspace", "/tmp"):
                fill = f"head -c 100000000 /dev/zero > {place}/fill"
                assert (await sh(sandbox, fill)).exit_code != 0
                assert (await sh(sandbox, f"rm {place}/fill && echo fits > {place}/fill")).exit_code == 0

    async def test_limits_hold_after_attaching_again(self, provider: Provider, programs: None) -> None:
        if "open_files" not in provider.capabilities.limits:
            pytest.skip("the provider does not declare the limit 'open_files'")
        spec = new_spec(provider.capabilities, {"open_files": 300})
        await (await provider.create(spec)).aclose()
        async with await provider.attach(spec.id) as sandbox:
            assert (await sh(sandbox, "ulimit -Hn")).stdout == b"300\n"
        await provider.destroy(spec.id)
