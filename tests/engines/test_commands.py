"""Commands behave the same behind every carrier."""

import asyncio

import anyio
import pytest
from command_record import drain, run, shell, start

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.exec import Exited, StreamName, Termination
from mcp_sandbox.engines.carrier import GuestCarrier

__all__ = ["TestOutcomes", "TestStreams"]


class TestOutcomes:
    """How a command ends."""

    async def test_the_exit_code_is_the_commands_own(self, carrier: GuestCarrier) -> None:
        for code in (0, 1, 42, 255):
            done = await shell(carrier, f"exit {code}")
            assert (done.result.exit_code, done.result.signal) == (code, None)
            assert done.result.termination is Termination.EXITED

    async def test_a_fatal_signal_is_told_by_number(self, carrier: GuestCarrier) -> None:
        done = await shell(carrier, "kill -SEGV $$")
        assert (done.result.exit_code, done.result.signal) == (None, 11)
        assert done.result.termination is Termination.SIGNALED

    async def test_a_missing_program_is_a_result_of_127(self, carrier: GuestCarrier) -> None:
        done = await run(carrier, "no-such-program")
        assert done.result.exit_code == 127
        assert "no-such-program" in done.result.detail

    async def test_a_file_that_cannot_be_executed_is_a_result_of_126(self, carrier: GuestCarrier) -> None:
        assert (await run(carrier, "/dev/null")).result.exit_code == 126
        assert (await run(carrier, "/area")).result.exit_code == 126

    async def test_a_directory_that_does_not_exist_is_a_result_that_names_it(self, carrier: GuestCarrier) -> None:
        done = await run(carrier, "true", cwd="/no/such/place")
        assert done.result.exit_code == 126
        assert "/no/such/place" in done.result.detail

    async def test_an_argument_with_a_nul_is_refused(self, carrier: GuestCarrier) -> None:
        with pytest.raises(InvalidRequestError):
            await run(carrier, "echo", "a\0b")

    async def test_more_arguments_than_a_message_holds_is_a_result(self, carrier: GuestCarrier) -> None:
        done = await run(carrier, "echo", *["x" * 100_000] * 50)
        assert done.result.exit_code == 126
        assert "bytes" in done.result.detail

    async def test_a_message_of_many_frames_arrives_whole(self, carrier: GuestCarrier) -> None:
        done = await run(carrier, "echo", *["x" * 100_000] * 15)
        assert done.result.exit_code == 0
        assert len(done.text()) == 15 * 100_001

    async def test_what_the_command_used_is_told(self, carrier: GuestCarrier) -> None:
        result = (await shell(carrier, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")).result
        assert result.cpu_s > 0
        assert result.max_rss_bytes > 100_000
        assert result.duration_s > 0

    async def test_the_environment_is_the_one_that_was_asked_for(self, carrier: GuestCarrier) -> None:
        done = await run(carrier, "env", env={"GREETING": "grüß dich", "EMPTY": ""})
        assert sorted(done.text().decode().splitlines()) == sorted(
            ["PATH=/usr/bin:/bin", "HOME=/root", "GREETING=grüß dich", "EMPTY="]
        )

    async def test_arguments_that_are_not_utf8_arrive_as_they_are(self, carrier: GuestCarrier) -> None:
        assert (await run(carrier, "printf", "%s", "a\udcffb")).text() == b"a\xffb"

    async def test_no_descriptor_of_the_agent_reaches_a_command(self, carrier: GuestCarrier) -> None:
        done = await shell(carrier, "ls /proc/self/fd")
        assert done.text().split() == [b"0", b"1", b"2", b"3"]  # 3 is what ls reads

    async def test_standard_input_is_at_its_end_whatever_dev_null_became(self, carrier: GuestCarrier) -> None:
        done = await run(carrier, "cat")
        assert (done.result.exit_code, done.text()) == (0, b"")


class TestStreams:
    """What a command says and reads."""

    async def test_the_streams_stay_apart(self, carrier: GuestCarrier) -> None:
        done = await shell(carrier, "echo out; echo err >&2; printf 'a\\0b'")
        assert done.text() == b"out\na\0b"
        assert done.errors == b"err\n"

    async def test_chunks_are_counted_over_both_streams(self, carrier: GuestCarrier) -> None:
        done = await shell(carrier, "for i in 1 2 3 4 5; do echo $i; echo $i >&2; done")
        assert [chunk.seq for chunk in done.before] == list(range(len(done.before)))

    async def test_everything_comes_before_the_end_also_to_a_slow_reader(self, carrier: GuestCarrier) -> None:
        """16 MiB, much more than any buffer on the way holds."""
        execution = await start(carrier, "sh", "-c", "seq 1 2400000 | head -c 16777216; echo end >&2")
        async with execution:
            for _ in range(3):
                await anyio.sleep(0.05)  # a reader that takes its time
                await execution.receive()
            done = await drain(execution)
        size = sum(len(chunk.data) for chunk in done.before)
        assert done.after == []
        assert done.errors == b"end\n"
        assert 16777216 - 3 * 65536 <= size <= 16777216 + 4

    async def test_the_bytes_are_the_ones_that_were_written(self, carrier: GuestCarrier) -> None:
        done = await shell(carrier, "seq 1 400000")
        assert done.text() == b"".join(b"%d\n" % i for i in range(1, 400_001))

    async def test_a_child_in_the_background_does_not_hold_up_the_end(self, carrier: GuestCarrier) -> None:
        """B-008: `sleep 60 & echo done` returns at once; what the child says later still comes."""
        script = "(while [ ! -e /area/go ]; do sleep 0.01; done; echo late; rm /area/go) & echo done"
        async with await start(carrier, "sh", "-c", script) as execution:
            with anyio.fail_after(10):
                seen = b""
                while not isinstance(event := await execution.receive(), Exited):
                    seen += event.data
                assert seen == b"done\n"
                assert event.result.exit_code == 0
                await shell(carrier, "touch /area/go")
                late = await execution.receive()
                assert not isinstance(late, Exited)
                assert late.data == b"late\n"
                with pytest.raises(anyio.EndOfStream):
                    await execution.receive()

    async def test_a_child_that_never_stops_writing_does_not_hold_up_the_end(self, carrier: GuestCarrier) -> None:
        said = b""
        async with await start(carrier, "sh", "-c", "yes & echo $! >&2") as execution:
            with anyio.fail_after(10):
                while not isinstance(event := await execution.receive(), Exited):
                    said += event.data if event.stream is StreamName.STDERR else b""
                assert event.result.exit_code == 0
        await run(carrier, "kill", "-9", said.decode().strip())

    async def test_input_is_read_to_its_end(self, carrier: GuestCarrier) -> None:
        data = bytes(range(256)) * 20_000
        async with await start(carrier, "cat", stdin=True) as execution:

            async def write() -> None:
                await execution.write_stdin(data)
                await execution.close_stdin()

            writing = asyncio.create_task(write())
            done = await drain(execution)
            await writing
        assert done.text() == data
        assert done.result.exit_code == 0

    async def test_input_can_be_written_piece_by_piece(self, carrier: GuestCarrier) -> None:
        async with await start(
            carrier, "sh", "-c", "read a; echo got $a; read b; echo got $b", stdin=True
        ) as execution:
            for word in (b"one", b"two"):
                await execution.write_stdin(word + b"\n")
                with anyio.fail_after(5):
                    event = await execution.receive()
                assert not isinstance(event, Exited)
                assert event.data == b"got " + word + b"\n"

    async def test_a_command_that_does_not_read_does_not_hang_its_writer(self, carrier: GuestCarrier) -> None:
        async with await start(carrier, "true", stdin=True) as execution:
            with anyio.fail_after(10), pytest.raises(anyio.BrokenResourceError):
                while True:
                    await execution.write_stdin(bytes(100_000))
            await execution.close_stdin()
            with pytest.raises(anyio.ClosedResourceError):
                await execution.write_stdin(b"more")
            assert (await execution.wait()).exit_code == 0

    async def test_input_that_was_not_asked_for_cannot_be_written(self, carrier: GuestCarrier) -> None:
        async with await start(carrier, "true") as execution:
            with pytest.raises(anyio.ClosedResourceError):
                await execution.write_stdin(b"x")

    async def test_the_result_is_there_for_whoever_does_not_read(self, carrier: GuestCarrier) -> None:
        async with await start(carrier, "sh", "-c", "echo some; echo words >&2; exit 3") as execution:
            with anyio.fail_after(5):
                assert (await execution.wait()).exit_code == 3
            done = await drain(execution)
            assert (done.text(), done.errors) == (b"some\n", b"words\n")

    async def test_64_commands_run_side_by_side(self, carrier: GuestCarrier) -> None:
        """Each one waits for a file that the last one makes, so that they really overlap."""
        outputs: dict[int, bytes] = {}

        async def one(number: int) -> None:
            script = f"echo {number}; touch /area/up{number}; while [ ! -e /area/all ]; do sleep 0.02; done; echo end"
            outputs[number] = (await shell(carrier, script)).text()

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for number in range(64):
                    tasks.start_soon(one, number)
                script = "while [ $(ls /area | wc -l) -lt 64 ]; do sleep 0.02; done; touch /area/all"
                await shell(carrier, script)
        await shell(carrier, "rm -f /area/*")
        assert outputs == {number: b"%d\nend\n" % number for number in range(64)}

    async def test_both_streams_progress_while_one_is_full(self, carrier: GuestCarrier) -> None:
        done = await shell(carrier, "head -c 2000000 /dev/zero >&2 & head -c 2000000 /dev/zero; wait")
        assert len(done.text(StreamName.STDOUT)) == len(done.text(StreamName.STDERR)) == 2_000_000
