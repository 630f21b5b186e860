"""Provider `docker` beside plain calls of the SDK, on an engine of this run: `python -m tests.benchmarks.docker`.

Floors are what has the same effect without us: `docker run -d`, `exec_run`, `put_archive` and `get_archive`, `commit`.
"""

import asyncio
import io
import statistics
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.testing.driving import new_spec, put, read_file, sh
from mcp_sandbox.wrappers.pooled import PooledProvider
from tests.containers.engines import Dockerd

__all__: list[str] = []

TIMES: Final = 10
MIB: Final = bytes(range(256)) * 4096
FILL: Final = "i=0; while [ $i -lt 1000 ]; do head -c 104857 /dev/urandom > f$i; i=$((i+1)); done"
Step = Callable[[], Awaitable[object]]


async def _ms(step: Step) -> float:
    began = time.perf_counter()
    await step()
    return (time.perf_counter() - began) * 1000


def _row(name: str, ours: "list[float]", floor: "list[float] | None" = None, what: str = "") -> None:
    beside = f"{statistics.median(floor):9.1f} ms  {what}" if floor else ""
    print(f"{name:<44} {statistics.median(ours):9.1f} ms {beside}", flush=True)


class Floor:
    """Plain calls of the SDK, off the loop."""

    def __init__(self, engine: Dockerd) -> None:
        import docker

        self.client: Any = docker.DockerClient(base_url=engine.host)
        self.image = engine.base

    async def call(self, use: Callable[[Any], object]) -> Any:
        return await asyncio.to_thread(use, self.client)

    async def run(self) -> Any:
        return await self.call(
            lambda c: c.containers.run(self.image, ["sleep", "1000"], detach=True, network_mode="none")
        )


def _archive() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        member = tarfile.TarInfo("file")
        member.size = len(MIB)
        tar.addfile(member, io.BytesIO(MIB))
    return target.getvalue()


async def _commands(sandbox: Sandbox, floor: Floor, container: Any) -> None:
    async def true() -> None:
        async with await sandbox.exec(ExecRequest(argv=("true",))) as execution:
            await execution.wait()

    async def both() -> None:
        await put(sandbox, "/workspace/file", MIB)
        assert len(await read_file(sandbox, "/workspace/file")) == len(MIB)

    def plain(_: object) -> None:
        container.put_archive("/", _archive())
        assert sum(len(piece) for piece in container.get_archive("/file")[0]) > len(MIB)

    await true()
    ours = [await _ms(true) for _ in range(5 * TIMES)]
    theirs = [await _ms(lambda: floor.call(lambda _: container.exec_run("true"))) for _ in range(TIMES)]
    _row("exec true", ours, theirs, "exec_run")
    ours = [await _ms(both) for _ in range(TIMES)]
    theirs = [await _ms(lambda: floor.call(plain)) for _ in range(TIMES)]
    _row("write and read 1 MiB", ours, theirs, "put_archive, get_archive")


async def _lives(provider: Provider, pool: PooledProvider, floor: Floor) -> None:
    created: list[float] = []
    ran: list[float] = []
    destroyed: list[float] = []
    removed: list[float] = []
    for _ in range(TIMES):
        spec = new_spec(provider.capabilities)
        created.append(await _ms(lambda spec=spec: provider.create(spec)))
        destroyed.append(await _ms(lambda spec=spec: provider.destroy(spec.id)))
        began = time.perf_counter()
        container = await floor.run()
        ran.append((time.perf_counter() - began) * 1000)
        removed.append(await _ms(lambda container=container: asyncio.to_thread(container.remove, force=True)))
    _row("create, until the first command can run", created, ran, "docker run -d")
    _row("destroy, until nothing is left", destroyed, removed, "rm --force")
    await pool.prepare(new_spec(provider.capabilities))
    handed: list[float] = []
    for _ in range(TIMES):
        while len([info for info in await provider.list() if info.id.startswith("ready-")]) < 2:
            await asyncio.sleep(0.2)
        spec = new_spec(provider.capabilities)
        handed.append(await _ms(lambda spec=spec: pool.create(spec)))
        await pool.destroy(spec.id)
    _row("create from a pool of two", handed)


async def _snapshots(provider: Provider, floor: Floor, sandbox: Sandbox, container: Any) -> None:
    await sh(sandbox, FILL, timeout_s=120)
    await floor.call(lambda _: container.exec_run(["sh", "-c", f"mkdir w && cd w && {FILL}"]))
    taken: list[float] = []
    restored: list[float] = []
    forked: list[float] = []
    committed: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        content = await sandbox.snapshot(SnapshotRequest())
        taken.append((time.perf_counter() - began) * 1000)
        committed.append(await _ms(lambda: floor.call(lambda _: container.commit())))
        restored.append(await _ms(lambda content=content: sandbox.restore(content)))
        spec: SandboxSpec = new_spec(provider.capabilities)
        forked.append(await _ms(lambda spec=spec: sandbox.fork([spec])))
        await provider.destroy(spec.id)
        await provider.discard(content)
    _row("snapshot of 1,000 files, 100 MiB", taken, committed, "commit")
    _row("restore of it", restored)
    _row("fork of it", forked)


async def main() -> None:
    """Print a row for each."""
    with Dockerd() as engine, tempfile.TemporaryDirectory() as scratch:
        environ = {"DOCKER_HOST": engine.host, "HOME": scratch}
        floor = Floor(engine)
        async with (
            DockerProvider(Path(scratch, "a"), image=engine.base, environ=environ) as provider,
            PooledProvider(DockerProvider(Path(scratch, "a"), image=engine.base, environ=environ), size=2) as pool,
        ):
            await (await provider.create(first := new_spec(provider.capabilities))).aclose()
            await provider.destroy(first.id)
            await _lives(provider, pool, floor)
            spec, container = new_spec(provider.capabilities), await floor.run()
            async with await provider.create(spec) as sandbox:
                await _commands(sandbox, floor, container)
                await _snapshots(provider, floor, sandbox, container)
            await provider.destroy(spec.id)
        with suppress(OSError):
            floor.client.close()


if __name__ == "__main__":
    asyncio.run(main())
