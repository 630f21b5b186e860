"""The tools on files, and files at the engine."""

import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.files import ReadRequest, UploadRequest, WriteRequest
from mcp_sandbox.core.provider import Provider
from mcp_sandbox.core.streams import BytesStream, read_all
from tests.benchmarks.calls import call, new_spec, run
from tests.benchmarks.measuring import Floor, Row, Samples, process_floor
from tests.interaction.wire_client import WireClient

__all__ = ["engine_file_rows", "file_rows"]

_MIB = 1 << 20
_LINE = "0123456789abcde\n"
_SMALL, _LARGE = _LINE * 64, _LINE * (_MIB // len(_LINE))
IMPORTED = 1000


def file_rows(client: WireClient, scratch: Path, count: int) -> list[Row]:
    """Through MCP."""
    plain = scratch / "plain"
    floors = [
        Floor.of("plain write", Samples().repeat(count, lambda text=text: plain.write_text(text)))
        for text in (_SMALL, _LARGE)
    ]

    def write(text: str) -> None:
        call(client, "write_file", file_path="f.txt", content=text)

    def read(**arguments: Any) -> None:
        call(client, "read_file", file_path="f.txt", **arguments)

    def timed(act: Callable[[], object]) -> Samples:
        return Samples().repeat(count, act)

    words = ["one", "two"]

    def edit() -> None:
        call(client, "edit_file", file_path="g.txt", old_string=words[0], new_string=words[1])
        words.reverse()

    def list_tree() -> None:
        call(client, "list_files", path="tree", pattern="*")

    def search_tree() -> None:
        call(client, "search_files", path="tree", pattern="needle")

    call(client, "write_file", file_path="g.txt", content=f"{_SMALL}one\n")
    call(client, "exec", command="mkdir -p tree && cd tree && seq 1000 | split -l 1 -a 3 - part- && echo needle > deep")
    page = timed(lambda: (write(_LARGE), read()))
    carried = timed(lambda: client.request("ping", {"_meta": {"mcp-sandbox/benchmark": _LARGE}}))
    return [
        Row.of("`write_file`, 1 KiB", timed(lambda: write(_SMALL)), floor=floors[0]),
        Row.of("`write_file`, 1 MiB", timed(lambda: write(_LARGE)), floor=floors[1]),
        Row.of("beside it: `ping` that carries 1 MiB: this client, the pipes and the transport", carried),
        Row.of(
            "`write_file` of 1 MiB, then `read_file`, which shows a page of it",
            page,
            target=5.0,
            floor=Floor.of("the `ping` above; the rest is two digests, the page and the engine's row", carried),
        ),
        Row.of("`read_file`: 1,000 lines from the middle of 1 MiB", timed(lambda: read(offset=30_000, limit=1000))),
        Row.of("`edit_file`, 1 KiB", timed(edit)),
        Row.of("`list_files`, 1,001 files", timed(list_tree)),
        Row.of("`search_files`, 1,001 small files", timed(search_tree), floor=_grep_floor(scratch, count)),
    ]


def _grep_floor(scratch: Path, count: int) -> Floor:
    outside = scratch / "tree"
    outside.mkdir()
    for number in range(1000):
        (outside / f"part-{number}").write_text(f"{number}\n")
    (outside / "deep").write_text("needle\n")
    return process_floor("`grep -rn`", count, "grep", "-rn", "needle", str(outside))


async def engine_file_rows(provider: Provider, scratch: Path, count: int) -> list[Row]:
    """At the engine: 1 MiB there and back, and a tree of small files."""
    plain, data = scratch / "plain-bytes", _LARGE.encode()

    def outside() -> None:
        plain.write_bytes(data)
        assert plain.read_bytes() == data

    async with await provider.create(new_spec()) as sandbox:

        async def inside() -> None:
            await sandbox.write(WriteRequest(path="/workspace/f"), data)
            async with await sandbox.read(ReadRequest(path="/workspace/f")) as reader:
                assert await read_all(reader, _MIB) == data

        both = await Samples().repeat_async(count, inside)
        floor = Floor.of("plain write and read", Samples().repeat(count, outside))
        archive, imported, unpacked, inside_tar = _archive(), Samples(), Samples(), Samples()
        await sandbox.write(WriteRequest(path="/tmp/archive"), archive)
        for number in range(max(3, count // 5)):
            stream: ByteReceiveStream = BytesStream(archive)
            with imported.timed():
                await sandbox.upload(UploadRequest(path=f"/workspace/import-{number}"), stream)
            with unpacked.timed():
                _unpack(archive, scratch / f"unpacked-{number}")  # and never removed: see `scratch_directory`
            await run(sandbox, "mkdir", f"/workspace/tar-{number}")
            with inside_tar.timed():
                await run(sandbox, "tar", "-xf", "/tmp/archive", "-C", f"/workspace/tar-{number}")
        await provider.destroy(sandbox.id)
    tar = Floor.of("`tar -x`", unpacked)
    return [
        Row.of("engine: write and read of 1 MiB", both, floor=floor, target=5.0),
        Row.of(f"engine: import of {IMPORTED:,} files of 1 KiB", imported, floor=tar, target=2 * tar.median),
        Row.of("beside it: `tar -x` of the same inside the sandbox", inside_tar, floor=tar),
    ]


def _archive() -> bytes:
    """Return a tar of small files in ten directories."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for number in range(IMPORTED):
            member = tarfile.TarInfo(f"d{number % 10}/f{number}.txt")
            member.size = len(_SMALL)
            tar.addfile(member, io.BytesIO(_SMALL.encode()))
    return packed.getvalue()


def _unpack(archive: bytes, target: Path) -> None:
    target.mkdir()
    subprocess.run(["tar", "-xf", "-", "-C", str(target)], input=archive, check=True)
