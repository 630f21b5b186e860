"""The end of a command is the end of its whole tree; what it left running on purpose is not its end."""

import signal
from collections.abc import Mapping
from typing import Final

import anyio
import pytest

from mcp_sandbox.core.exec import ExecRequest, Exited, OutputChunk, Termination
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import (
    HANG_S,
    drain,
    run,
    sh,
    stops_growing,
    until_exit,
    wait_for_file,
)

__all__ = ["ProcessTreeContract"]

BEAT: Final = "while :; do echo x >> /workspace/beat; sleep 0.02; done"
"""A process that shows that it lives: a file of its own grows."""

FUGITIVES: Final[Mapping[str, str]] = {
    "the command itself": BEAT,
    "a child": f"({BEAT}) & wait",
    "a child of children": f"(((({BEAT}) & wait) & wait) & wait) & wait",
    "a pipeline": f"({BEAT}) | cat | cat",
    "a child in a session of its own": f"setsid sh -c '{BEAT}' & sleep 60",
    "a double fork in a session of its own": f"(setsid sh -c '({BEAT}) & exit' & exit); sleep 60",
    "a child that left the pipes": f"({BEAT}) </dev/null >/dev/null 2>&1 & sleep 60",
    "a tree that ignores signals": f"trap '' TERM INT HUP QUIT; ({BEAT}) & while :; do sleep 60; done",
    "a tree that is stopped": f"({BEAT}) & child=$!; sleep 0.2; kill -STOP $$; wait $child",
    "a tree that forks without pause": f"({BEAT}) & while :; do sleep 60 & sleep 0.05; done",
}
"""By how they try to outlive a kill: B-010, B-011, B-013, RES-07, RES-08, RES-09."""


def _shell(script: str, timeout_s: float | None = None) -> ExecRequest:
    """Return the request that runs a script."""
    return ExecRequest(argv=("sh", "-c", script), timeout_s=timeout_s)


