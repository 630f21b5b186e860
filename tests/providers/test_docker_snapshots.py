"""Snapshots of containers: nothing is half done or left over, whoever is killed, and runtimes are not believed."""

import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from mcp_sandbox.core.errors import SandboxError, UnsupportedError
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.leftovers import Remembered
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.engines import docker_flattening
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.testing.driving import HANG_S, new_spec, put, read_file, run, sh
from tests.containers.engines import Dockerd
from tests.providers.docker_sandboxes import provider_on

__all__: list[str] = []

NOBODY: Final = Remembered(sandbox=lambda _: False, snapshot=lambda _: False)
ROUNDS: Final = 6
LONGEST_S: Final = 1.5
SERVER: Final = """
import asyncio, sys
from pathlib import Path
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.testing.driving import put

async def main(state, host, image, sandbox):
    environ = {"DOCKER_HOST": host, "HOME": state}
    async with DockerProvider(Path(state), image=image, environ=environ) as provider:
        attached = await provider.attach(SandboxId(sandbox))
        print("ready", flush=True)
        while True:
            content = await attached.snapshot(SnapshotRequest())
            await put(attached, "/workspace/file", b"changed" * 10_000)
            await attached.restore(content)
            await provider.discard(content)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def provider(dockerd: Dockerd, tmp_path: Path) -> AsyncIterator[DockerProvider]:
    """A provider on an engine of our own."""
    async with provider_on(dockerd, tmp_path / "state") as provider:
        yield provider


@pytest.mark.timeout(240)
async def test_crash01_a_server_killed_in_a_snapshot_or_restore_leaves_the_old_state_or_the_new_one(
    provider: DockerProvider, dockerd: Dockerd, tmp_path: Path
) -> None:
    """And no container or image that nobody needs."""
    states, chance = (b"first" * 10_000, b"changed" * 10_000), random.Random(4)
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        await put(sandbox, "/workspace/file", states[0])
        kept = await sandbox.snapshot(SnapshotRequest())
    arguments = [str(tmp_path / "state"), dockerd.host, dockerd.base, spec.id]
    for _ in range(ROUNDS):
        await anyio.to_thread.run_sync(_serve_and_kill, arguments, chance.random() * LONGEST_S)
        async with await provider.attach(spec.id) as sandbox:
            assert await read_file(sandbox, "/workspace/file") in states
            assert await provider.verify(kept) == ()
    remembered = Remembered(sandbox=lambda _: True, snapshot=lambda ref: ref == kept.ref)
    later = time.time() + 1e6
    async with await provider.attach(spec.id) as sandbox:
        await provider.collect(remembered, kept_s=0, now=later)
        await sandbox.restore(kept)
        assert await read_file(sandbox, "/workspace/file") == states[0]
        await provider.collect(remembered, kept_s=0, now=later)  # what it stood on before is needed no more
        own = f"label=mcp-sandbox.sandbox={spec.id}"
        assert len(dockerd.run("ps", "--all", "--quiet", "--filter", own).split()) == 1
        assert len(dockerd.run("images", "--quiet", "--filter", own).split()) == 1
    await provider.destroy(spec.id)
    await provider.discard(kept)
    assert not dockerd.run("images", "--quiet", "--filter", own)


async def test_layers_are_merged_before_there_are_too_many(
    provider: DockerProvider, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots of restored sandboxes stand on each other; every one of them holds what it held."""
    monkeypatch.setattr(docker_flattening, "MOST_LAYERS", 6)
    spec = new_spec(provider.capabilities, env={"OWN": "kept"})
    taken: list[NativeContent] = []
    depths: list[int] = []
    async with await provider.create(spec) as sandbox:
        await sh(sandbox, "echo x > one; ln one two; mkdir -m 700 closed; ln -s one link; touch -d @1.5 one")
        described = "stat -c '%n %a %h %U %.9Y' one two; stat -c '%a %U' closed; readlink link; printenv OWN"
        before = (await sh(sandbox, described)).stdout
        for number in range(6):
            await put(sandbox, f"/workspace/{number}", b"%d" % number)
            taken.append(await sandbox.snapshot(SnapshotRequest()))
            await sandbox.restore(taken[-1])
            depths.append(len(_inspected(dockerd, taken[-1])["RootFS"]["Layers"]))
        assert (max(depths), min(depths)) == (5, 1)
        assert (await sh(sandbox, described)).stdout == before
        for number, content in enumerate(taken):
            await sandbox.restore(content)
            assert (await sh(sandbox, "ls -d [0-9]*")).stdout.split() == [b"%d" % n for n in range(number + 1)]
    await provider.destroy(spec.id)
    for content in taken:
        await provider.discard(content)
    await provider.collect(NOBODY, kept_s=0, now=time.time() + 1e6)
    tags = dockerd.run("images", "--format", "{{.Tag}}").split()
    assert not {tag.removesuffix("-flat") for tag in tags} & {content.ref for content in taken}
    made_for = dockerd.run("ps", "--all", "--format", '{{.Label "mcp-sandbox.sandbox"}}').split()
    assert not [name for name in made_for if name == spec.id or name.startswith("merging-")]


