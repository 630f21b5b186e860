"""Lines over descriptors."""

import os
from collections.abc import Generator

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_sandbox.transport.wire import TOO_LONG, LineReader, LineWriter, reader_gone

__all__: list[str] = []


@pytest.fixture
def pipe() -> Generator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=12), st.data())
def test_lines_arrive_whole_and_long_ones_are_skipped_however_they_are_cut(
    lines: list[bytes], data: st.DataObject
) -> None:
    stream = b"\n".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    async def read() -> list[object]:
        readable, writable = os.pipe()
        found: list[object] = []
        begun, *later = pieces

        async def write() -> None:
            for piece in later:
                os.write(writable, piece)
                await anyio.lowlevel.checkpoint()
            os.close(writable)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            reader = LineReader(readable, begun=begun, max_line_bytes=20)
            while (line := await reader.next()) is not None:
                found.append(line)
        os.close(readable)
        return found

    expected = [line if len(line) <= 20 else TOO_LONG for line in lines]
    if expected and expected[-1] == b"":
        expected.pop()
    assert anyio.run(read) == expected


async def test_cancelling_a_reader_loses_nothing(pipe: tuple[int, int]) -> None:
    reader = LineReader(pipe[0])
    os.write(pipe[1], b"begin")
    with anyio.move_on_after(0.01):
        await reader.next()
    os.write(pipe[1], b"ning\n")
    assert await reader.next() == b"beginning"


async def test_a_cancelled_writer_leaves_the_rest_of_its_line_to_the_next_one(pipe: tuple[int, int]) -> None:
    writer = LineWriter(pipe[1])
    with anyio.move_on_after(0.01) as scope:
        await writer.write(b"x" * 1_000_000 + b"\n")
    assert scope.cancelled_caught
    reader = LineReader(pipe[0])
    lines: list[object] = []

    async def read() -> None:
        lines.extend([await reader.next(), await reader.next()])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await writer.write(b"next\n")
    assert lines == [b"x" * 1_000_000, b"next"]


async def test_lines_of_many_writers_do_not_run_into_each_other(pipe: tuple[int, int]) -> None:
    writer, reader = LineWriter(pipe[1]), LineReader(pipe[0])
    lines: list[object] = []

    async def read() -> None:
        lines.extend([await reader.next() for _ in range(10)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        for number in range(10):
            tasks.start_soon(writer.write, b"%d" % number * 100_000 + b"\n")
    assert all(isinstance(line, bytes) and len(set(line)) == 1 and len(line) == 100_000 for line in lines)


async def test_a_reader_that_goes_is_noticed() -> None:
    readable, writable = os.pipe()
    gone: list[bool] = []

    async def watch() -> None:
        gone.append(await reader_gone(writable))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await anyio.wait_all_tasks_blocked()
        os.close(readable)
    assert gone == [True]
    os.close(writable)


def test_files_are_read_to_their_end() -> None:
    with open("/dev/null", "rb") as file:
        assert anyio.run(LineReader(file.fileno()).next) is None
    with open(__file__, "rb") as file:
        assert anyio.run(LineReader(file.fileno()).next) == b'"""Lines over descriptors."""'
