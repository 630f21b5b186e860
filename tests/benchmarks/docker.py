"""Provider `docker` beside others on an engine of this run: `python -m tests.benchmarks.docker [--agents PYTHON]`.

Through MCP, and at the provider; beside plain calls of the `docker` SDK with the same effect, and beside the Docker
client of openai-agents where PYTHON is an interpreter that has it.
"""

import argparse
import asyncio
import io
import json
import os
import statistics
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from mcp_sandbox.core.differences import DiffRequest, LiveState, StartState
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.testing.driving import new_spec, put, read_file
from tests.benchmarks.calls import call, run, structured
from tests.benchmarks.openai_docker import FILL, MIB
from tests.containers.engines import Dockerd
from tests.interaction.wire_client import WireClient

__all__: list[str] = []

ROWS: Final = {
    "create": "a sandbox, until commands can run: `sandbox_create`",
    "pool": "the same with `serve --pool 2`",
    "exec": "`exec` of `true`",
    "engine exec": "the same at the provider",
    "page": "1 MiB: `write_file`, then `read_file`, which shows a page",
    "file": "1 MiB written and read whole, at the provider",
    "snapshot": "1,000 files, 100 MiB: `snapshot_create`",
    "restore": "`snapshot_restore` of that, with a snapshot for the way back",
    "fork": "`sandbox_fork` of that",
    "diff": "`changes` of that, at the provider: from its start",
    "destroy": "`sandbox_destroy`",
}
PLAIN: Final = {
    "create": "`docker run -d`", "exec": "`exec_run`", "file": "`put_archive`, `get_archive`", "snapshot": "`commit`",
    "restore": "`run -d` of it", "destroy": "`rm --force`",
}  # fmt: skip
Samples = dict[str, list[float]]


