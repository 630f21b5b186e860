"""One command: its result, its two streams, its input, its arguments. Mostly without a shell, so for every provider."""

import errno
import hashlib
import signal

import anyio
import pytest

from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.exec import ExecRequest, Exited, OutputChunk, Termination
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import HANG_S, drain, new_spec, put, run, sh, until_exit

__all__ = ["ExecutionContract"]

MIB = 1 << 20
WORDS = ["", " ", "two words", "line\nbreak", "'\"$HOME`", "-n", "*", "ünïcødé 漢字", "\udc85"]


class ExecutionContract(Contract):
    """A command is started, speaks, listens and ends."""

    # -- results

    async def test_exit_status_zero_is_success(self, sandbox: Sandbox) -> None:
        outcome = await run(sandbox, "true")
        assert (outcome.exit_code, outcome.result.signal) == (0, None)
        assert outcome.result.termination is Termination.EXITED

    async def test_b021_a_failing_command_without_output_is_a_result(self, sandbox: Sandbox) -> None:
        """B-021: a command that says nothing and fails must not hang."""
        outcome = await run(sandbox, "false")
        assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (1, b"", b"")

    @pytest.mark.parametrize("status", [1, 3, 125, 128, 137, 255])
    async def test_exit_status_is_the_programs_own(self, programs: None, sandbox: Sandbox, status: int) -> None:
        """A high status is not taken for a signal."""
        result = (await sh(sandbox, 'exit "$1"', str(status))).result
        assert (result.exit_code, result.signal, result.termination) == (status, None, Termination.EXITED)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGHUP])
    async def test_death_by_a_signal_names_the_signal(self, programs: None, sandbox: Sandbox, number: int) -> None:
        """Every signal has its default action inside: nothing is inherited from whoever started the provider."""
        result = (await sh(sandbox, 'kill -"$1" $$', str(int(number)))).result
        assert (result.exit_code, result.signal, result.termination) == (None, number, Termination.SIGNALED)

    async def test_no_signal_is_blocked_or_ignored(self, programs: None, sandbox: Sandbox) -> None:
        status = (await run(sandbox, "cat", "/proc/self/status")).stdout.decode()
        masks = dict(line.split(":\t", 1) for line in status.splitlines() if line.startswith(("SigBlk", "SigIgn")))
        if not masks:
            pytest.skip("the kernel inside does not show the masks of a process")
        library = 0b11 << 31  # 32 and 33 belong to the C library of whoever runs, which sets them as it needs
        assert {name: int(mask, 16) & ~library for name, mask in masks.items()} == {"SigBlk": 0, "SigIgn": 0}

    @pytest.mark.parametrize("program", ["no-such-program", "/no/such/program", "/workspace/missing"])
    async def test_a_missing_program_is_a_result_with_status_127(self, sandbox: Sandbox, program: str) -> None:
        result = (await run(sandbox, program)).result
        assert (result.exit_code, result.termination) == (127, Termination.EXITED)
        assert program in result.detail

    async def test_a_file_that_is_no_program_is_a_result_with_status_126(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/text", b"plain text\n", 0o644)
        result = (await run(sandbox, "/workspace/text")).result
        assert (result.exit_code, result.termination) == (126, Termination.EXITED)
        assert result.detail

    async def test_a_directory_as_program_is_a_result_with_status_126(self, sandbox: Sandbox) -> None:
        assert (await run(sandbox, "/workspace")).exit_code == 126

    @pytest.mark.parametrize("cwd", ["/workspace/missing", "/workspace/file"])
    async def test_a_directory_that_cannot_be_entered_is_a_result_that_names_it(
        self, sandbox: Sandbox, cwd: str
    ) -> None:
        await put(sandbox, "/workspace/file")
        result = (await run(sandbox, "true", cwd=cwd)).result
        assert result.exit_code in (126, 127)
        assert cwd in result.detail

    async def test_a_command_starts_in_its_directory(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/deep/er/file")
        assert (await run(sandbox, "pwd")).stdout == b"/workspace\n"
        assert (await run(sandbox, "pwd", cwd="/workspace/deep/er")).stdout == b"/workspace/deep/er\n"

    async def test_duration_is_measured_and_wait_gives_the_same_result(self, sandbox: Sandbox) -> None:
        async with await sandbox.exec(ExecRequest(argv=("sleep", "0.2"))) as execution:
            outcome = await until_exit(execution)
            assert await execution.wait() == outcome.result
        assert 0.2 <= outcome.result.duration_s < HANG_S

    # -- output

    async def test_streams_are_kept_apart(self, programs: None, sandbox: Sandbox) -> None:
        outcome = await sh(sandbox, "echo out; echo err >&2; exit 3")
        assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (3, b"out\n", b"err\n")

    async def test_chunks_are_counted_and_the_end_comes_after_all_of_them(self, sandbox: Sandbox) -> None:
        outcome = await run(sandbox, "cat", stdin=b"line\n" * 100_000)
        *chunks, end = outcome.events
        assert [c.seq for c in chunks if isinstance(c, OutputChunk)] == list(range(len(chunks)))
        assert not any(c.gap for c in chunks if isinstance(c, OutputChunk))
        assert isinstance(end, Exited)

    async def test_output_that_is_there_comes_before_the_end_even_if_nobody_reads_at_first(
        self, programs: None, sandbox: Sandbox
    ) -> None:
        async with await sandbox.exec(ExecRequest(argv=("sh", "-c", "echo out; echo err >&2"))) as execution:
            with anyio.fail_after(HANG_S):
                await execution.wait()
            outcome = await until_exit(execution)
        assert (outcome.stdout, outcome.stderr) == (b"out\n", b"err\n")

    async def test_nothing_is_received_after_the_end_of_the_stream(self, sandbox: Sandbox) -> None:
        async with await sandbox.exec(ExecRequest(argv=("true",))) as execution:
            await drain(execution)
            for _ in range(2):
                with pytest.raises(anyio.EndOfStream):
                    await execution.receive()

    async def test_a_command_opens_its_own_streams_by_name(self, programs: None, sandbox: Sandbox) -> None:
        script = "echo out > /dev/stdout; echo err > /dev/stderr; cat /dev/stdin; echo both | tee /dev/stderr"
        outcome = await run(sandbox, "sh", "-c", script, stdin=b"in\n")
        assert (outcome.stdout, outcome.stderr) == (b"out\nin\nboth\n", b"err\nboth\n")

    async def test_megabytes_on_both_streams_arrive_whole(self, programs: None, sandbox: Sandbox) -> None:
        """M-02, M-10: more than a pipe holds, on both streams at once."""
        outcome = await sh(sandbox, "seq 1 400000 & seq 400001 800000 >&2; wait")
        expected = [b"".join(b"%d\n" % n for n in range(first, first + 400_000)) for first in (1, 400_001)]
        digests = [hashlib.sha256(data).hexdigest() for data in expected]
        got = [hashlib.sha256(data).hexdigest() for data in (outcome.stdout, outcome.stderr)]
        assert (outcome.exit_code, got) == (0, digests)

    async def test_b026_bytes_arrive_as_they_are(self, programs: None, sandbox: Sandbox) -> None:
        """B-026, B-027: invalid UTF-8, NUL and every other byte."""
        every = bytes(range(256))
        await put(sandbox, "/workspace/bytes", every * 64)
        assert (await run(sandbox, "cat", "/workspace/bytes")).stdout == every * 64

    async def test_an_impatient_reader_loses_nothing(self, programs: None, sandbox: Sandbox) -> None:
        """Cancelling `receive` takes no event away."""
        script = 'for n in $(seq 1 200); do echo "$n"; [ $((n % 20)) = 0 ] && sleep 0.02; done'
        lines = b""
        async with await sandbox.exec(ExecRequest(argv=("sh", "-c", script))) as execution:
            with anyio.fail_after(HANG_S):
                while True:
                    event = None
                    with anyio.move_on_after(0.003):
                        event = await execution.receive()
                    if isinstance(event, Exited):
                        break
                    lines += event.data if event else b""
        assert lines == b"".join(b"%d\n" % n for n in range(1, 201))

    # -- input

    @pytest.mark.parametrize("argv", [("cat",), ("sh", "-c", "read line || echo closed")])
    async def test_b022_input_is_at_its_end_unless_asked_for(
        self, capabilities: Capabilities, sandbox: Sandbox, argv: tuple[str, ...]
    ) -> None:
        """B-022, B-042, B-111: nothing inside waits for input that never comes, nor eats the server's."""
        if argv[0] == "sh" and not capabilities.runs_programs:
            pytest.skip("the provider declares runs_programs=False: no shell")
        outcome = await run(sandbox, *argv)
        assert outcome.stdout == (b"closed\n" if argv[0] == "sh" else b"")

    async def test_a_megabyte_of_input_arrives_whole(self, sandbox: Sandbox) -> None:
        data = b"".join(b"%07d\n" % n for n in range(MIB // 8))
        assert (await run(sandbox, "cat", stdin=data)).stdout == data

    async def test_input_is_never_read_by_a_shell(self, sandbox: Sandbox) -> None:
        text = b"$(reboot) `reboot` \"' \\ ; & | > < * ? ~ ! # \r\n\t\x00"
        assert (await run(sandbox, "cat", stdin=text)).stdout == text

    async def test_input_answers_what_the_command_just_said(self, programs: None, sandbox: Sandbox) -> None:
        script = 'printf "name? "; read name; echo "hello $name"'
        async with await sandbox.exec(ExecRequest(argv=("sh", "-c", script), stdin=True)) as execution:
            with anyio.fail_after(HANG_S):
                prompt = await execution.receive()
                assert isinstance(prompt, OutputChunk) and prompt.data == b"name? "
                await execution.write_stdin(b"you\n")
            assert (await drain(execution)).stdout == b"hello you\n"

    async def test_writing_input_that_was_not_asked_for_is_refused(self, sandbox: Sandbox) -> None:
        async with await sandbox.exec(ExecRequest(argv=("sleep", "20"))) as execution:
            with pytest.raises(anyio.ClosedResourceError):
                await execution.write_stdin(b"x")

    async def test_writing_after_closing_is_refused_and_closing_twice_is_not(self, sandbox: Sandbox) -> None:
        async with await sandbox.exec(ExecRequest(argv=("cat",), stdin=True)) as execution:
            await execution.close_stdin()
            await execution.close_stdin()
            with pytest.raises(anyio.ClosedResourceError):
                await execution.write_stdin(b"x")

    async def test_writing_to_a_command_that_has_ended_breaks_instead_of_waiting(self, sandbox: Sandbox) -> None:
        async with await sandbox.exec(ExecRequest(argv=("true",), stdin=True)) as execution:
            await until_exit(execution)
            with anyio.fail_after(HANG_S), pytest.raises(anyio.BrokenResourceError):
                await execution.write_stdin(b"x" * MIB)

    async def test_a_writer_is_woken_when_the_command_ends_without_reading(self, sandbox: Sandbox) -> None:
        async with await sandbox.exec(ExecRequest(argv=("sleep", "0.2"), stdin=True)) as execution:
            with anyio.fail_after(HANG_S), pytest.raises(anyio.BrokenResourceError):
                await execution.write_stdin(b"x" * MIB)

    # -- arguments and environment

    @pytest.mark.parametrize("word", WORDS, ids=ascii)
    async def test_an_argument_arrives_as_it_is(self, sandbox: Sandbox, word: str) -> None:
        """No shell in between; text that is not UTF-8 uses surrogate escapes."""
        outcome = await run(sandbox, "printf", "[%s]", word)
        assert outcome.stdout == b"[" + word.encode("utf-8", "surrogateescape") + b"]"

    async def test_an_argument_may_have_100_kib(self, sandbox: Sandbox) -> None:
        word = "x" * 102_400
        assert (await run(sandbox, "echo", word)).stdout == word.encode() + b"\n"

    async def test_m04_too_many_arguments_are_a_clear_answer_and_the_next_command_works(
        self, programs: None, sandbox: Sandbox
    ) -> None:
        """M-04: `E2BIG` is a result with 126, or an error that says so; it breaks nothing."""
        try:
            result = (await run(sandbox, "true", *("x" * 100_000 for _ in range(100)))).result
        except SandboxError:
            pass
        except OSError as error:
            assert error.errno == errno.E2BIG
        else:
            assert result.exit_code == 126
            assert result.detail
        assert (await run(sandbox, "echo", "still here")).stdout == b"still here\n"

    async def test_a_request_adds_variables_to_those_of_the_sandbox(self, provider: Provider) -> None:
        spec = new_spec(provider.capabilities, env={"FROM_SPEC": "spec", "BOTH": "spec", "RAW": "\udc85=\n"})
        async with await provider.create(spec) as sandbox:
            plain = await self.variables(sandbox)
            added = await self.variables(sandbox, {"BOTH": "request", "EMPTY": ""})
        await provider.destroy(spec.id)
        assert {name: plain.get(name) for name in spec.env} == spec.env
        assert added == plain | {"BOTH": "request", "EMPTY": ""}

    async def test_every_command_has_a_path_and_a_home_that_exists(self, sandbox: Sandbox) -> None:
        found = await self.variables(sandbox)
        assert "PATH" in found
        assert (await run(sandbox, "pwd", cwd=found["HOME"])).stdout.decode() == found["HOME"] + "\n"

    async def test_a_path_in_the_request_decides_where_programs_are_found(self, sandbox: Sandbox) -> None:
        assert (await run(sandbox, "echo", env={"PATH": "/nowhere"})).exit_code == 127

    @staticmethod
    async def variables(sandbox: Sandbox, added: dict[str, str] | None = None) -> dict[str, str]:
        """Return the environment that a command sees."""
        raw = (await run(sandbox, "env", "-0", env=added)).stdout.split(b"\0")
        pairs = [item.decode("utf-8", "surrogateescape").split("=", 1) for item in raw if item]
        return dict(pairs)

    # -- many at once

    async def test_b081_commands_run_side_by_side(self, capabilities: Capabilities, sandbox: Sandbox) -> None:
        """B-081, M-05: none waits for another one; each one ends only after all of them have begun."""
        count = min(20, capabilities.max_concurrent)
        executions = [await sandbox.exec(ExecRequest(argv=("cat",), stdin=True)) for _ in range(count)]
        for number, execution in enumerate(executions):
            await execution.write_stdin(b"%d" % number)
            await execution.close_stdin()
        outcomes = [await drain(execution) for execution in executions]
        for execution in executions:
            await execution.aclose()
        assert [outcome.stdout for outcome in outcomes] == [b"%d" % number for number in range(count)]

    async def test_many_callers_at_once_get_their_own_output(
        self, capabilities: Capabilities, sandbox: Sandbox
    ) -> None:
        got: dict[int, bytes] = {}

        async def speak(number: int) -> None:
            got[number] = (await run(sandbox, "echo", str(number))).stdout

        async with anyio.create_task_group() as tasks:
            for number in range(min(20, capabilities.max_concurrent)):
                tasks.start_soon(speak, number)
        assert got == {number: b"%d\n" % number for number in got}