def _inspected(dockerd: Dockerd, content: NativeContent) -> dict[str, Any]:
    (found,) = json.loads(dockerd.run("image", "inspect", f"mcp-sandbox/snapshot:{content.ref}"))
    return dict(found)


def _serve_and_kill(arguments: "list[str]", after_s: float) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER, *arguments], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        time.sleep(after_s)
        server.kill()


async def test_sigkill_of_init_in_the_middle_of_a_snapshot_loses_nothing(
    provider: DockerProvider, dockerd: Dockerd
) -> None:
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        await put(sandbox, "/workspace/file", b"kept")
        before = await sandbox.snapshot(SnapshotRequest())
        for pause in (0.0, 0.02, 0.05, 0.1):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_snapshot_or_say_why, sandbox)
                await anyio.sleep(pause)
                await anyio.to_thread.run_sync(lambda: dockerd.run("kill", _container(dockerd, spec.id)))
            assert await read_file(sandbox, "/workspace/file") == b"kept"
        await put(sandbox, "/workspace/file", b"later")
        await sandbox.restore(before)
        assert await read_file(sandbox, "/workspace/file") == b"kept"
    await provider.destroy(spec.id)
    await provider.discard(before)


async def _snapshot_or_say_why(sandbox: Sandbox) -> None:
    with anyio.fail_after(HANG_S):
        try:
            await sandbox.snapshot(SnapshotRequest())
        except SandboxError as error:
            assert error.why


def _container(dockerd: Dockerd, sandbox: str) -> str:
    return dockerd.run("ps", "--quiet", "--filter", f"label=mcp-sandbox.sandbox={sandbox}")


# The SDK leaves the socket of a call that was cut off to the collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.timeout(180)
async def test_sigkill_of_the_engine_in_a_snapshot_or_a_restore_loses_nothing(tmp_path: Path) -> None:
    """One state or the other is there; the snapshot is whole or not there; and nothing is left that nobody needs."""
    if reason := Dockerd.why_not():
        pytest.skip(reason)
    with Dockerd() as engine:
        async with provider_on(engine, tmp_path / "state") as provider:
            spec = new_spec(provider.capabilities)
            sandbox = await provider.create(spec)
            await put(sandbox, "/workspace/file", b"old")
            kept = [await sandbox.snapshot(SnapshotRequest())]
            await put(sandbox, "/workspace/file", b"new")
            await put(sandbox, "/workspace/large", b"0123456789abcdef" * (1 << 20))
            for pause in (0.05, 0.2):
                await _killed_meanwhile(engine, pause, lambda: _snapshot_into(kept, sandbox))
                with anyio.fail_after(HANG_S):
                    assert await read_file(sandbox, "/workspace/file") == b"new"
            for pause in (0.05, 0.2):
                await _killed_meanwhile(engine, pause, lambda: sandbox.restore(kept[0]))
                with anyio.fail_after(HANG_S):
                    assert await read_file(sandbox, "/workspace/file") in (b"old", b"new")
            for content, expected in zip(kept, (b"old", b"new", b"new"), strict=False):
                assert await provider.verify(content) == ()
                await sandbox.restore(content)
                assert await read_file(sandbox, "/workspace/file") == expected
            await sandbox.restore(kept[0])
            known = {content.ref for content in kept}
            remembered = Remembered(sandbox=lambda _: True, snapshot=lambda ref: ref in known)
            await provider.collect(remembered, kept_s=0, now=time.time() + 1e6)
            own = f"label=mcp-sandbox.sandbox={spec.id}"
            assert len(engine.run("ps", "--all", "--quiet", "--filter", own).split()) == 1
            assert len(engine.run("images", "--all", "--quiet", "--filter", own).split()) == len(kept)
            await sandbox.aclose()
    gc.collect()


