"""Whatever a command started ends with it when it is killed, behind every carrier."""

import asyncio
import contextlib

import anyio
import anyio.lowlevel
import pytest
from command_record import drain, run, shell, start
from guest_world import Guest, NamespacedGuest

from mcp_sandbox.core.exec import Execution, Exited, Termination
from mcp_sandbox.engines.carrier import GuestCarrier
from mcp_sandbox.guest.wire import Type

__all__ = ["TestKilling"]

TREES = {
    "plain": "sleep 1000 & sleep 1000 & wait",
    "deaf": "trap '' TERM HUP INT; sleep 1000",
    "setsid": "setsid sleep 1000 & wait",
    "double fork": "(setsid sh -c 'sleep 1000 & sleep 1000 &' &); sleep 1000",
    "stopped": "sleep 1000 & kill -STOP $!; wait",
    "forking": "while :; do setsid sleep 1000 & setsid sh -c 'sleep 1000 & wait' & sleep 0.01; done",
}

TRACED = """
import ctypes, os, signal, time
if os.fork() == 0:
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitpid(-1, os.WUNTRACED)
print("traced", flush=True)
time.sleep(1000)
"""
RESUMING = """
import os
print("up", flush=True)
while True:
    os.kill(-1, 18)
"""


async def needs_python(carrier: GuestCarrier) -> None:
    """Skip where there is none."""
    if (await shell(carrier, "command -v python3")).result.exit_code:
        pytest.skip("no python3 in there")


async def live(carrier: GuestCarrier) -> int:
    """Return how many processes the sandbox has."""
    return int.from_bytes((await carrier.request(Type.LIVE, b"")).payload, "little")


async def until_alone(carrier: GuestCarrier, others: int = 0) -> None:
    """Wait until the killed processes are reaped; nothing tells when."""
    with anyio.fail_after(5):
        while await live(carrier) > others:
            await anyio.sleep(0.01)


async def first_line(execution: Execution) -> bytes:
    """Return what a command says first."""
    event = await execution.receive()
    assert not isinstance(event, Exited)
    return event.data


