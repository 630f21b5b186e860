"""Running commands, on the engine that everybody has where there is one."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from command_world import CommandWorld, open_command_world, whole

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.exec import Termination
from mcp_sandbox.service.execution import CommandRequest
from mcp_sandbox.store.jobs import JobStore

__all__: list[str] = []


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[CommandWorld]:
    async with open_command_world("local", tmp_path) as opened:
        yield opened


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncGenerator[CommandWorld]:
    """A sandbox without a shell."""
    async with open_command_world("memory", tmp_path) as opened:
        yield opened


async def test_a_command_answers_with_its_status_and_both_streams(world: CommandWorld) -> None:
    outcome = await world.run("echo out; echo err >&2; exit 3")
    assert outcome.result is not None
    assert outcome.result.exit_code == 3
    assert (whole(outcome.stdout), whole(outcome.stderr)) == ("out\n", "err\n")
    assert not outcome.job_id


async def test_small_output_of_a_foreground_command_touches_no_disk(world: CommandWorld) -> None:
    await world.run("echo few words")
    assert not (world.live.directory / "jobs").exists()
    assert whole((await world.run("ls -A /var/spool/mcp-sandbox 2>/dev/null | wc -l")).stdout) == "0\n"


async def test_b005_b006_b007_a_background_child_does_not_hold_up_the_answer(world: CommandWorld) -> None:
    with anyio.fail_after(5):
        outcome = await world.run("sleep 60 & echo done")
    assert whole(outcome.stdout) == "done\n"
    assert outcome.spool_path


async def test_what_a_background_child_writes_later_goes_to_the_file_that_was_named(world: CommandWorld) -> None:
    await world.run("mkfifo go end")
    script = "(read line <go; for i in 1 2 3; do echo late $i || exit 9; done; echo >end) & echo first"
    outcome = await world.run(script)
    assert whole(outcome.stdout) == "first\n"
    await world.run("echo >go; cat end")
    with anyio.fail_after(5):
        while (await world.get_if_there(f"{outcome.spool_path}.out")) != b"late 1\nlate 2\nlate 3\n":
            await anyio.lowlevel.checkpoint()


async def test_b010_b011_a_timeout_keeps_the_output_and_kills_the_whole_tree(world: CommandWorld) -> None:
    outcome = await world.run("echo begun; setsid sleep 4711 & sleep 4712 | cat", timeout_s=0.5)
    assert outcome.result is not None
    assert outcome.result.termination is Termination.TIMEOUT
    assert whole(outcome.stdout) == "begun\n"
    assert await world.processes("sleep 471") == 0


async def test_b113_a_cancelled_command_is_dead_with_all_it_started(world: CommandWorld) -> None:
    with anyio.move_on_after(0.3):
        await world.run("setsid sleep 4713 & sleep 4714")
    assert await world.processes("sleep 471") == 0


async def test_m05_commands_run_side_by_side(world: CommandWorld) -> None:
    outputs: list[str] = []

    async def run(number: int) -> None:
        # Each waits until all twenty have started.
        script = f"touch /tmp/s{number}; while [ $(ls /tmp/s* | wc -l) -lt 20 ]; do :; done; echo {number}"
        outputs.append(whole((await world.run(script)).stdout))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(run, number)
    assert sorted(outputs, key=int) == [f"{number}\n" for number in range(20)]


async def test_b022_nothing_waits_for_a_person(world: CommandWorld) -> None:
    with anyio.fail_after(10):
        outcome = await world.run("read -p 'name? ' x; echo status=$?; env")
    lines = whole(outcome.stdout).splitlines()
    assert lines[0] == "status=1"
    for setting in ("CI=1", "TERM=dumb", "NO_COLOR=1", "PAGER=cat", "GIT_TERMINAL_PROMPT=0", "GIT_EDITOR=true"):
        assert setting in lines


async def test_b109_the_servers_own_environment_stays_outside(
    world: CommandWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_SANDBOX_TEST_SECRET", "hunter2")
    assert "hunter2" not in whole((await world.run("env; tr '\\0' '\\n' </proc/1/environ")).stdout)


async def test_m04_a_command_of_a_megabyte_is_run_and_leaves_no_file(world: CommandWorld) -> None:
    body = "x" * 1_048_576
    outcome = await world.run(f"wc -c <<'END'\n{body}\nEND\nls /var/spool/mcp-sandbox/*.sh | wc -l")
    assert whole(outcome.stdout) == "1048577\n1\n"
    assert whole((await world.run("ls /var/spool/mcp-sandbox | wc -l")).stdout) == "0\n"


async def test_standard_input_of_any_size_is_given_and_then_ends(world: CommandWorld) -> None:
    outcome = await world.run("wc -c", stdin="é" * 500_000)
    assert whole(outcome.stdout) == "1000000\n"


async def test_standard_input_that_nobody_reads_does_no_harm(world: CommandWorld) -> None:
    with anyio.fail_after(10):
        outcome = await world.run("true", stdin="x" * 1_000_000)
    assert outcome.result is not None
    assert outcome.result.exit_code == 0
    assert whole((await world.run("echo next")).stdout) == "next\n"


async def test_b035_endless_output_is_bounded_and_its_whole_text_is_in_the_sandbox(world: CommandWorld) -> None:
    outcome = await world.run("seq 1 300000")
    everything = "".join(f"{number}\n" for number in range(1, 300_001)).encode()
    assert outcome.stdout.total_bytes == len(everything)
    assert outcome.stdout.total_lines == 300_000
    assert everything.startswith(outcome.stdout.head)
    assert everything.endswith(outcome.stdout.tail)
    assert await world.get(outcome.stdout.spool_path) == everything


async def test_the_directory_is_the_workspace_or_what_is_asked_for(world: CommandWorld) -> None:
    await world.run("mkdir -p sub/deep")
    assert whole((await world.run("pwd")).stdout) == "/workspace\n"
    assert whole((await world.run("pwd", cwd="sub/../sub/deep")).stdout) == "/workspace/sub/deep\n"
    missing = await world.run("pwd", cwd="/nowhere")
    assert missing.result is not None
    assert missing.result.exit_code == 126
    assert "/nowhere" in missing.result.detail


async def test_a_command_that_begins_like_an_option_is_still_a_command(world: CommandWorld) -> None:
    outcome = await world.run("-c 'echo x'; echo after")
    assert whole(outcome.stdout) == "after\n"


@pytest.mark.parametrize("command", ["", "  \n", "echo \0"])
async def test_a_command_that_is_none_is_refused(world: CommandWorld, command: str) -> None:
    with pytest.raises(InvalidRequestError):
        await world.run(command)


@pytest.mark.parametrize(
    "fields", [{"timeout_s": 0}, {"timeout_s": -1}, {"env": {"A=B": "c"}}, {"env": {"A": "x" * 200_000}}, {"cwd": "\0"}]
)
async def test_what_no_process_can_be_given_is_refused(world: CommandWorld, fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        await world.run("true", **fields)


async def test_variables_of_the_call_stand_above_the_fixed_ones(world: CommandWorld) -> None:
    outcome = await world.run("echo $TERM $MINE", env={"TERM": "xterm", "MINE": "a b"})
    assert whole(outcome.stdout) == "xterm a b\n"


async def test_without_a_shell_the_command_is_split_into_words_and_the_answer_says_so(bare: CommandWorld) -> None:
    outcome = await bare.run("echo 'two words' three")
    assert whole(outcome.stdout) == "two words three\n"
    assert any("split into words" in note for note in outcome.notes)


async def test_b018_a_command_that_outlasts_the_window_becomes_a_job_and_loses_nothing(world: CommandWorld) -> None:
    outcome = await world.run("echo one; read x <<<two; sleep 0.6; echo $x; exit 5", window_s=0.3)
    assert (outcome.job_id, outcome.result, whole(outcome.stdout)) == ("j1", None, "one\n")
    with anyio.fail_after(10):
        rest = await world.service.jobs.wait("j1", within_s=10)
    assert whole(rest.stdout) == "one\ntwo\n"
    assert rest.result is not None
    assert rest.result.exit_code == 5
    assert await world.get("/var/spool/mcp-sandbox/j1.out") == b"one\ntwo\n"


async def test_the_deadline_goes_on_holding_when_a_call_becomes_a_job(world: CommandWorld) -> None:
    await world.run("sleep 4715", window_s=0.2, timeout_s=0.6)
    with anyio.fail_after(10):
        ended = await world.service.jobs.wait("j1", within_s=10)
    assert ended.result is not None
    assert ended.result.termination is Termination.TIMEOUT
    assert await world.processes("sleep 4715") == 0


async def test_progress_tells_the_last_words_while_a_command_runs(world: CommandWorld) -> None:
    told: list[str] = []

    async def progress(elapsed_s: float, last: str) -> None:
        assert elapsed_s > 0
        told.append(last)

    await world.service.run(CommandRequest(command="echo working; sleep 1.3"), progress)
    assert told == ["working\n"]


async def test_cancelling_between_two_chunks_loses_none_of_the_next_command(world: CommandWorld) -> None:
    with anyio.move_on_after(0.2):
        await world.run("yes")
    outcome = await world.run("seq 1 1000")
    assert whole(outcome.stdout) == "".join(f"{number}\n" for number in range(1, 1001))
    assert not outcome.gap


async def test_a_server_keeps_answering_while_commands_flood_it(world: CommandWorld) -> None:
    slowest_s = 0.0

    async def flood() -> None:
        await world.run("yes", timeout_s=1.5)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(flood)
        end = anyio.current_time() + 1.2
        while (now := anyio.current_time()) < end:
            await anyio.sleep(0.01)
            slowest_s = max(slowest_s, anyio.current_time() - now - 0.01)
    assert slowest_s < 0.5


async def test_leaving_the_service_ends_everything_in_time(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with open_command_world("local", tmp_path) as world:
            await world.run("sleep 4716 & sleep 4717", background=True)
            directory = world.live.directory
            started = anyio.current_time()
        assert anyio.current_time() - started < 4
    assert [record.status for record in JobStore(directory).records()] == ["running"]
    assert JobStore(directory).get("j1").owner.pid == os.getpid()