async def _killed_meanwhile(engine: Dockerd, pause: float, act: Callable[[], Awaitable[object]]) -> None:
    """Do something, which may fail if it says why, and kill the engine in the middle of it; then start that again."""

    async def attempt() -> None:
        with anyio.fail_after(HANG_S):
            try:
                await act()
            except SandboxError as error:
                assert error.why

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attempt)
        await anyio.sleep(pause)
        await anyio.to_thread.run_sync(engine.kill)
    await anyio.to_thread.run_sync(engine.start)


async def _snapshot_into(kept: list[NativeContent], sandbox: Sandbox) -> None:
    kept.append(await sandbox.snapshot(SnapshotRequest()))


async def test_an_image_that_lost_its_name_is_collected(provider: DockerProvider, dockerd: Dockerd) -> None:
    """As after the end of an engine between the two; one of another state directory stays."""
    spec, before = new_spec(provider.capabilities), _nameless(dockerd)
    async with await provider.create(spec) as sandbox:
        content = await sandbox.snapshot(SnapshotRequest())
        dockerd.run("commit", "--change", "LABEL mcp-sandbox.state=another", _container(dockerd, spec.id))
        (of_another,) = _nameless(dockerd) - before
        dockerd.run("commit", "--change", "LABEL x=y", _container(dockerd, spec.id))
        (ours,) = _nameless(dockerd) - before - {of_another}
        remembered = Remembered(sandbox=lambda _: True, snapshot=lambda _: True)
        await provider.collect(remembered, kept_s=60, now=time.time())
        assert {ours, of_another} <= _nameless(dockerd)
        await provider.collect(remembered, kept_s=60, now=time.time() + 100)
        assert _nameless(dockerd) & {ours, of_another} == {of_another}
        assert await provider.verify(content) == ()
        dockerd.run("rmi", of_another)
    await provider.destroy(spec.id)
    await provider.discard(content)


def _nameless(dockerd: Dockerd) -> set[str]:
    return set(dockerd.run("images", "--quiet", "--filter", "dangling=true").split())


async def test_a_runtime_that_keeps_writes_to_itself_is_refused_and_not_believed(
    dockerd: Dockerd, tmp_path: Path
) -> None:
    """GVisor's default: the engine would commit an image without anything that was written."""
    if "runsc-default" not in dockerd.runtimes:
        pytest.skip("no runsc here: tests/containers/install-runsc")
    async with provider_on(dockerd, tmp_path / "state", runtime="runsc-default") as provider:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            with pytest.raises(UnsupportedError, match="overlay2=none"):
                await sandbox.snapshot(SnapshotRequest())
            assert (await run(sandbox, "echo", "works")).stdout == b"works\n"
            with pytest.raises(UnsupportedError):
                await sandbox.fork([new_spec(provider.capabilities)])
        await provider.destroy(spec.id)


async def test_a_snapshot_says_how_long_commands_stood_still(provider: DockerProvider) -> None:
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        quiet = await sandbox.snapshot(SnapshotRequest())
        async with await sandbox.exec(ExecRequest(argv=("sleep", "60"))):
            busy = await sandbox.snapshot(SnapshotRequest())
        assert (quiet.paused_s, busy.paused_s > 0) == (0.0, True)
        for content in (quiet, busy):
            await provider.discard(content)
    await provider.destroy(spec.id)