class TestKilling:
    """Timeouts, cancellation, signals."""

    @pytest.mark.parametrize("tree", TREES)
    async def test_a_kill_reaches_the_whole_tree(self, carrier: GuestCarrier, tree: str) -> None:
        async with await start(carrier, "sh", "-c", f"echo up; {TREES[tree]}") as execution:
            assert await first_line(execution) == b"up\n"
            await anyio.sleep(0.1)  # the tree grows
            with anyio.fail_after(5):
                await execution.kill()
            result = await execution.wait()
        assert (result.termination, result.signal) == (Termination.KILLED, 9)
        await until_alone(carrier)

    @pytest.mark.parametrize("tree", TREES)
    async def test_a_timeout_keeps_the_output_and_reaches_the_whole_tree(
        self, carrier: GuestCarrier, tree: str
    ) -> None:
        with anyio.fail_after(10):
            done = await shell(carrier, f"echo so far; {TREES[tree]}", timeout_s=0.3)
        assert done.result.termination is Termination.TIMEOUT
        assert done.text() == b"so far\n"
        await until_alone(carrier)

    async def test_a_timeout_ends_a_command_whose_output_nobody_takes(self, carrier: GuestCarrier) -> None:
        async with await start(carrier, "yes", timeout_s=0.2) as execution:
            with anyio.fail_after(5):
                result = await execution.wait()
        assert result.termination is Termination.TIMEOUT
        await until_alone(carrier)

    async def test_leaving_the_context_kills_what_runs(self, carrier: GuestCarrier) -> None:
        with anyio.fail_after(3):
            async with await start(carrier, "sh", "-c", "yes & setsid sleep 1000") as execution:
                await execution.receive()
        await until_alone(carrier)

    async def test_a_command_that_ended_leaves_its_background_children_alone(self, carrier: GuestCarrier) -> None:
        done = await shell(carrier, "sleep 1000 > /dev/null 2>&1 & echo $!")
        assert await live(carrier) == 1
        await run(carrier, "kill", done.text().decode().strip())
        await until_alone(carrier)

    async def test_a_signal_goes_to_the_group_and_a_kill_to_the_tree(self, carrier: GuestCarrier) -> None:
        script = "trap 'echo caught; exit 5' USR1; echo up; while :; do sleep 0.01; done"
        async with await start(carrier, "sh", "-c", script) as execution:
            assert await first_line(execution) == b"up\n"
            await execution.signal(10)
            done = await drain(execution)
        assert (done.text(), done.result.exit_code) == (b"caught\n", 5)

    async def test_a_signal_to_the_tree_reaches_other_sessions(self, carrier: GuestCarrier) -> None:
        async with await start(carrier, "sh", "-c", "setsid sleep 1000 & echo up; wait") as execution:
            assert await first_line(execution) == b"up\n"
            await execution.signal(15, tree=True)
            done = await drain(execution)
        assert (done.result.termination, done.result.signal) == (Termination.SIGNALED, 15)
        await until_alone(carrier)

    async def test_signals_to_what_ended_do_nothing(self, carrier: GuestCarrier) -> None:
        async with await start(carrier, "true") as execution:
            await execution.wait()
            await execution.signal(9)
            await execution.kill()
            assert (await execution.wait()).termination is Termination.EXITED

    @pytest.mark.parametrize("program", ["sleep", "no-such-program"])
    async def test_a_cancelled_start_leaves_nothing(self, carrier: GuestCarrier, program: str) -> None:
        """Cancelled after a few turns of the loop: before, in and after the request."""
        for turns in (1, 2, 3, 5, 10, 20, 60):
            with anyio.fail_after(4):
                task = asyncio.create_task(start(carrier, program, "1000", stdin=True))
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await (await task).aclose()
                await until_alone(carrier)
                assert (await run(carrier, "echo", "fine")).text() == b"fine\n"

    async def test_a_cancelled_large_start_does_not_garble_what_follows(self, carrier: GuestCarrier) -> None:
        tasks = [asyncio.create_task(start(carrier, "echo", *["x" * 100_000] * 15)) for _ in range(20)]
        for task in tasks:
            await anyio.lowlevel.checkpoint()
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await (await task).aclose()
        assert (await run(carrier, "echo", "fine")).text() == b"fine\n"
        await until_alone(carrier)

    async def test_large_and_small_requests_do_not_mix(self, carrier: GuestCarrier) -> None:
        outcomes: list[bool] = []

        async def one(number: int) -> None:
            words = ["x" * 100_000] * (12 if number % 3 else 0)
            done = await run(carrier, "echo", str(number), *words)
            outcomes.append(done.text().split()[0] == b"%d" % number)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for number in range(24):
                    tasks.start_soon(one, number)
        assert outcomes == [True] * 24

    async def test_others_are_answered_while_a_tree_resists_its_end(self, carrier: GuestCarrier) -> None:
        """The agent has one thread, and looked at nothing else for two seconds: what is traced never stands still."""
        await needs_python(carrier)
        async with await start(carrier, "python3", "-c", TRACED) as tree:
            await first_line(tree)
            killing = asyncio.create_task(tree.kill())
            answers = 0
            while not killing.done():
                with anyio.fail_after(1):
                    assert (await run(carrier, "echo", "fine")).text() == b"fine\n"
                answers += 1
            await killing
            assert answers > 3
            with anyio.fail_after(5):
                assert (await tree.wait()).termination is Termination.KILLED
        await until_alone(carrier)

    async def test_a_bridge_that_something_inside_stops_goes_on(self, guest: Guest, carrier: GuestCarrier) -> None:
        """Nobody heard anything until the third heartbeat was missed: a minute."""
        if not isinstance(guest, NamespacedGuest):
            pytest.skip("the provider's commands are a user who cannot: test_priv01 of tests/attacks")
        ours = "cat /proc/[0-9]*/stat | while read p n _; do [ $p != 1 ] && [ $n = '(guest)' ] && echo $p; done"
        with anyio.fail_after(10):
            await shell(carrier, f"kill -STOP $({ours}) 2> /dev/null; true")
            assert (await run(carrier, "echo", "fine")).text() == b"fine\n"

    async def test_a_freeze_that_is_given_up_leaves_everything_running(
        self, guest: Guest, carrier: GuestCarrier
    ) -> None:
        if not guest.many:
            pytest.skip("one connection is all that there is")
        await needs_python(carrier)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                running = await stack.enter_async_context(await start(carrier, "python3", "-c", RESUMING))
                await first_line(running)
            async with guest.connected() as other:
                freezing = asyncio.create_task(other.request(Type.FREEZE, b""))
                await anyio.sleep(0.02)
                await other.request(Type.THAW, b"")  # both are answered, whichever was sooner
                with anyio.fail_after(2), contextlib.suppress(OSError):
                    await freezing
                with anyio.fail_after(5):
                    assert (await run(carrier, "echo", "fine")).text() == b"fine\n"
        await until_alone(carrier)

    async def test_frozen_processes_stand_still_and_go_on(self, carrier: GuestCarrier) -> None:
        async with await start(carrier, "sh", "-c", "i=0; while :; do i=$((i+1)); echo $i > /area/count; done"):
            with anyio.fail_after(5):
                await carrier.request(Type.FREEZE, b"")
                read = [(await shell(carrier, "cat /area/count; sleep 0.05")).text() for _ in range(2)]
                assert read[0] == read[1]
                await carrier.request(Type.THAW, b"")
                while (await shell(carrier, "cat /area/count")).text() == read[0]:
                    pass
