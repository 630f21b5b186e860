"""Commands that do nothing, many of them at once, and those that say too much."""

import asyncio
import os
import re
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio

from mcp_sandbox.core.provider import Provider
from tests.benchmarks.calls import call, checked, new_spec, run
from tests.benchmarks.measuring import Floor, Row, Samples, process_floor
from tests.interaction.wire_client import WireClient

__all__ = ["command_rows", "engine_command_rows", "flood_rows", "resident_mib"]

_MIB = 1 << 20
AT_ONCE = (20, 64)


def command_rows(client: WireClient, count: int) -> list[Row]:
    """Through MCP."""
    few = max(3, count // 10)
    bash = process_floor("`bash -c true`", count, "bash", "-c", "true")
    ping = Samples().repeat(count, lambda: client.request("ping"))
    one = Samples().repeat(count, lambda: call(client, "exec", command="true"))
    rows = [
        Row.of("`ping`: this client, the pipes and the transport", ping),
        Row.of("`exec` of `true`", one, floor=bash, target=2.0),
    ]
    for many in AT_ONCE:
        inside = Samples().repeat(few, lambda many=many: _at_once(client, many))
        outside = Samples().repeat(few, lambda many=many: _at_once_outside(many))
        floor = Floor.of(f"{many} x `bash -c true` at once", outside)
        rows.append(Row.of(f"{many} x `exec` of `true` at once, in one sandbox", inside, floor=floor))
    said = f"head -c {_MIB} /dev/zero | tr '\\0' x | fold"
    megabyte = Samples().repeat(few, lambda: call(client, "exec", command=said))
    return [*rows, Row.of("`exec` that says 1 MiB (cut, and kept whole in a file)", megabyte)]


def _at_once(client: WireClient, many: int) -> None:
    for number in [client.begin_call("exec", command="true") for _ in range(many)]:
        checked(client.finish_call(number))


def _at_once_outside(many: int) -> None:
    for process in [subprocess.Popen(["bash", "-c", "true"]) for _ in range(many)]:
        process.wait()


def flood_rows(client: WireClient, size_mib: int) -> list[Row]:
    """More output than anybody wants, and what the server's memory makes of it."""
    command = f"yes | head -c {size_mib}M"
    floor = process_floor("the same into a pipe", 1, "bash", "-c", command)
    before = resident_mib(client.process.pid)
    Path(f"/proc/{client.process.pid}/clear_refs").write_text("5")  # VmHWM begins anew
    taken = Samples()
    with taken.timed():
        call(client, "exec", command=command)
    grown = max(0.0, resident_mib(client.process.pid, "VmHWM") - before)
    name = f"`exec` that says {size_mib:,} MiB"
    return [
        Row.of(name, taken, floor=floor),
        Row.of(f"{name}: what the server's memory grew by at most", Samples(values=[grown]), unit="MiB"),
    ]


def resident_mib(pid: int, name: str = "VmRSS") -> float:
    """Return the memory of a process, or with `VmHWM` the most it ever had."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text("ascii"))
    assert found is not None
    return int(found[1]) / 1024


async def engine_command_rows(provider: Provider, count: int) -> list[Row]:
    """At the engine, beside the two ways in which Python itself starts a program."""
    async with await provider.create(new_spec()) as sandbox:
        one = await Samples().repeat_async(count, lambda: run(sandbox, "true"))
        shell = await Samples().repeat_async(count, lambda: run(sandbox, "bash", "-c", "true"))
        at_once = await Samples().repeat_async(max(3, count // 10), lambda: _all(lambda: run(sandbox, "true")))
        spawned = Samples().repeat(count, _spawn)
        started = await Samples().repeat_async(count, _subprocess)
        outside = await Samples().repeat_async(max(3, count // 10), lambda: _all(_subprocess))
        await provider.destroy(sandbox.id)
    many = AT_ONCE[-1]
    return [
        Row.of("engine: exec of `true`", one, floor=Floor.of("`posix_spawn` of `true`", spawned), target=2.0),
        Row.of(
            "engine: exec of `bash -c true`, which is what `exec` runs; to that it adds a `ping` and its answer", shell,
            floor=process_floor("`bash -c true`", count, "bash", "-c", "true"),
        ),
        Row.of("beside it: `asyncio.create_subprocess_exec` of `true`, with pipes", started),
        Row.of(
            f"engine: {many} x exec of `true` at once, in one sandbox", at_once,
            floor=Floor.of(f"{many} x `asyncio.create_subprocess_exec` at once", outside),
        ),
    ]  # fmt: skip


async def _all(act: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE[-1]):
            tasks.start_soon(act)


def _spawn() -> None:
    pid = os.posix_spawn("/usr/bin/true", ["true"], {})
    os.waitpid(pid, 0)


async def _subprocess() -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("/usr/bin/true", stdout=pipe, stderr=pipe)
    await process.communicate()
