"""Ceilings: a declared one holds, an undeclared one is refused before anything is made."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields, replace
from typing import Final

import anyio
import pytest

from mcp_sandbox.core.admission import weak_limits
from mcp_sandbox.core.capability import Capabilities, Isolation
from mcp_sandbox.core.errors import UnsupportedError
from mcp_sandbox.core.exec import ExecRequest, Termination
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.core.wording import limit_word
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
    "inodes": 500,
    "command_s": 1.0,
}
"""A sensible value of every limit."""
HOG: Final = ("dd", "if=/dev/zero", "of=/dev/null", "bs=1000000000", "count=1")
"""Needs a gigabyte of memory, all at once."""

CROWD: Final = """
import ctypes, os, signal

def crowd(most):
    children = []
    for _ in range(most):
        try:
            if child := os.fork():
                children.append(child)
            else:
                signal.pause()
        except OSError:
            pass
    return children

children = crowd(400)
print(len(children))
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
ctypes.CDLL(None).unshare(0x10000000)
children = crowd(400)
print(len(children))
for child in children:
    os.kill(child, 9)
"""
"""Prints how many children it could have at once, as it is and in a user namespace if it gets one."""

Limited = Callable[[str], AbstractAsyncContextManager[Sandbox]]


class LimitContract(Contract):
    """One test per limit; skipped where undeclared, where the refusal is tested instead."""

    @pytest.fixture
    def limited(self, provider: Provider, programs: None) -> Limited:
        """Return a maker of sandboxes with one legal limit, on best effort where it is not enforced but watched."""

        @asynccontextmanager
        async def make(name: str) -> AsyncGenerator[Sandbox]:
            gap = provider.capabilities.unenforced.get(name)
            if name not in provider.capabilities.limits and not (gap and gap.instead):
                pytest.skip(f"the provider does not limit {name!r}, not even as well as it can")
            spec = replace(new_spec(provider.capabilities, {name: LEGAL[name]}), best_effort=gap is not None)
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
        asked = new_spec(provider.capabilities, {name: LEGAL[name]}).limits
        with pytest.raises(UnsupportedError, match=limit_word(name)) as refused:
            await provider.create(replace(spec, limits=asked))
        if (gap := provider.capabilities.unenforced.get(name)) is not None:
            assert gap.why
            assert gap.why in str(refused.value)
            assert gap.fix
            assert gap.fix in str(refused.value)
        assert spec.id not in {info.id for info in await provider.list()}

    async def test_every_limit_is_enforced_or_said_not_to_be_but_never_both(self, capabilities: Capabilities) -> None:
        names = {field.name for field in fields(Limits)}
        assert capabilities.limits <= names
        assert capabilities.unenforced.keys() <= names - capabilities.limits

    async def test_best_effort_takes_what_it_can_and_tells_of_the_rest(
        self, provider: Provider, programs: None
    ) -> None:
        weak = sorted(provider.capabilities.unenforced)
        if not weak:
            pytest.skip("the provider enforces every limit, or none on best effort")
        spec = replace(new_spec(provider.capabilities, {name: LEGAL[name] for name in weak}), best_effort=True)
        async with await provider.create(spec) as sandbox:
            assert (await run(sandbox, "echo", "works")).stdout == b"works\n"
        await provider.destroy(spec.id)
        told = weak_limits(provider.capabilities, spec.limits)
        asked = [limit_word(field.name) for field in fields(Limits) if field.name in weak]
        assert [sentence.removeprefix("limit ").partition(" is not")[0] for sentence in told] == asked

    # -- pids

    async def test_b039_a_fork_bomb_is_contained_and_the_next_command_works(self, limited: Limited) -> None:
        """B-039, RES-01: the deadline ends it, however many there are."""
        async with limited("pids") as sandbox:
            with anyio.fail_after(2 * HANG_S):
                outcome = await sh(sandbox, "b() { b | b & }; b & exec sleep 60", timeout_s=2)
                assert outcome.result.termination is Termination.TIMEOUT
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

    async def test_res01_who_asks_again_or_makes_a_user_namespace_finds_no_more_room(self, limited: Limited) -> None:
        """RES-01: some kernels look at the limit now and then only, and not at whoever is root in a namespace."""
        async with limited("pids") as sandbox:
            outcome = await run(sandbox, "python3", "-c", CROWD)
            if outcome.exit_code == 127:
                pytest.skip("there is no python3 inside, which this test attacks with")
            kept, in_namespace = (int(number) for number in outcome.stdout.split())
            assert 10 <= kept <= LEGAL["pids"], "the one that asks need not count"
            assert in_namespace <= LEGAL["pids"]
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
        self, limited: Limited, capabilities: Capabilities
    ) -> None:
        """B-037, RES-02: the result names the cause and the limit, where it is enforced."""
        async with limited("memory_bytes") as sandbox:
            with anyio.fail_after(2 * HANG_S):
                hog = await sh(sandbox, "head -c 1000000000 /dev/zero | tail -c 1000000000 | wc -c", timeout_s=40)
                assert hog.stdout.strip() != b"1000000000"
                assert (await run(sandbox, "echo", "works")).stdout == b"works\n"
                alone = await run(sandbox, *HOG, timeout_s=40)
                assert alone.exit_code != 0
                if "memory_bytes" in capabilities.limits:
                    assert (alone.result.termination, alone.result.signal) == (Termination.OOM, 9)
                    assert "256 MiB" in alone.result.detail
                    below = await sh(sandbox, f"{' '.join(HOG)}; exit 0", timeout_s=40)
                    assert (below.result.termination, below.exit_code) == (Termination.EXITED, 0)
                    assert "256 MiB" in below.result.detail, "a child's end is told although the command went on"
                assert (await run(sandbox, "echo", "works")).stdout == b"works\n"

    async def test_res02_many_processes_together_have_no_more_memory_than_the_limit(self, limited: Limited) -> None:
        """RES-02: each of them alone has less."""
        async with limited("memory_bytes") as sandbox:
            hold = "(dd if=/dev/zero bs=80000000 count=1 2>/dev/null && echo whole >&2) | (sleep 3; cat >/dev/null) & "
            outcome = await sh(sandbox, f"{hold * 6} wait", timeout_s=40)
            assert outcome.stderr.count(b"whole") < 6, "somebody must have been killed before it had written all"
            assert "killed at the memory limit" in outcome.result.detail
            assert (await run(sandbox, "echo", "works")).stdout == b"works\n"

    async def test_res02_a_sandbox_that_is_attached_to_again_still_names_the_cause(
        self, provider: Provider, programs: None
    ) -> None:
        """Whoever started it: the counters are the engine's."""
        if "memory_bytes" not in provider.capabilities.limits:
            pytest.skip("the provider does not enforce the limit 'memory_bytes'")
        spec = new_spec(provider.capabilities, {"memory_bytes": LEGAL["memory_bytes"]})
        await (await provider.create(spec)).aclose()
        async with await provider.attach(spec.id) as sandbox:
            assert (await run(sandbox, *HOG, timeout_s=40)).result.termination is Termination.OOM
        await provider.destroy(spec.id)

    async def test_res01_a_command_that_cannot_start_all_its_processes_says_why(self, limited: Limited) -> None:
        """RES-01."""
        async with limited("pids") as sandbox:
            result = (await sh(sandbox, "for n in $(seq 200); do sleep 4 & done; wait")).result
            assert result.exit_code not in (0, None)
            assert result.termination is Termination.PIDS
            assert "64" in result.detail
            await self.works_again(sandbox)
            assert (await run(sandbox, "false")).result.termination is Termination.EXITED, "what is over is over"

    async def test_res11_busy_loops_get_no_more_processor_time_than_the_limit(self, limited: Limited) -> None:
        async with limited("cpu_count") as sandbox:
            if sandbox.capabilities.isolation >= Isolation.USER_KERNEL:
                pytest.skip("the kernel inside counts processor time by itself, and not what it gets")
            script = "(while :; do :; done) & a=$!; (while :; do :; done) & b=$!; sleep 3; kill $a $b; wait"
            result = (await sh(sandbox, script)).result
            assert 0 < result.cpu_s <= LEGAL["cpu_count"] * result.duration_s * 1.2 + 0.2

    async def test_res03_no_more_bytes_on_disk_than_the_limit(self, limited: Limited) -> None:
        """RES-03: the cause is named, and there is room again once something is removed."""
        async with limited("disk_bytes") as sandbox:
            for place in ("/workspace", "/tmp", "/var/tmp"):
                one = await sh(sandbox, f"head -c 100000000 /dev/zero > {place}/fill")
                assert (one.result.termination, one.exit_code == 0) == (Termination.DISK, False)
                assert "64 MiB" in one.result.detail
                assert (await sh(sandbox, f"rm {place}/fill && echo fits > {place}/fill")).exit_code == 0
            many = "n=0; while [ $n -lt 4000 ]; do head -c 1000000 /dev/zero > f$n || exit 3; n=$((n + 1)); done"
            together = await sh(sandbox, many, timeout_s=30)
            assert together.result.termination is Termination.DISK
            assert (await sh(sandbox, "rm f* && echo fits > f")).exit_code == 0

    async def test_res04_no_more_files_than_the_limit(self, limited: Limited) -> None:
        """RES-04."""
        async with limited("inodes") as sandbox:
            many = await sh(sandbox, "n=0; while :; do : > f$n || exit 3; n=$((n + 1)); done", timeout_s=30)
            assert many.result.termination is Termination.DISK
            assert "500" in many.result.detail
            assert (await sh(sandbox, "rm f* && echo fits > f && cat f")).stdout == b"fits\n"

    async def test_no_command_runs_longer_than_the_limit(self, limited: Limited) -> None:
        """Not one without a deadline of its own either; a shorter one stays."""
        async with limited("command_s") as sandbox:
            for asked in (None, 60.0):
                outcome = await sh(sandbox, "echo before; sleep 30", timeout_s=asked)
                assert outcome.stdout == b"before\n"
                assert outcome.result.termination is Termination.TIMEOUT
                assert 1 <= outcome.result.duration_s < 10
                assert "longer than 1 s" in outcome.result.detail
            shorter = (await sh(sandbox, "sleep 30", timeout_s=0.2)).result
            assert shorter.termination is Termination.TIMEOUT
            assert shorter.duration_s < 1

    async def test_limits_hold_after_attaching_again(self, provider: Provider, programs: None) -> None:
        if "open_files" not in provider.capabilities.limits:
            pytest.skip("the provider does not declare the limit 'open_files'")
        spec = new_spec(provider.capabilities, {"open_files": 300})
        await (await provider.create(spec)).aclose()
        async with await provider.attach(spec.id) as sandbox:
            assert (await sh(sandbox, "ulimit -Hn")).stdout == b"300\n"
        await provider.destroy(spec.id)
