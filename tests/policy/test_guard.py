"""The guard refuses before anything reaches the provider, and everything it gives out is guarded too."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_sandbox.core.capability import Facet, Isolation
from mcp_sandbox.core.errors import InvalidRequestError, PolicyDeniedError, UnsupportedError
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.files import (
    DownloadRequest,
    ListRequest,
    MkdirRequest,
    ReadRequest,
    RemoveRequest,
    RenameRequest,
    StatRequest,
    UploadRequest,
    WriteRequest,
)
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.core.streams import BytesStream
from mcp_sandbox.policy.guard import GuardedProvider, GuardedSandbox
from mcp_sandbox.policy.rules import Policy
from mcp_sandbox.providers.memory import MemoryProvider
from mcp_sandbox.testing.driving import entries, new_spec, put, read_file

POLICY = Policy(min_isolation=Isolation.NONE, max_timeout_s=10.0, max_write_bytes=1000)


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[Provider]:
    async with GuardedProvider(MemoryProvider(tmp_path), POLICY) as provider:
        yield provider


@pytest.fixture
async def sandbox(provider: Provider) -> Sandbox:
    return await provider.create(new_spec(provider.capabilities))


CALLS: dict[str, Callable[[Sandbox, str], Awaitable[object]]] = {
    "exec": lambda s, path: s.exec(ExecRequest(argv=("true",), cwd=path)),
    "read": lambda s, path: s.read(ReadRequest(path=path)),
    "write": lambda s, path: s.write(WriteRequest(path=path), b""),
    "stat": lambda s, path: s.stat(StatRequest(path=path)),
    "list": lambda s, path: s.list(ListRequest(path=path)),
    "remove": lambda s, path: s.remove(RemoveRequest(path=path)),
    "rename from": lambda s, path: s.rename(RenameRequest(source=path, target="/x")),
    "rename to": lambda s, path: s.rename(RenameRequest(source="/workspace", target=path)),
    "mkdir": lambda s, path: s.mkdir(MkdirRequest(path=path)),
    "upload": lambda s, path: s.upload(UploadRequest(path=path), BytesStream(b"")),
    "download": lambda s, path: s.download(DownloadRequest(path=path)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("path", ["relative", "/with\0nul", "/" + "x" * 4096], ids=["relative", "NUL", "long"])
async def test_every_verb_refuses_a_path_that_cannot_be(
    sandbox: Sandbox, call: Callable[[Sandbox, str], Awaitable[object]], path: str
) -> None:
    with pytest.raises(InvalidRequestError):
        await call(sandbox, path)


SENSELESS: dict[str, Callable[[Sandbox], Awaitable[object]]] = {
    "offset": lambda s: s.read(ReadRequest(path="/f", offset=-1)),
    "length": lambda s: s.read(ReadRequest(path="/f", length=-1)),
    "depth": lambda s: s.list(ListRequest(path="/", depth=0)),
    "limit": lambda s: s.list(ListRequest(path="/", limit=0)),
    "mode of a directory": lambda s: s.mkdir(MkdirRequest(path="/d", mode=0o10000)),
    "mode of a file": lambda s: s.write(WriteRequest(path="/f", mode=-1), b""),
}


@pytest.mark.parametrize("call", SENSELESS.values(), ids=SENSELESS)
async def test_numbers_that_make_no_sense_are_refused(
    sandbox: Sandbox, call: Callable[[Sandbox], Awaitable[object]]
) -> None:
    with pytest.raises(InvalidRequestError):
        await call(sandbox)


async def test_a_write_or_upload_that_is_too_large_is_refused_and_changes_nothing(sandbox: Sandbox) -> None:
    await put(sandbox, "/workspace/file", b"old")
    for data in (b"x" * 1001, BytesStream(b"x" * 1001)):
        with pytest.raises(PolicyDeniedError, match="max_write_bytes"):
            await sandbox.write(WriteRequest(path="/workspace/file"), data)
    with pytest.raises(PolicyDeniedError, match="max_write_bytes"):
        await sandbox.upload(UploadRequest(path="/workspace"), BytesStream(b"x" * 1001))
    assert await read_file(sandbox, "/workspace/file") == b"old"
    await sandbox.write(WriteRequest(path="/workspace/file"), BytesStream(b"x" * 1000))
    assert list(await entries(sandbox, "/workspace")) == ["file"]


async def test_a_refused_spec_creates_nothing(provider: Provider) -> None:
    spec = new_spec(provider.capabilities)
    with pytest.raises(UnsupportedError):
        await provider.create(replace(spec, limits=Limits(disk_bytes=1)))
    assert await provider.list() == []


async def test_whatever_the_guard_gives_out_is_guarded(provider: Provider, sandbox: Sandbox) -> None:
    content = await sandbox.snapshot(SnapshotRequest())
    specs = [new_spec(provider.capabilities) for _ in range(2)]
    given = [
        await provider.attach(sandbox.id),
        *(await sandbox.fork(specs[:1])).sandboxes,
        await provider.restore(content, specs[1]),
    ]
    assert all(isinstance(one, GuardedSandbox) for one in given)
    for one in given:
        with pytest.raises(PolicyDeniedError):
            await one.exec(ExecRequest(argv=("true",), timeout_s=11.0))


async def test_forks_and_restored_sandboxes_pass_the_rules_too(provider: Provider, sandbox: Sandbox) -> None:
    content = await sandbox.snapshot(SnapshotRequest())
    spec = replace(new_spec(provider.capabilities), limits=Limits(memory_bytes=1))
    with pytest.raises(UnsupportedError):
        await sandbox.fork([spec])
    with pytest.raises(UnsupportedError):
        await provider.restore(content, spec)


async def test_a_snapshot_of_what_is_not_declared_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(UnsupportedError, match="memory"):
        await sandbox.snapshot(SnapshotRequest(holds=frozenset({Facet.MEMORY})))


async def test_content_of_another_provider_is_refused(provider: Provider, sandbox: Sandbox) -> None:
    foreign = NativeContent(provider="elsewhere", ref="x", holds=frozenset({Facet.FILES}), size_bytes=0)
    with pytest.raises(InvalidRequestError, match="elsewhere"):
        await sandbox.restore(foreign)
    with pytest.raises(InvalidRequestError, match="elsewhere"):
        await provider.restore(foreign, new_spec(provider.capabilities))
    with pytest.raises(InvalidRequestError, match="elsewhere"):
        await provider.discard(foreign)


async def test_a_sandbox_from_before_a_stricter_policy_is_not_used(tmp_path: Path) -> None:
    async with GuardedProvider(MemoryProvider(tmp_path), POLICY) as provider:
        sandbox = await provider.create(new_spec(provider.capabilities))
        async with GuardedProvider(provider, replace(POLICY, providers=frozenset({"docker"}))) as stricter:
            with pytest.raises(PolicyDeniedError, match="allows only docker"):
                await stricter.attach(sandbox.id)
        async with GuardedProvider(provider, replace(POLICY, min_isolation=Isolation.CONTAINER)) as stronger:
            with pytest.raises(UnsupportedError, match="needs isolation CONTAINER"):
                await stronger.attach(sandbox.id)
            await stronger.destroy(sandbox.id)