class ProcessTreeContract(Contract):
    """Deadline, kill, cancellation, signals and background children."""

    # -- deadlines

    async def test_res07_a_deadline_is_a_result_that_keeps_the_output_so_far(self, machine: Sandbox) -> None:
        """M-01, M-15, RES-07."""
        outcome = await sh(machine, "echo before; sleep 60; echo after", timeout_s=0.5)
        assert (outcome.result.termination, outcome.exit_code) == (Termination.TIMEOUT, None)
        assert outcome.stdout == b"before\n"

    @pytest.mark.parametrize("script", FUGITIVES.values(), ids=FUGITIVES)
    async def test_b010_a_deadline_kills_the_whole_tree(self, machine: Sandbox, script: str) -> None:
        async with await machine.exec(_shell(script, timeout_s=0.8)) as execution:
            await wait_for_file(machine, "/workspace/beat")
            with anyio.fail_after(HANG_S):
                result = await execution.wait()
            assert result.termination is Termination.TIMEOUT
            assert await stops_growing(machine, "/workspace/beat")

    async def test_a_deadline_holds_while_nobody_reads_the_output(self, machine: Sandbox) -> None:
        async with await machine.exec(ExecRequest(argv=("yes",), timeout_s=0.5)) as execution:
            with anyio.fail_after(HANG_S):
                result = await execution.wait()
        assert result.termination is Termination.TIMEOUT

    async def test_a_signal_before_the_deadline_is_not_a_timeout(self, machine: Sandbox) -> None:
        outcome = await sh(machine, "kill -KILL $$", timeout_s=20)
        assert outcome.result.termination is Termination.SIGNALED

    async def test_a_command_that_ends_in_time_is_not_touched_by_its_deadline(self, machine: Sandbox) -> None:
        assert (await run(machine, "true", timeout_s=0.5)).exit_code == 0
        outcome = await sh(machine, "sleep 0.8; echo done")
        assert (outcome.exit_code, outcome.stdout) == (0, b"done\n")

    # -- kill, close, cancel

    @pytest.mark.parametrize("script", FUGITIVES.values(), ids=FUGITIVES)
    async def test_kill_ends_the_whole_tree_and_says_so(self, machine: Sandbox, script: str) -> None:
        async with await machine.exec(_shell(script)) as execution:
            await wait_for_file(machine, "/workspace/beat")
            with anyio.fail_after(HANG_S):
                await execution.kill()
                await execution.kill()
                result = await execution.wait()
            assert (result.termination, result.exit_code) == (Termination.KILLED, None)
            assert await stops_growing(machine, "/workspace/beat")

    async def test_kill_keeps_what_was_said_before(self, machine: Sandbox) -> None:
        async with await machine.exec(_shell("echo before; echo x > /workspace/up; sleep 60")) as execution:
            await wait_for_file(machine, "/workspace/up")
            await execution.kill()
            outcome = await drain(execution)
        assert outcome.stdout == b"before\n"

    @pytest.mark.parametrize("script", FUGITIVES.values(), ids=FUGITIVES)
    async def test_closing_a_live_command_ends_its_tree(self, machine: Sandbox, script: str) -> None:
        execution = await machine.exec(_shell(script))
        await wait_for_file(machine, "/workspace/beat")
        with anyio.fail_after(HANG_S):
            await execution.aclose()
            await execution.aclose()
        assert await stops_growing(machine, "/workspace/beat")

    async def test_b113_cancelling_the_caller_ends_the_tree_and_the_next_command_works(self, machine: Sandbox) -> None:
        """B-113, M-03, M-17: whoever waited is gone, so is what he waited for."""

        async def call() -> None:
            await sh(machine, f"(setsid sh -c '{BEAT}') & sleep 60", timeout_s=None)

        cancelled_at = 0.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await wait_for_file(machine, "/workspace/beat")
            cancelled_at = anyio.current_time()
            tasks.cancel_scope.cancel()
        assert anyio.current_time() - cancelled_at < 2
        assert await stops_growing(machine, "/workspace/beat")
        assert (await run(machine, "echo", "next")).stdout == b"next\n"

    async def test_cancelling_the_start_of_commands_leaves_nothing_running(self, machine: Sandbox) -> None:
        """Whatever the moment of the cancellation, either the caller holds the command or nobody does."""
        for delay in (0.0, 0.0005, 0.001, 0.002, 0.004):
            with anyio.move_on_after(delay):
                async with await machine.exec(_shell("sleep 61.25; :")):
                    await anyio.sleep_forever()
        with anyio.fail_after(HANG_S):
            while await self.running(machine, "61.25"):
                await anyio.sleep(0.05)

    # -- background children

    async def test_b005_the_end_of_the_command_does_not_wait_for_its_children(self, machine: Sandbox) -> None:
        """B-005, B-006, B-007, RES-10: `sleep 60 &` holds the pipes; the command is over all the same."""
        async with await machine.exec(_shell("sleep 60 & echo done")) as execution:
            with anyio.fail_after(5):
                outcome = await until_exit(execution)
        assert (outcome.exit_code, outcome.stdout) == (0, b"done\n")

    async def test_late_output_of_a_child_arrives_after_the_end_of_the_command(self, machine: Sandbox) -> None:
        async with await machine.exec(_shell("(sleep 0.5; echo late) & echo now")) as execution:
            outcome = await drain(execution)
        kinds = [event.data if isinstance(event, OutputChunk) else "end" for event in outcome.events]
        assert kinds == [b"now\n", "end", b"late\n"]

    async def test_b006_a_child_in_the_background_lives_on_after_its_command(self, machine: Sandbox) -> None:
        """B-006: a started service is there for the next call."""
        async with await machine.exec(_shell(f"({BEAT}) >/dev/null 2>&1 & echo started")) as execution:
            await until_exit(execution)
        await wait_for_file(machine, "/workspace/beat")
        assert not await stops_growing(machine, "/workspace/beat")
        seen = await run(machine, "tail", "-n", "1", "/workspace/beat")
        assert seen.stdout == b"x\n"

    async def test_closing_the_sandbox_object_ends_what_runs_in_it(self, machine: Sandbox) -> None:
        execution = await machine.exec(_shell(BEAT))
        await wait_for_file(machine, "/workspace/beat")
        with anyio.fail_after(HANG_S):
            await machine.aclose()
            result = await execution.wait()
        assert result.exit_code is None
        assert result.termination in (Termination.LOST, Termination.KILLED)
        await execution.aclose()

    # -- signals

    async def test_a_signal_reaches_the_commands_group(self, machine: Sandbox) -> None:
        script = "trap 'echo caught; exit 5' INT; echo x > /workspace/up; while :; do sleep 0.05; done"
        async with await machine.exec(_shell(script)) as execution:
            await wait_for_file(machine, "/workspace/up")
            await execution.signal(signal.SIGINT)
            outcome = await drain(execution)
        assert (outcome.exit_code, outcome.stdout) == (5, b"caught\n")

    async def test_a_signal_to_the_tree_reaches_children_in_other_sessions(self, machine: Sandbox) -> None:
        child = "trap 'echo x > /workspace/caught; exit' USR1; echo x > /workspace/up; while :; do sleep 0.05; done"
        async with await machine.exec(_shell(f'trap : USR1; setsid sh -c "{child}" & sleep 60')) as execution:
            await wait_for_file(machine, "/workspace/up")
            await execution.signal(signal.SIGUSR1, tree=True)
            await wait_for_file(machine, "/workspace/caught")

    async def test_a_signal_to_the_group_does_not_reach_other_commands(self, machine: Sandbox) -> None:
        async with (
            await machine.exec(_shell("sleep 60")) as first,
            await machine.exec(ExecRequest(argv=("cat",), stdin=True)) as second,
        ):
            await first.signal(signal.SIGTERM)
            assert (await drain(first)).result.signal == signal.SIGTERM
            await second.write_stdin(b"alive")
            await second.close_stdin()
            assert (await drain(second)).stdout == b"alive"

    async def test_a_signal_after_the_end_is_a_no_op(self, machine: Sandbox) -> None:
        async with await machine.exec(ExecRequest(argv=("true",))) as execution:
            outcome = await until_exit(execution)
            await execution.signal(signal.SIGTERM)
            await execution.signal(signal.SIGTERM, tree=True)
            await execution.kill()
            assert await execution.wait() == outcome.result

    # -- order in the house

    async def test_orphans_are_reaped(self, machine: Sandbox) -> None:
        """No zombie is left, neither while a command runs nor after it."""
        zombies = "cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | grep -c '^Z'"
        await sh(machine, "for n in $(seq 50); do (true &); done")
        with anyio.fail_after(HANG_S):
            while (await sh(machine, zombies)).stdout != b"0\n":
                await anyio.sleep(0.05)

    async def test_new_files_are_readable_by_default(self, machine: Sandbox) -> None:
        """The umask is 022, whatever the server runs under."""
        assert (await sh(machine, "umask")).stdout.strip() in (b"0022", b"022")

    async def test_many_short_commands_in_a_row_leave_nothing_behind(self, machine: Sandbox) -> None:
        count = "set -- /proc/[0-9]*; echo $#"
        before = (await sh(machine, count)).stdout
        for _ in range(50):
            assert (await run(machine, "true")).exit_code == 0
        assert (await sh(machine, count)).stdout == before

    async def test_end_of_a_command_is_told_once(self, machine: Sandbox) -> None:
        async with await machine.exec(_shell("echo a; (sleep 0.2; echo b) & exit 4")) as execution:
            events = (await drain(execution)).events
        assert [event.result.exit_code for event in events if isinstance(event, Exited)] == [4]

    @staticmethod
    async def running(sandbox: Sandbox, word: str) -> int:
        """Count the processes that have `word` as an argument; it is sent as input, so that the counter has not."""
        script = (
            "read -r word; for process in /proc/[0-9]*; do "
            'tr "\\0" "\\n" 2>/dev/null <$process/cmdline | grep -qxF -e "$word" && echo $process; done'
        )
        return len((await run(sandbox, "sh", "-c", script, stdin=word.encode() + b"\n")).stdout.split())
