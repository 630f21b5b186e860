"""Commands that run on by themselves, seen by the server that runs them and by others."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from command_world import CommandWorld, open_command_world, whole

from mcp_sandbox.core.errors import NotFoundError, StateError
from mcp_sandbox.core.exec import Termination
from mcp_sandbox.core.files import RemoveRequest
from mcp_sandbox.store import jobs as job_store
from mcp_sandbox.store.jobs import JobOwner, JobStatus, JobStore

__all__: list[str] = []


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[CommandWorld]:
    async with open_command_world("local", tmp_path) as opened:
        yield opened


@pytest.fixture
async def other(world: CommandWorld, tmp_path: Path) -> AsyncGenerator[CommandWorld]:
    """A second server of the same sandbox."""
    async with open_command_world("local", tmp_path) as opened:
        assert opened.live.record.id == world.live.record.id
        yield opened


async def _start(world: CommandWorld, command: str) -> str:
    outcome = await world.run(command, background=True)
    return outcome.job_id


async def test_a_background_command_answers_at_once_with_an_id_and_its_first_words(world: CommandWorld) -> None:
    with anyio.fail_after(5):
        outcome = await world.run("echo begun; sleep 60", background=True)
    assert (outcome.job_id, outcome.result, whole(outcome.stdout)) == ("j1", None, "begun\n")
    assert outcome.spool_path == "/var/spool/mcp-sandbox/j1"


async def test_ids_are_counted_and_never_used_again(world: CommandWorld) -> None:
    first = [await _start(world, "true") for _ in range(3)]
    directory = world.live.directory / "jobs"
    for record in directory.glob("*.json"):
        record.unlink()
    assert [*first, await _start(world, "true")] == ["j1", "j2", "j3", "j4"]


async def test_a_wait_tells_what_is_new_and_output_tells_everything(world: CommandWorld) -> None:
    job_id = await _start(world, "echo one; read x; echo two; read x; echo three")
    jobs = world.service.jobs
    assert whole((await jobs.feed(job_id, "\n", within_s=5)).stdout) == "two\n"
    assert whole((await jobs.wait(job_id, within_s=0)).stdout) == ""
    for _ in range(2):
        assert whole((await jobs.output(job_id)).stdout) == "one\ntwo\n"
    assert whole((await jobs.wait(job_id, within_s=0)).stdout) == ""
    await jobs.feed(job_id, "\n", within_s=0)
    for _ in range(2):
        assert whole((await jobs.wait(job_id, within_s=10)).stdout) == "one\ntwo\nthree\n"


async def test_waiting_returns_as_soon_as_the_job_ends(world: CommandWorld) -> None:
    job_id = await _start(world, "read x; echo $x; exit 7")
    with anyio.fail_after(10):
        await world.service.jobs.feed(job_id, "go\n", within_s=0)
        outcome = await world.service.jobs.wait(job_id, within_s=600)
    assert outcome.result is not None
    assert outcome.result.exit_code == 7


async def test_waiting_no_longer_than_allowed_says_that_it_still_runs(world: CommandWorld) -> None:
    job_id = await _start(world, "sleep 60")
    assert (await world.service.jobs.wait(job_id, within_s=0.05)).result is None


async def test_input_reaches_the_job_and_its_end_can_be_told(world: CommandWorld) -> None:
    jobs = world.service.jobs
    job_id = await _start(world, "while read line; do echo got $line; done; echo over")
    assert whole((await jobs.feed(job_id, "a\nb\n", within_s=5)).stdout) == "got a\ngot b\n"
    ended = await jobs.feed(job_id, "", close=True, within_s=5)
    assert whole(ended.stdout) == "over\n"
    assert ended.result is not None


async def test_input_for_a_job_that_takes_none_is_refused_with_the_reason(world: CommandWorld) -> None:
    await world.run("sleep 60", window_s=0.05)
    with pytest.raises(StateError, match=r"closed.*run_in_background"):
        await world.service.jobs.feed("j1", "x")


async def test_input_that_is_not_read_does_not_hang(world: CommandWorld) -> None:
    job_id = await _start(world, "read x; exec <&-; sleep 60")
    with anyio.fail_after(10), pytest.raises(StateError, match="no more input"):
        await world.service.jobs.feed(job_id, "x\n" + "y" * 1_000_000)


async def test_killing_ends_the_whole_tree_and_keeps_the_output(world: CommandWorld) -> None:
    job_id = await _start(world, "echo begun; setsid sleep 4721 & sleep 4722")
    outcome = await world.service.jobs.kill(job_id)
    assert outcome.result is not None
    assert outcome.result.termination is Termination.KILLED
    assert await world.processes("sleep 472") == 0
    assert whole((await world.service.jobs.output(job_id)).stdout) == "begun\n"


async def test_a_signal_can_be_sent_instead(world: CommandWorld) -> None:
    job_id = await _start(world, "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done")
    outcome = await world.service.jobs.kill(job_id, number=2)
    assert outcome.result is not None
    assert outcome.result.exit_code == 3
    assert whole(outcome.stdout).endswith("caught\n")


async def test_b014_a_deadline_holds_in_the_background(world: CommandWorld) -> None:
    await world.run("sleep 4723", background=True, timeout_s=0.3)
    with anyio.fail_after(10):
        outcome = await world.service.jobs.wait("j1", within_s=10)
    assert outcome.result is not None
    assert outcome.result.termination is Termination.TIMEOUT


async def test_b017_a_finished_job_can_still_be_read_and_killing_it_is_harmless(world: CommandWorld) -> None:
    job_id = await _start(world, "echo said; exit 4")
    ended = await world.service.jobs.wait(job_id, within_s=10)
    assert ended.result is not None
    for outcome in (
        await world.service.jobs.output(job_id),
        await world.service.jobs.kill(job_id),
    ):
        assert outcome.result is not None
        assert outcome.result.exit_code == 4


async def test_an_unknown_job_is_named_with_those_there_are(world: CommandWorld) -> None:
    await _start(world, "true")
    for wrong in ("j9", "k1", "../record", "j0", ""):
        with pytest.raises(NotFoundError):
            await world.service.jobs.output(wrong)
    with pytest.raises(NotFoundError, match="this sandbox has j1"):
        await world.service.jobs.wait("j9", within_s=1)


async def test_another_server_sees_the_job_and_its_output_but_cannot_steer_it(
    world: CommandWorld, other: CommandWorld
) -> None:
    job_id = await _start(world, "echo begun; read x; echo $x")
    assert [record.status for record in await other.service.jobs.records()] == [JobStatus.RUNNING]
    with anyio.fail_after(5):
        while not (seen := await other.service.jobs.wait(job_id, within_s=0)).stdout.total_bytes:
            await anyio.lowlevel.checkpoint()
    assert whole(seen.stdout) == "begun\n"
    assert whole((await other.service.jobs.wait(job_id, within_s=0)).stdout) == ""
    for steer in (other.service.jobs.kill(job_id), other.service.jobs.feed(job_id, "x")):
        with pytest.raises(StateError, match=f"process {os.getpid()}"):
            await steer
    await world.service.jobs.feed(job_id, "end\n", within_s=5)
    with anyio.fail_after(10):
        ended = await other.service.jobs.wait(job_id, within_s=10)
    assert ended.result is not None
    assert ended.result.exit_code == 0
    assert whole(ended.stdout) == "begun\nend\n"


async def test_two_servers_count_in_one_row(world: CommandWorld, other: CommandWorld) -> None:
    ids: list[str] = []

    async def start(server: CommandWorld) -> None:
        ids.append(await _start(server, "true"))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(start, world)
            tasks.start_soon(start, other)
    assert sorted(ids, key=lambda job_id: int(job_id[1:])) == [f"j{number}" for number in range(1, 17)]


async def test_a_job_of_a_dead_server_is_lost_and_its_output_is_there(world: CommandWorld) -> None:
    job_id = await _start(world, "echo kept; exit 2")
    await world.service.jobs.wait(job_id, within_s=10)
    store = JobStore(world.live.directory)
    dead = store.create(
        command="gone",
        cwd="/workspace",
        timeout_s=None,
        spool_directory="/var/spool/mcp-sandbox",
        started_at="2026-01-01T00:00:00.000Z",
    )
    # As a server leaves it that is killed: running, owned by a process that is no more.
    path = world.live.directory / "jobs" / f"{dead.id}.json"
    path.write_text(path.read_text().replace(dead.owner.started, "1"))
    await world.run(f"echo last words >/var/spool/mcp-sandbox/{dead.id}.out")
    with anyio.fail_after(5):
        outcome = await world.service.jobs.wait(dead.id, within_s=600)
    assert outcome.result is not None
    assert outcome.result.termination is Termination.LOST
    assert whole(outcome.stdout) == "last words\n"


async def test_output_that_a_restore_took_away_is_said_to_be_gone(world: CommandWorld, other: CommandWorld) -> None:
    job_id = await _start(world, "echo said")
    await world.service.jobs.wait(job_id, within_s=10)
    await world.live.sandbox.remove(RemoveRequest(path="/var/spool/mcp-sandbox/j1.out"))
    outcome = await other.service.jobs.output(job_id)
    assert any("is gone" in note for note in outcome.notes)


async def test_much_output_of_a_job_is_kept_whole_and_shown_in_part(world: CommandWorld, other: CommandWorld) -> None:
    job_id = await _start(world, "read x; seq 1 200000")
    with anyio.fail_after(10):
        await world.service.jobs.feed(job_id, "", close=True, within_s=0)
        outcome = await world.service.jobs.wait(job_id, within_s=10)
    everything = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
    assert await world.get("/var/spool/mcp-sandbox/j1.out") == everything
    assert outcome.stdout.omitted_bytes
    seen = await other.service.jobs.output(job_id)
    assert everything.startswith(seen.stdout.head)
    assert everything.endswith(seen.stdout.tail)
    assert seen.stdout.total_bytes == len(everything)


async def test_jobs_of_long_ago_are_forgotten_with_their_files(
    world: CommandWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_store, "KEPT", 2)
    for _ in range(3):
        await world.service.jobs.wait(await _start(world, "echo said"), within_s=10)
    await _start(world, "sleep 60")
    with anyio.fail_after(10):
        while len(whole((await world.run("ls /var/spool/mcp-sandbox")).stdout).split()) > 1:
            await anyio.lowlevel.checkpoint()
    assert [record.id for record in await world.service.jobs.records()] == ["j3", "j4"]


def test_this_very_process_is_alive_and_an_earlier_one_of_its_number_is_not() -> None:
    here = JobOwner(pid=os.getpid(), started="1", boot="")
    assert not here.is_alive
