"""The kit finds what is wrong: each fault here, in an otherwise sound provider, fails the test that names it."""

from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.capability import Capabilities, Verb
from mcp_sandbox.core.delegation import DelegatingExecution, DelegatingProvider, DelegatingSandbox
from mcp_sandbox.core.exec import ExecEvent, ExecRequest, Execution, OutputChunk, StreamName
from mcp_sandbox.core.files import FileReader, ReadRequest, UploadRequest, WriteRequest, WriteResult
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import Limits, SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent
from mcp_sandbox.providers.memory import MemoryProvider
from mcp_sandbox.testing.archives import ArchiveContract
from mcp_sandbox.testing.driving import drain, new_spec, put
from mcp_sandbox.testing.execution import ExecutionContract
from mcp_sandbox.testing.files import FileContract
from mcp_sandbox.testing.lifecycle import LifecycleContract
from mcp_sandbox.testing.limits import LimitContract
from mcp_sandbox.testing.snapshots import SnapshotContract


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[Provider]:
    async with MemoryProvider(tmp_path) as provider:
        yield provider


@pytest.fixture
async def sound(provider: Provider) -> Sandbox:
    return await provider.create(new_spec(provider.capabilities))


async def fails(test: Awaitable[None]) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await test


# ---------------------------------------------------------------------------------------------- files


class ShortReads(DelegatingSandbox):
    """Reads one byte too little."""

    async def read(self, request: ReadRequest) -> FileReader:
        size = (await super().read(request)).info.size_bytes
        return await super().read(replace(request, length=max(0, size - 1)))


class ForgetfulOfModes(DelegatingSandbox):
    """Writes every file with the same mode."""

    async def write(self, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
        return await super().write(replace(request, mode=0o644), data)


class TornWrites(DelegatingSandbox):
    """Writes in two steps, between which others can look."""

    async def write(self, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
        assert isinstance(data, bytes)
        await super().write(request, data[:10])
        await anyio.sleep(0.001)
        return await super().write(request, data)


async def test_a_lost_byte_is_found(sound: Sandbox) -> None:
    await fails(FileContract().test_bytes_survive_a_round_trip(ShortReads(sound), b"12345"))


async def test_a_lost_mode_is_found(sound: Sandbox) -> None:
    await fails(
        FileContract().test_a_new_file_is_readable_by_all_and_an_old_one_keeps_its_mode(ForgetfulOfModes(sound))
    )


async def test_a_torn_write_is_found(sound: Sandbox) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await FileContract().test_a_reader_never_sees_half_a_write(TornWrites(sound))
    assert caught.group_contains(AssertionError)


# ---------------------------------------------------------------------------------------------- commands


class Altered(DelegatingSandbox):
    """Gives out executions of a faulty class."""

    def __init__(self, inner: Sandbox, faulty: type[DelegatingExecution]) -> None:
        super().__init__(inner)
        self._faulty = faulty

    async def exec(self, request: ExecRequest) -> Execution:
        return self._faulty(await super().exec(request))


class EarlyEnd(DelegatingExecution):
    """Tells the end before the output."""

    def __init__(self, inner: Execution) -> None:
        super().__init__(inner)
        self._events: list[ExecEvent] | None = None

    async def receive(self) -> ExecEvent:
        if self._events is None:
            events = (await drain(self._inner)).events
            self._events = sorted(events, key=lambda event: isinstance(event, OutputChunk))
        if not self._events:
            raise anyio.EndOfStream
        return self._events.pop(0)


class LostChunk(DelegatingExecution):
    """Loses the second chunk."""

    async def receive(self) -> ExecEvent:
        event = await super().receive()
        return await super().receive() if isinstance(event, OutputChunk) and event.seq == 1 else event


class MixedStreams(DelegatingExecution):
    """Calls everything standard error."""

    async def receive(self) -> ExecEvent:
        event = await super().receive()
        return replace(event, stream=StreamName.STDERR) if isinstance(event, OutputChunk) else event


async def test_an_end_before_the_output_is_found(sound: Sandbox) -> None:
    await fails(
        ExecutionContract().test_chunks_are_counted_and_the_end_comes_after_all_of_them(Altered(sound, EarlyEnd))
    )


async def test_a_lost_chunk_is_found(sound: Sandbox) -> None:
    await fails(ExecutionContract().test_a_megabyte_of_input_arrives_whole(Altered(sound, LostChunk)))


async def test_a_mixed_up_stream_is_found(sound: Sandbox) -> None:
    await fails(ExecutionContract().test_a_command_starts_in_its_directory(Altered(sound, MixedStreams)))


# ---------------------------------------------------------------------------------------------- archives, snapshots


class TrustingUpload(DelegatingSandbox):
    """Overwrites what an archive's link leads to."""

    async def upload(self, request: UploadRequest, tar: ByteReceiveStream) -> None:
        await super().upload(request, tar)
        await put(self, "/workspace/outside/victim", b"bad")


class LazyRestore(DelegatingSandbox):
    """Restores nothing."""

    async def restore(self, content: NativeContent) -> None:
        return


async def test_an_archive_that_leaves_its_directory_is_found(sound: Sandbox) -> None:
    contract = ArchiveContract()
    await put(sound, "/workspace/outside/victim", b"victim")
    await put(sound, "/workspace/into/there")
    await fails(contract.test_ft07_b045_no_member_leaves_the_directory(TrustingUpload(sound), "/workspace/into", []))


async def test_a_restore_that_does_nothing_is_found(sound: Sandbox) -> None:
    await put(sound, "/workspace/empty", b"")
    for name in ("plain", "script", "secret", "deep/er/big"):
        await put(sound, f"/workspace/{name}", b"1")
    await fails(SnapshotContract().test_an_emptied_workspace_comes_back(LazyRestore(sound)))


# ---------------------------------------------------------------------------------------------- capabilities


class Modest(DelegatingProvider):
    """Declares no optional verb and no limit, but refuses nothing."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, verbs={}, limits=frozenset(), snapshot_holds=frozenset())

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await super().create(replace(spec, limits=Limits(pids=None, open_files=None)))


class Refusing(DelegatingSandbox):
    """Has no optional verbs: what the border's base class does instead is right."""

    snapshot = Sandbox.snapshot
    restore = Sandbox.restore
    adopt = Sandbox.adopt
    dial = Sandbox.dial
    fork = Sandbox.fork


class Honest(Modest):
    """Declares no optional verb, and refuses all of them."""

    restore = Provider.restore
    diff = Provider.diff

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        return Refusing(sandbox)


async def test_a_verb_that_is_not_declared_but_works_is_found(provider: Provider) -> None:
    modest = Modest(provider)
    sandbox = await modest.create(new_spec(modest.capabilities))
    await fails(LifecycleContract().test_undeclared_verbs_refuse(modest, sandbox))


async def test_the_refusals_of_the_border_itself_are_right(provider: Provider) -> None:
    honest = Honest(provider)
    assert not any(honest.capabilities.supports(verb) for verb in Verb)
    sandbox = await honest.create(new_spec(honest.capabilities))
    await LifecycleContract().test_undeclared_verbs_refuse(honest, sandbox)


async def test_a_limit_that_is_ignored_is_found(provider: Provider) -> None:
    await fails(LimitContract().test_an_undeclared_limit_is_refused_before_anything_is_made(Modest(provider), "pids"))
