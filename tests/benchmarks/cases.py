"""What is measured. Every call must succeed: an error is fast, and would pass for a good number."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import Floor, Row, Samples, process_floor
from tests.interaction.wire_client import Reply, WireClient

__all__ = ["exec_rows", "file_rows", "first_row", "sandbox_rows", "snapshot_rows", "start_rows"]

_MIB = 1 << 20
_LINE = "0123456789abcde\n"


def _call(client: WireClient, tool: str, **arguments: Any) -> Reply:
    reply = client.call(tool, **arguments)
    if reply.is_error or (tool == "exec" and not reply.header.startswith("exit=0 ")):
        raise RuntimeError(f"{tool} {arguments} answered: {reply.text[:500]}")
    return reply


def first_row(client: WireClient) -> Row:
    """The first command ever in a state directory."""
    samples = Samples()
    with samples.timed():
        _call(client, "exec", command="true")
    return Row.of("the first `exec` in a new state directory (builds the base, once)", samples)


def start_rows(home: Path, count: int) -> list[Row]:
    """A new server for every sample, with a sandbox that exists but does not run."""
    floor = process_floor("`python -c pass`", count, sys.executable, "-c", "pass")
    answered, first, again = Samples(), Samples(), Samples()
    for number in range(count + 1):
        if number == 1:  # what came first does not count
            answered, first, again = Samples(), Samples(), Samples()
        with answered.timed():
            client = WireClient(home)
            client.request("tools/list")
        with first.timed():
            _call(client, "exec", command="true")
        with again.timed():
            _call(client, "exec", command="true")
        client.close()
    return [
        Row.of(
            "start a server: spawn to the answer of `tools/list`", answered, floor=floor, target_ms=2 * floor.median_ms
        ),
        Row.of("first `exec` of that server (starts the sandbox)", first),
        Row.of("second `exec` of that server", again),
    ]


def exec_rows(client: WireClient, count: int) -> list[Row]:
    """Commands that do nothing, and as many at once as a client may think of."""
    bash = process_floor("`bash -c true`", count, "bash", "-c", "true")
    ping = Samples().repeat(count, lambda: client.request("ping"))
    run = Samples().repeat(count, lambda: _call(client, "exec", command="true"))

    def at_once() -> None:
        for number in [client.begin_call("exec", command="true") for _ in range(20)]:
            assert client.finish_call(number).header.startswith("exit=0 ")

    def at_once_outside() -> None:
        for process in [subprocess.Popen(["bash", "-c", "true"]) for _ in range(20)]:
            process.wait()

    outside = Samples().repeat(max(3, count // 10), at_once_outside)
    together = Samples().repeat(max(3, count // 10), at_once)
    megabyte = Samples().repeat(
        max(3, count // 10), lambda: _call(client, "exec", command=f"head -c {_MIB} /dev/zero | tr '\\0' x | fold")
    )
    return [
        Row.of("`ping`: this client, the pipes and the transport", ping),
        Row.of("`exec` of `true`", run, floor=bash, target_ms=2.0),
        Row.of(
            "20 x `exec` of `true` at once",
            together,
            floor=Floor(what="20 x `bash -c true` at once", median_ms=outside.median),
        ),
        Row.of("`exec` that says 1 MiB (cut, and kept whole in a file)", megabyte),
    ]


def sandbox_rows(client: WireClient, count: int) -> list[Row]:
    """From nothing to a sandbox that answers, and back to nothing."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--net", "--ipc", "--uts", "true"]
    floor = process_floor("`unshare` of six namespaces, empty", count, *unshare)
    create, destroy = Samples(), Samples()
    for number in range(count + 2):
        with create.timed():
            _call(client, "sandbox_create", name=f"bench-{number}")
        with destroy.timed():
            _call(client, "sandbox_destroy", sandbox=f"bench-{number}")
    del create.values[:2], destroy.values[:2]
    return [
        Row.of("`sandbox_create`", create, floor=floor, target_ms=5.0),
        Row.of("`sandbox_destroy`", destroy, target_ms=5.0),
    ]


