"""The Docker client of openai-agents, timed for `tests.benchmarks.docker` by an interpreter that has it: prints JSON.

Arguments: the image, how often. The engine is DOCKER_HOST.
"""

import asyncio
import importlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

__all__: list[str] = []

MIB = bytes(range(256)) * 4096
FILL = "i=0; while [ $i -lt 1000 ]; do head -c 104857 /dev/urandom > f$i; i=$((i+1)); done"


async def main(image: str, times: int) -> None:
    """Print the milliseconds of every row."""
    parts = [importlib.import_module(name) for name in ("docker", "agents.sandbox", "agents.sandbox.sandboxes.docker")]
    docker, agents, adapter = cast("list[Any]", parts)
    samples: dict[str, list[float]] = {}
    snapshots = Path(tempfile.mkdtemp())
    engine: Any = docker.from_env()
    client: Any = adapter.DockerSandboxClient(engine)

    async def timed(row: str, act: Callable[[], Awaitable[Any]]) -> Any:
        began = time.perf_counter()
        result = await act()
        samples.setdefault(row, []).append((time.perf_counter() - began) * 1000)
        return result

    async def created() -> Any:
        session = await client.create(
            manifest=agents.Manifest(), snapshot=agents.LocalSnapshotSpec(base_path=snapshots),
            options=adapter.DockerSandboxClientOptions(image=image),
        )  # fmt: skip
        await session.start()
        return session

    async def resumed(saved: Any) -> Any:
        session = await client.resume(saved)
        await session.start()
        return session

    async def both(session: Any) -> None:
        await session.write(Path("file"), io.BytesIO(MIB))
        file = await session.read(Path("file"))
        assert len(file.read()) == len(MIB)

    async def ended(session: Any) -> None:
        await session.shutdown()
        await client.delete(session)

    for _ in range(max(2, times // 3)):
        session = await timed("create", created)
        await timed("destroy", lambda session=session: ended(session))
    session = await created()
    for _ in range(times):
        await timed("exec", lambda: session.exec("true", shell=False))
        await timed("file", lambda: both(session))
    await session.exec(FILL)
    for _ in range(3):
        await timed("snapshot", session.stop)
        saved = client.deserialize_session_state(client.serialize_session_state(session.state))
        engine.containers.get(session.state.container_id).remove(force=True)
        session = await timed("restore", lambda saved=saved: resumed(saved))
    engine.containers.get(session.state.container_id).remove(force=True)
    print(json.dumps(samples))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
