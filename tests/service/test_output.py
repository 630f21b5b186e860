"""Output in bounded memory, and its spool files."""

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_sandbox.core.exec import OutputChunk, StreamName
from mcp_sandbox.core.files import ReadRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.providers.memory import MemoryProvider
from mcp_sandbox.service.output import HEAD_BYTES, TAIL_BYTES, Output, Window, unfinished
from mcp_sandbox.service.spool import Spool
from mcp_sandbox.store.identity import new_sandbox_id

__all__: list[str] = []


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncGenerator[Sandbox]:
    async with MemoryProvider(tmp_path) as provider:
        yield await provider.create(SandboxSpec(id=new_sandbox_id()))


async def _content(sandbox: Sandbox, path: str) -> bytes:
    async with await sandbox.read(ReadRequest(path=path)) as reader:
        return b"".join([chunk async for chunk in reader])


@given(st.lists(st.binary(max_size=200) | st.integers(0, 70_000).map(lambda size: b"a\n" * size), max_size=12))
def test_a_window_keeps_the_first_and_the_last_bytes_and_counts_all(chunks: list[bytes]) -> None:
    window, everything = Window(), b"".join(chunks)
    for chunk in chunks:
        window.add(chunk)
    found = window.take(final=True)
    assert found.total_bytes == len(everything)
    assert found.total_lines == everything.count(b"\n")
    if len(everything) <= HEAD_BYTES:
        assert (found.head, found.tail) == (everything, b"")
    assert everything.startswith(found.head[:HEAD_BYTES])
    assert everything.endswith(found.tail or found.head)
    assert len(found.head) + len(found.tail) == min(len(everything), HEAD_BYTES + TAIL_BYTES)
    assert window.take(final=True).total_bytes == 0


@given(st.text(min_size=1), st.data())
def test_m18_a_character_split_between_two_looks_arrives_whole(text: str, data: st.DataObject) -> None:
    everything = text.encode()
    middle = data.draw(st.integers(0, len(everything)))
    window = Window()
    window.add(everything[:middle])
    first = window.take(final=False)
    window.add(everything[middle:])
    second = window.take(final=True)
    assert first.head.decode() + second.head.decode() == text
    assert first.total_bytes + second.total_bytes == len(everything)


@pytest.mark.parametrize(
    ("data", "length"),
    [(b"", 0), (b"a", 0), (b"\xc3", 1), (b"\xc3\xa9", 0), (b"\xf0\x9f\x99", 3), (b"\x80\x80\x80\x80", 0), (b"\xff", 1)],
)
def test_only_what_can_still_become_a_character_is_unfinished(data: bytes, length: int) -> None:
    assert unfinished(data) == length


async def test_b035_output_beyond_the_budget_is_spooled_whole(sandbox: Sandbox) -> None:
    chunks = [b"%07d\n" % number * 500 for number in range(40)]
    opened: list[Spool] = []

    async def open_spool(stream: StreamName) -> Spool:
        opened.append(Spool(sandbox, f"/var/spool/mcp-sandbox/x.{stream}"))
        return opened[-1]

    output = Output(open_spool)
    for sequence, chunk in enumerate(chunks):
        if output.add(OutputChunk(StreamName.STDOUT, chunk, sequence)):
            await output.settle()
    output.close()
    for spool in opened:
        await spool.run()
    stdout, stderr = output.take(final=True)
    assert await _content(sandbox, stdout.spool_path) == b"".join(chunks)
    assert (stdout.total_bytes, stderr.total_bytes, stderr.spool_path) == (160_000, 0, "")
    assert not output.gap


async def test_small_output_is_not_spooled(sandbox: Sandbox) -> None:
    async def open_spool(_: StreamName) -> Spool:
        raise AssertionError

    output = Output(open_spool)
    assert not output.add(OutputChunk(StreamName.STDERR, b"few words\n", 0))
    assert output.last_line() == "few words\n"


def test_lost_chunks_are_noticed() -> None:
    async def open_spool(_: StreamName) -> Spool:
        raise AssertionError

    output = Output(open_spool)
    output.add(OutputChunk(StreamName.STDOUT, b"a", 0))
    output.add(OutputChunk(StreamName.STDOUT, b"c", 2))
    assert output.gap


async def test_a_spool_file_has_a_limit_and_says_what_is_missing(sandbox: Sandbox) -> None:
    spool = Spool(sandbox, "/workspace/spool", limit_bytes=10)
    spool.put(b"123456")
    spool.put(b"789abcdef")
    spool.close()
    await spool.run()
    assert await _content(sandbox, "/workspace/spool") == b"123456789a"
    assert spool.cut_bytes == 5


async def test_a_spool_file_that_cannot_be_written_does_not_stop_the_command(sandbox: Sandbox) -> None:
    spool = Spool(sandbox, "/workspace")
    spool.put(b"x" * 3_000_000)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(spool.run)
            await spool.caught_up()
            spool.put(b"more")
            await spool.flush()
    assert spool.failure == "Is a directory"
    assert spool.cut_bytes == 3_000_004


async def test_a_spool_file_can_be_renamed_while_it_grows(sandbox: Sandbox) -> None:
    spool = Spool(sandbox, "/workspace/old")
    spool.put(b"one ")
    await spool.flush()
    spool.put(b"two ")
    await spool.rename("/workspace/new")
    spool.put(b"three")
    spool.close()
    await spool.run()
    assert await _content(sandbox, "/workspace/new") == b"one two three"
    with pytest.raises(FileNotFoundError):
        await _content(sandbox, "/workspace/old")