def file_rows(client: WireClient, scratch: Path, count: int) -> list[Row]:
    """The tools on files."""
    small, large = _LINE * 64, _LINE * (_MIB // len(_LINE))
    plain = scratch / "plain"
    write_small = Samples().repeat(count, lambda: plain.write_text(small))
    write_large = Samples().repeat(count, lambda: plain.write_text(large))

    def write(text: str) -> Samples:
        return Samples().repeat(count, lambda: _call(client, "write_file", file_path="f.txt", content=text))

    rows = [
        Row.of("`write_file`, 1 KiB", write(small), floor=Floor(what="plain write", median_ms=write_small.median)),
        Row.of("`write_file`, 1 MiB", write(large), floor=Floor(what="plain write", median_ms=write_large.median)),
    ]
    read = Samples().repeat(count, lambda: _call(client, "read_file", file_path="f.txt", offset=30_000, limit=1000))
    rows.append(Row.of("`read_file`: 1,000 lines from the middle of 1 MiB", read))
    words = ["one", "two"]

    def edit() -> None:
        _call(client, "edit_file", file_path="g.txt", old_string=words[0], new_string=words[1])
        words.reverse()

    _call(client, "write_file", file_path="g.txt", content=f"{small}one\n")
    rows.append(Row.of("`edit_file`, 1 KiB", Samples().repeat(count, edit)))
    _call(
        client, "exec", command="mkdir -p tree && cd tree && seq 1000 | split -l 1 -a 3 - part- && echo needle > deep"
    )
    outside = scratch / "tree"
    outside.mkdir()
    for number in range(1000):
        (outside / f"part-{number}").write_text(f"{number}\n")
    (outside / "deep").write_text("needle\n")
    grep = process_floor("`grep -rn`", count, "grep", "-rn", "needle", str(outside))
    listed = Samples().repeat(count, lambda: _call(client, "list_files", path="tree", pattern="*"))
    found = Samples().repeat(count, lambda: _call(client, "search_files", path="tree", pattern="needle"))
    return [
        *rows,
        Row.of("`list_files`, 1,001 files", listed),
        Row.of("`search_files`, 1,001 small files", found, floor=grep),
    ]


def snapshot_rows(client: WireClient, scratch: Path, count: int, *, files: int, size_mib: int) -> list[Row]:
    """Snapshots of a sandbox in which nothing runs, after a small change each time; beside them, a copy of as much."""
    rows: list[Row] = []
    many = (
        f"mkdir many && cd many && for i in $(seq {files // 1000}); do mkdir d$i; done; "
        "for d in d*; do (cd $d && seq 1000 | split -l 1 -a 3 -); done"
    )
    cases = (
        ("", "true"),
        (f"{files:,} files", many),
        (f"{size_mib:,} MiB in one file", f"head -c {size_mib}M /dev/zero > big"),
    )
    for name, fill in cases:
        _call(client, "sandbox_create", name="snap")
        _call(client, "exec", command=fill, sandbox="snap", timeout_s=500)
        floor = _copy_floor(scratch, fill) if fill != "true" else None
        taking, back = Samples(), Samples()
        for number in range(count + 1):
            _call(client, "exec", command=f"echo {number} > changed", sandbox="snap")
            with taking.timed():
                taken = _call(client, "snapshot_create", sandbox="snap", note=str(number))
            identity: str = taken.message["result"]["structuredContent"]["id"]
            _call(client, "exec", command="echo changed > changed", sandbox="snap")
            with back.timed():
                _call(client, "snapshot_restore", snapshot=identity[:16], sandbox="snap")
            assert _call(client, "exec", command="cat changed", sandbox="snap").body.strip() == str(number)
        first = Samples(values=[taking.values.pop(0)])
        del back.values[0]
        if floor is not None:
            rows.append(Row.of(f"`snapshot_create`: {name}, just written", first, floor=floor, target_ms=5.0))
        beside = f", {name} beside it" if floor is not None else " in an empty workspace"
        rows += [
            Row.of(f"`snapshot_create`: one small change{beside}", taking, floor=floor, target_ms=5.0),
            Row.of(f"`snapshot_restore`: one small change{beside}", back, floor=floor, target_ms=5.0),
        ]
        _call(client, "sandbox_destroy", sandbox="snap")
    return rows


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
    return Floor(what="`cp -a`", median_ms=samples.median)
