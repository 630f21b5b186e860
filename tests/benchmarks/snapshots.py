"""Snapshots of a sandbox in which nothing runs, after a small change each time; beside them, a copy of as much."""

import shutil
import subprocess
from pathlib import Path

from mcp_sandbox.core.provider import Provider
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from tests.benchmarks.calls import call, new_spec, run, structured
from tests.benchmarks.measuring import Floor, Row, Samples
from tests.interaction.wire_client import WireClient

__all__ = ["engine_snapshot_rows", "snapshot_rows"]


def snapshot_rows(client: WireClient, scratch: Path, count: int, *, files: int, size_mib: int) -> list[Row]:
    """Through MCP: of next to nothing, of many files, and of one large file."""
    many = (
        f"mkdir many && cd many && for i in $(seq {files // 1000}); do mkdir d$i; done; "
        "for d in d*; do (cd $d && seq 1000 | split -l 1 -a 3 -); done"
    )
    large = f"head -c {size_mib}M /dev/zero > big"
    return [
        *_rows(client, count, "", "true", None),
        *_rows(client, count, f"{files:,} files", many, _copy_floor(scratch, many)),
        *_rows(client, count, f"{size_mib:,} MiB in one file", large, _copy_floor(scratch, large)),
    ]


def _rows(client: WireClient, count: int, what: str, fill: str, floor: Floor | None) -> list[Row]:
    call(client, "sandbox_create", name="snap")
    call(client, "exec", command=fill, sandbox="snap", timeout_s=500)
    taking, after, back, back_after, part = Samples(), Samples(), Samples(), Samples(), Samples()
    for number in range(count + 1):
        call(client, "exec", command=f"echo {number} > changed", sandbox="snap")
        with taking.timed():
            taken = call(client, "snapshot_create", sandbox="snap", note=str(number))
        with after.timed():
            call(client, "exec", command="true", sandbox="snap")
        call(client, "exec", command="echo changed > changed", sandbox="snap")
        with back.timed():
            call(client, "snapshot_restore", snapshot=structured(taken)["id"][:16], sandbox="snap")
        with back_after.timed():
            shown = call(client, "exec", command="cat changed", sandbox="snap")
        assert shown.body.strip() == str(number)
        call(client, "exec", command="echo changed > changed", sandbox="snap")
        with part.timed():
            call(client, "snapshot_restore", snapshot=structured(taken)["id"][:16], sandbox="snap", paths=["."])
        assert call(client, "exec", command="cat changed", sandbox="snap").body.strip() == str(number)
    call(client, "sandbox_destroy", sandbox="snap")
    first = Samples(values=[taking.values.pop(0)])
    del after.values[0], back.values[0], back_after.values[0], part.values[0]
    beside = f", {what} beside it" if floor else " in an empty workspace"
    rows = [
        Row.of(f"`snapshot_create`: one small change{beside}", taking, floor=floor, target=5.0),
        Row.of(f"first `exec` after that snapshot{beside if floor else ''}", after),
        Row.of(f"`snapshot_restore`: one small change{beside}", back, floor=floor, target=5.0),
        Row.of(f"first `exec` after that restore{beside if floor else ''}", back_after),
        Row.of(f"`snapshot_restore` of the workspace by `paths`: one small change{beside}", part, floor=floor),
    ]
    if floor is None:
        return rows
    return [Row.of(f"`snapshot_create`: {what}, just written", first, floor=floor, target=5.0), *rows]


def _copy_floor(scratch: Path, fill: str) -> Floor:
    """Return what it costs to copy as much on the host, once."""
    source, target = scratch / "source", scratch / "copy"
    source.mkdir()
    subprocess.run(["bash", "-c", fill], check=True, cwd=source)
    samples = Samples()
    with samples.timed():
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    shutil.rmtree(source)
    shutil.rmtree(target)
    return Floor.of("`cp -a`", samples)


async def engine_snapshot_rows(provider: Provider, count: int) -> list[Row]:
    """At the engine, of next to nothing."""
    taking, after, back, back_after = Samples(), Samples(), Samples(), Samples()
    contents: list[NativeContent] = []
    async with await provider.create(new_spec()) as sandbox:
        for number in range(count + 1):
            await run(sandbox, "touch", f"/workspace/{number}")
            with taking.timed():
                contents.append(await sandbox.snapshot(SnapshotRequest()))
            with after.timed():
                await run(sandbox, "true")
            await run(sandbox, "rm", f"/workspace/{number}")
            with back.timed():
                await sandbox.restore(contents[-1])
            with back_after.timed():
                await run(sandbox, "ls", f"/workspace/{number}")
        await provider.destroy(sandbox.id)
    for content in contents:
        await provider.discard(content)
    for samples in (taking, after, back, back_after):
        del samples.values[0]
    return [
        Row.of("engine: snapshot", taking, target=5.0),
        Row.of("engine: first exec of `true` after a snapshot", after),
        Row.of("engine: restore", back, target=5.0),
        Row.of("engine: first exec after a restore", back_after),
    ]
