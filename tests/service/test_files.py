"""Looking at, writing, editing and finding files in a sandbox."""

import codecs
import hashlib
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from file_world import World, open_world

from mcp_sandbox.core.delegation import DelegatingProvider, DelegatingSandbox
from mcp_sandbox.core.errors import InvalidRequestError, StateError
from mcp_sandbox.core.files import FileReader, ReadRequest, StatRequest, WriteRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import Workspace, WorkspaceMode
from mcp_sandbox.service.reading import PICTURE_MAX_BYTES

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


@pytest.fixture(params=["memory", "local"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[World]:
    async for opened in open_world(request.param, tmp_path):
        yield opened


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncGenerator[World]:
    """A sandbox that runs programs."""
    async for opened in open_world("local", tmp_path):
        yield opened


@pytest.fixture(params=["memory", "local"])
async def project(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[World]:
    """A sandbox whose workspace is a project of the host."""
    source = tmp_path / "project"
    source.mkdir()
    (source / "a.py").write_text("a = 1\n")
    workspace = Workspace(mode=WorkspaceMode.OVERLAY, source=str(source.resolve()))
    async for opened in open_world(request.param, tmp_path, workspace=workspace):
        yield opened


async def test_lines_are_numbered_from_one_below_a_header(world: World) -> None:
    await world.put("a.txt", b"one\n\ttwo\n\nfour\n")
    assert await world.view("a.txt") == "\n".join(
        ["path=a.txt lines=1-4 total_lines=4 bytes=15", "     1\tone", "     2\t\ttwo", "     3\t", "     4\tfour"]
    )


async def test_a_range_says_how_to_go_on(world: World) -> None:
    await world.put("a.txt", b"".join(b"line %d\n" % number for number in range(1, 101)))
    text = (await world.view("a.txt", offset=10, limit=2)).split("\n")
    assert text == [
        "path=a.txt lines=10-11 total_lines=100 bytes=792",
        "    10\tline 10",
        "    11\tline 11",
        "[89 more lines; go on with offset=12]",
    ]


async def test_pages_put_together_are_the_whole_file(world: World) -> None:
    lines = [f"{number} " + "x" * (number % 90) for number in range(6000)]
    await world.put("big.txt", "\n".join(lines).encode())
    seen: list[str] = []
    while len(seen) < len(lines):
        text = await world.view("big.txt", offset=len(seen) + 1)
        assert len(text) <= 30_000
        assert text.count("\n") + 1 <= 1_900
        body = [line for line in text.split("\n")[1:] if not line.startswith("[")]
        assert body
        seen += [line.partition("\t")[2] for line in body]
    assert seen == lines


async def test_a_line_without_an_end_is_counted_and_told(world: World) -> None:
    await world.put("a.txt", b"one\ntwo")
    assert (await world.view("a.txt")).startswith("path=a.txt lines=1-2 total_lines=2 bytes=7 final_newline=no\n")


async def test_a_long_line_is_cut_with_its_size(world: World) -> None:
    await world.put("a.txt", b"short\n" + b"x" * 5_000_000 + b"\nlast\n")
    lines = (await world.view("a.txt")).split("\n")
    assert lines[2] == "     2\t" + "x" * 2000 + " [line cut, it has 5,000,000 bytes]"
    assert lines[3] == "     3\tlast"


async def test_a_long_line_is_cut_between_characters(world: World) -> None:
    await world.put("a.txt", ("€𝄞" * 2000).encode())
    assert "€𝄞" * 1000 + " [line cut" in await world.view("a.txt")


async def test_an_empty_file_says_so(world: World) -> None:
    await world.put("a.txt", b"")
    assert await world.view("a.txt") == "path=a.txt total_lines=0 bytes=0\n[the file is empty]"


async def test_an_offset_past_the_end_says_how_many_lines_there_are(world: World) -> None:
    await world.put("a.txt", b"one\ntwo\n")
    assert "[the file has 2 lines, so line 9 is past its end]" in await world.view("a.txt", offset=9)
    assert "lines=1-2" in await world.view("a.txt", offset=0)


@pytest.mark.parametrize(("offset", "limit"), [(-1, 10), (1, 0)])
async def test_a_range_that_is_none_is_refused(world: World, offset: int, limit: int) -> None:
    await world.put("a.txt", b"one\n")
    assert "range of lines" in await world.refused(lambda: world.view("a.txt", offset=offset, limit=limit))


async def test_crlf_and_a_byte_order_mark_are_told_and_not_shown(world: World) -> None:
    await world.put("a.txt", codecs.BOM_UTF8 + b"one\r\ntwo\n")
    header, *lines = (await world.view("a.txt")).split("\n")
    assert header == "path=a.txt lines=1-2 total_lines=2 bytes=12 encoding=utf-8 (byte order mark) line_ends=crlf+lf"
    assert lines == ["     1\tone", "     2\ttwo"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
async def test_utf16_is_decoded(world: World, encoding: str) -> None:
    await world.put("a.txt", "\ufeffnaïve 𝄞\r\n№ 2".encode(encoding))
    header, *lines = (await world.view("a.txt")).split("\n")
    assert f"encoding={encoding} (byte order mark) line_ends=crlf" in header
    assert lines == ["     1\tnaïve 𝄞", "     2\t№ 2"]


async def test_b026_other_bytes_are_decoded_with_a_note(world: World) -> None:
    await world.put("a.txt", b"caf\xe9\nplain\n")
    await world.put("b.txt", "naïve ".encode() + b"\xff\n")
    assert await world.view("a.txt") == (
        "path=a.txt lines=1-2 total_lines=2 bytes=11 encoding=windows-1252\n     1\tcafé\n     2\tplain"
    )
    assert await world.view("b.txt") == (
        "path=b.txt lines=1-1 total_lines=1 bytes=9 encoding=mixed\n     1\tnaïve \\xff\n"
        "[bytes that are not UTF-8 are shown as \\xNN]"
    )


async def test_a_late_nul_is_shown_as_a_symbol(world: World) -> None:
    await world.put("a.txt", b"x\n" * 5000 + b"a\0b\n")
    assert "  5001\ta␀b" in await world.view("a.txt", offset=5001)


async def test_b027_a_binary_file_is_summed_up(world: World) -> None:
    await world.put("ls", b"\x7fELF\x02\x01" + bytes(range(256)) * 8)
    text = await world.view("ls")
    assert text.startswith("path=ls bytes=2054 type='ELF program or library'\n00000000  7f 45 4c 46 02 01 00 01  02")
    assert text.count("\n") == 17
    assert "\ufffd" not in text
    assert "its first 256 bytes" in text


async def test_utf16_without_a_mark_is_guessed(world: World) -> None:
    await world.put("a.txt", "hello world".encode("utf-16-le"))
    assert "type='UTF-16 text without a byte order mark'" in await world.view("a.txt")


@pytest.mark.parametrize(
    ("head", "mime_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
async def test_b117_a_picture_comes_as_a_picture_whatever_its_name(world: World, head: bytes, mime_type: str) -> None:
    data = head + bytes(100_000)
    await world.put("plot.dat", data)
    report = await world.files.read_file(None, "plot.dat")
    assert report.picture is not None
    assert (report.picture.data, report.picture.mime_type) == (data, mime_type)
    assert report.text == f"path=plot.dat type={mime_type} bytes={len(data)}"


async def test_a_picture_too_large_is_explained(world: World) -> None:
    await world.put("ok.png", PNG + bytes(PICTURE_MAX_BYTES - len(PNG)))
    await world.put("big.png", PNG + bytes(PICTURE_MAX_BYTES))
    assert (await world.files.read_file(None, "ok.png")).picture is not None
    report = await world.files.read_file(None, "big.png")
    assert report.picture is None
    assert "more than 1,572,864 bytes" in report.text


async def test_a_missing_file_is_answered_with_its_likes(world: World) -> None:
    await world.put("src/server.py", b"")
    message = await world.refused(lambda: world.view("src/sever.py"))
    assert message == (
        "Cannot read /workspace/src/sever.py: there is no sever.py in /workspace/src. "
        "Did you mean src/server.py? Or look with `list_files`."
    )
    assert "Did you mean src?" in await world.refused(lambda: world.view("srcs/server.py"))
    assert "Did you mean src/server.py?" in await world.refused(lambda: world.view("src/Server.py"))


async def test_a_directory_is_refused_with_the_tool_for_it(world: World) -> None:
    await world.put("d/a", b"")
    assert "it is a directory. Use `list_files`" in await world.refused(lambda: world.view("d"))
    assert "it is a directory" in await world.refused(lambda: world.edit("d", "a", "b"))
    assert "it is a directory" in await world.refused(lambda: world.files.write_file(None, "d", "x"))


async def test_a_file_in_the_way_of_a_directory_is_named(world: World) -> None:
    await world.put("a", b"")
    assert "/workspace/a is not a directory but a file" in await world.refused(lambda: world.view("a/b"))


async def test_b066_a_path_of_the_host_is_answered_with_the_one_here(project: World, tmp_path: Path) -> None:
    host = f"{(tmp_path / 'project').resolve()}/a.py"
    for call in (
        lambda: project.view(host),
        lambda: project.edit(host, "a", "b"),
        lambda: project.files.write_file(None, host, "x"),
        lambda: project.listed(host.removesuffix("a.py") + "**/*.py"),
    ):
        message = await project.refused(call)
        assert "path of the user's machine" in message
        assert "use /workspace" in message
    assert "a = 1" in await project.view("a.py")


async def test_b053_a_write_answers_size_and_digest(world: World) -> None:
    content = "a\tb  \n\n" + "line é\n" * 600
    data = content.encode()
    digest = hashlib.sha256(data).hexdigest()
    first = await world.files.write_file(None, "new/sub/f.txt", content)
    again = await world.files.write_file(None, "/workspace/new/sub/f.txt", content)
    assert first.text == f"created new/sub/f.txt: bytes={len(data)} lines=602 sha256={digest}"
    assert again.text.startswith("replaced new/sub/f.txt: ")
    assert await world.get("new/sub/f.txt") == data


async def test_a_write_keeps_the_mode(world: World) -> None:
    await world.put("run.sh", b"x\n", mode=0o755)
    await world.files.write_file(None, "run.sh", "y\n")
    assert (await world.sandbox.stat(StatRequest(path="/workspace/run.sh"))).mode == 0o755


async def test_content_that_is_no_unicode_is_refused(world: World) -> None:
    assert "surrogate" in await world.refused(lambda: world.files.write_file(None, "a", "\ud800"))


async def test_an_edit_changes_one_place_and_keeps_the_mode(world: World) -> None:
    await world.put("run.sh", b"#!/bin/sh\r\necho hi\r\n", mode=0o755)
    text = await world.edit("run.sh", "echo hi\n", "echo bye\necho $&\n")
    data = b"#!/bin/sh\r\necho bye\r\necho $&\r\n"
    assert text.startswith(
        f"edited line 2 of run.sh: bytes={len(data)} lines=3 sha256={hashlib.sha256(data).hexdigest()}"
    )
    assert await world.get("run.sh") == data
    assert (await world.sandbox.stat(StatRequest(path="/workspace/run.sh"))).mode == 0o755


async def test_an_edit_of_every_place_says_how_many(world: World) -> None:
    await world.put("a", b"a=1\nb\na=1\n")
    assert "2 times" in await world.refused(lambda: world.edit("a", "a=1", "a=2"))
    assert (await world.edit("a", "a=1", "a=2", replace_all=True)).startswith(
        "edited 2 places, the first at line 1 of a:"
    )
    assert await world.get("a") == b"a=2\nb\na=2\n"


async def test_an_empty_old_text_makes_a_file_only_where_none_is(world: World) -> None:
    assert (await world.edit("d/new.txt", "", "x\n")).startswith("created d/new.txt: bytes=2 lines=1 ")
    assert "it exists" in await world.refused(lambda: world.edit("d/new.txt", "", "y\n"))
    await world.put("empty", b"")
    assert "it exists" in await world.refused(lambda: world.edit("empty", "", "y\n"))
    assert await world.get("d/new.txt") == b"x\n"


async def test_an_edit_of_a_missing_file_is_refused(world: World) -> None:
    assert "Cannot edit /workspace/none.txt: there is no none.txt" in await world.refused(
        lambda: world.edit("none.txt", "a", "b")
    )


async def test_ft05_of_many_edits_at_once_exactly_one_succeeds(world: World) -> None:
    await world.put("e", b"a\na\n")
    outcomes: list[str] = []

    async def attempt() -> None:
        try:
            outcomes.append(await world.edit("e", "a\na", "c"))
        except InvalidRequestError:
            outcomes.append("refused")

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(attempt)
    assert len(outcomes) - outcomes.count("refused") == 1
    assert await world.get("e") == b"c\n"
    assert await world.listed("*") == ["path=/workspace entries=1", "e"]


class MeddlingSandbox(DelegatingSandbox):
    """A connection on which somebody else adds to every file right after it was opened."""

    async def read(self, request: ReadRequest) -> FileReader:
        """Open a file, then change it."""
        reader = await super().read(request)
        await self.write(WriteRequest(path=request.path, append=True), b"theirs\n")
        return reader


class MeddlingProvider(DelegatingProvider):
    """Gives out sandboxes on which somebody else is at work."""

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        """Put the meddler in between."""
        return MeddlingSandbox(sandbox)


async def test_a_change_during_an_edit_is_noticed_and_nothing_is_written(tmp_path: Path) -> None:
    async for world in open_world("memory", tmp_path, wrap=MeddlingProvider):
        await world.put("a", b"ours\n")
        with pytest.raises(StateError, match="changed while it was being edited"):
            await world.edit("a", "ours", "mine")
        assert b"mine" not in await world.get("a")


async def test_ft04_hostile_names_are_shown_in_one_line_each(world: World) -> None:
    for name in ("-rf", "two\nlines", "esc\x1b[2J", " ", "bad\udcffname"):
        await world.put(name, b"x\n")
    shown = ["$' '", r"$'bad\xffname'", r"$'esc\e[2J'", r"$'two\nlines'", "-rf"]
    assert sorted((await world.listed())[1:]) == sorted(shown)
    assert (await world.view("two\nlines")).split("\n")[0].startswith(r"path=$'two\nlines' lines=1-1")
    assert "     1\tx" in await world.view("bad\udcffname")


async def test_ft01_what_is_no_file_is_refused_at_once(machine: World) -> None:
    await machine.run("mkfifo f; ln -s /dev/zero z; ln -s nowhere dangling; ln -s loop loop")
    with anyio.fail_after(20):
        for path, reason in (
            ("f", "it is a FIFO (named pipe), not a regular file"),
            ("z", "it is a device, not a regular file"),
            ("/dev/zero", "it is a device, not a regular file"),
            ("dangling", "a symbolic link on the way leads to nothing"),
            ("loop", "its symbolic links lead in a circle"),
        ):
            assert reason in await machine.refused(lambda path=path: machine.view(path))
        assert "FIFO" in await machine.refused(lambda: machine.files.write_file(None, "f", "x"))
        assert "FIFO" in await machine.refused(lambda: machine.edit("f", "x", "y"))
        assert sorted((await machine.listed())[1:]) == [
            "dangling -> nowhere",
            "f (fifo)",
            "loop -> loop",
            "z -> /dev/zero",
        ]


async def test_ft02_files_of_proc_are_refused_or_read_at_once(machine: World) -> None:
    with anyio.fail_after(20):
        for name in ("kmsg", "self/mem", "kcore", "self/environ", "meminfo"):
            message = await machine.refused(lambda name=name: machine.view(f"/proc/{name}"))
            assert f"Cannot read /proc/{name}: " in message
    assert "Use a command such as `cat /proc/meminfo`" in message
    message = await machine.refused(lambda: machine.files.write_file(None, "/proc/sys/kernel/hostname", "x"))
    assert "Use a command such as `tee /proc/sys/kernel/hostname`" in message


async def test_ft03_a_sparse_file_of_1_gib_is_read_in_bounded_time(machine: World) -> None:
    await machine.run(
        "truncate -s 1G big; (echo first; head -c 9000 /dev/zero | tr '\\0' x; echo) > text; "
        "truncate -s 1G text; echo last >> text"
    )
    with anyio.fail_after(30):
        assert "type='zero bytes'" in await machine.view("big")
        assert "total_lines=unknown bytes=1073741829" in await machine.view("text", limit=1)
        assert "total_lines=3" in await machine.view("text", offset=1_000_000)
        assert "more than 16,777,216 bytes" in await machine.refused(lambda: machine.edit("big", "x", "y"))


async def test_an_offset_deep_in_a_big_file_is_reached(machine: World) -> None:
    await machine.run("seq 1 20000000 > numbers")
    assert "\t19999990\n" in await machine.view("numbers", offset=19_999_990)