def _timed(samples: Samples, row: str, act: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = act()
    samples.setdefault(row, []).append((time.perf_counter() - began) * 1000)
    return result


async def _timed_async(samples: Samples, row: str, act: Callable[[], Awaitable[Any]]) -> Any:
    began = time.perf_counter()
    result = await act()
    samples.setdefault(row, []).append((time.perf_counter() - began) * 1000)
    return result


class Plain:
    """What has the same effect without us, measured in turns with it: other work on the machine slows both."""

    def __init__(self, engine: Dockerd) -> None:
        import docker

        self.samples: Samples = {}
        self._client: Any = docker.DockerClient(base_url=engine.host)
        self._image = engine.base
        self._container = self._started(self._image)
        self._container.exec_run(["sh", "-c", f"mkdir w && cd w && {FILL}"])

    def _started(self, image: str) -> Any:
        return self._client.containers.run(image, ["sleep", "1000"], detach=True, network_mode="none")

    def life(self) -> None:
        """Start a container and remove it."""
        container = _timed(self.samples, "create", lambda: self._started(self._image))
        _timed(self.samples, "destroy", lambda: container.remove(force=True))

    def command(self) -> None:
        """Run nothing."""
        _timed(self.samples, "exec", lambda: self._container.exec_run("true"))

    def file(self) -> None:
        """Write a file and read it."""
        _timed(self.samples, "file", lambda: _put_and_get(self._container))

    def snapshot(self) -> None:
        """Commit, and start from that."""
        image = _timed(self.samples, "snapshot", lambda: self._container.commit())
        again = _timed(self.samples, "restore", lambda: self._started(image.id))
        again.remove(force=True)

    def close(self) -> None:
        """Remove what there is."""
        self._container.remove(force=True)
        self._client.close()


def _through_mcp(engine: Dockerd, home: Path, times: int, plain: Plain) -> Samples:
    samples: Samples = {}
    serve = ("serve", "--provider", "docker", "--image", engine.base, "--tools", "full")
    text = "0123456789abcde\n" * 65_536
    environ = {"DOCKER_HOST": engine.host}
    with WireClient(home, *serve, env=environ) as client:
        call(client, "exec", command="true")
        for number in range(times):
            _timed(samples, "create", lambda number=number: call(client, "sandbox_create", name=f"c{number}"))
            _timed(samples, "destroy", lambda number=number: call(client, "sandbox_destroy", sandbox=f"c{number}"))
            plain.life()
        for number in range(5 * times):
            _timed(samples, "exec", lambda: call(client, "exec", command="true"))
            if number % 5 == 0:
                plain.command()
        for _ in range(times):
            _timed(samples, "page", lambda: _page(client, text))
        call(client, "exec", command=FILL)
        for number in range(3):
            taken = _timed(samples, "snapshot", lambda: call(client, "snapshot_create"))
            back = structured(taken)["id"][:16]
            _timed(samples, "restore", lambda back=back: call(client, "snapshot_restore", snapshot=back))
            _timed(samples, "fork", lambda number=number: call(client, "sandbox_fork", name=f"f{number}"))
            call(client, "sandbox_destroy", sandbox=f"f{number}")
            plain.snapshot()
    with WireClient(home, *serve, "--pool", "2", env=environ) as client:
        call(client, "sandbox_create", name="first")
        for number in range(times):
            time.sleep(3)  # until it is full again
            _timed(samples, "pool", lambda number=number: call(client, "sandbox_create", name=f"p{number}"))
            call(client, "sandbox_destroy", sandbox=f"p{number}")
    return samples


def _page(client: WireClient, text: str) -> None:
    call(client, "write_file", file_path="f.txt", content=text)
    call(client, "read_file", file_path="f.txt")


async def _at_the_provider(engine: Dockerd, home: Path, times: int, plain: Plain) -> Samples:
    samples: Samples = {}
    environ = {"DOCKER_HOST": engine.host, "HOME": str(home)}
    async with DockerProvider(home / "state", image=engine.base, environ=environ) as provider:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            await run(sandbox, "true")

            async def both() -> None:
                await put(sandbox, "/workspace/file", MIB)
                assert len(await read_file(sandbox, "/workspace/file")) == len(MIB)

            for _ in range(5 * times):
                await _timed_async(samples, "engine exec", lambda: run(sandbox, "true"))
            for _ in range(times):
                await _timed_async(samples, "file", both)
                await asyncio.to_thread(plain.file)
            await run(sandbox, "sh", "-c", FILL)
            states = (StartState(sandbox=spec.id), LiveState(sandbox=spec.id))
            request = DiffRequest(before=states[0], after=states[1], paths=("/workspace",))
            for _ in range(3):
                await _timed_async(samples, "diff", lambda: provider.diff(request))
        await provider.destroy(spec.id)
    return samples


def _put_and_get(container: Any) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("file")
        member.size = len(MIB)
        tar.addfile(member, io.BytesIO(MIB))
    container.put_archive("/", packed.getvalue())
    assert sum(len(piece) for piece in container.get_archive("/file")[0]) > len(MIB)


def _of_openai(engine: Dockerd, python: str, times: int) -> Samples:
    command = [python, "-m", "tests.benchmarks.openai_docker", engine.base, str(times)]
    environ = {**os.environ, "DOCKER_HOST": engine.host, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def _shown(samples: Samples, row: str) -> str:
    return f"{statistics.median(samples[row]):.1f} ms" if row in samples else ""


def main() -> None:
    """Print a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--agents", metavar="PYTHON", help="an interpreter with openai-agents[docker]")
    options.add_argument("--times", type=int, default=10)
    asked = options.parse_args()
    with Dockerd() as engine, tempfile.TemporaryDirectory() as scratch:
        engine.base  # noqa: B018 (imported now, and not in a sample)
        floor = Plain(engine)
        ours = _through_mcp(engine, Path(scratch, "mcp"), asked.times, floor)
        ours |= asyncio.run(_at_the_provider(engine, Path(scratch, "provider"), asked.times, floor))
        plain = floor.samples
        floor.close()
        theirs = _of_openai(engine, asked.agents, asked.times) if asked.agents else {}
    print("| what | mcp-sandbox | docker-py | ratio | openai-agents |\n|---|---:|---|---:|---:|")
    for row, what in ROWS.items():
        beside = f"{PLAIN[row]}: {_shown(plain, row)}" if row in plain else ""
        ratio = f"{statistics.median(ours[row]) / statistics.median(plain[row]):.2g}" if row in plain else ""
        print(f"| {what} | {_shown(ours, row)} | {beside} | {ratio} | {_shown(theirs, row)} |")


if __name__ == "__main__":
    main()
