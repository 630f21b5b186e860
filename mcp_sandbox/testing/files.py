"""Reading and writing files through the border: whole or not at all, never hanging, each path with its own error."""

import errno
import hashlib

import anyio
import pytest

from mcp_sandbox.core.errors import PolicyDeniedError
from mcp_sandbox.core.files import FileKind, ReadRequest, StatRequest, WriteRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.streams import BytesStream
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import HANG_S, entries, put, read_file, run, sh, size_of, status_of
from mcp_sandbox.testing.streams import CuriousStream, PatternStream, digest_of

__all__ = ["FileContract"]

MIB = 1 << 20


class FileContract(Contract):
    """Read, write and stat."""

    # -- content

    @pytest.mark.parametrize(
        "data",
        [b"", b"\0", b"\xff\xfe\x00", b"a\r\nb\r\n", bytes(range(256)), b"x" * (MIB + 1)],
        ids=["empty", "NUL", "not UTF-8", "CRLF", "every byte", "1 MiB and one"],
    )
    async def test_bytes_survive_a_round_trip(self, sandbox: Sandbox, data: bytes) -> None:
        await put(sandbox, "/workspace/file", data)
        assert await read_file(sandbox, "/workspace/file") == data
        assert await size_of(sandbox, "/workspace/file") == len(data)

    async def test_b053_a_write_says_what_it_wrote(self, sandbox: Sandbox) -> None:
        """B-053, B-054: a caller can check that nothing was cut."""
        for data, created in ((b"first version", True), (b"2nd", False)):
            result = await sandbox.write(WriteRequest(path="/workspace/file"), data)
            assert result.size_bytes == len(data)
            assert result.sha256 == hashlib.sha256(data).hexdigest()
            assert result.created is created
        assert await read_file(sandbox, "/workspace/file") == b"2nd"

    @pytest.mark.parametrize("offset", [0, 1, 9, 10, 11, 1 << 40])
    @pytest.mark.parametrize("length", [None, 0, 1, 10, 1 << 40])
    async def test_a_part_is_read_without_the_rest(self, sandbox: Sandbox, offset: int, length: int | None) -> None:
        data = b"0123456789"
        await put(sandbox, "/workspace/file", data)
        end = None if length is None else offset + length
        assert await read_file(sandbox, "/workspace/file", offset, length) == data[offset:end]

    async def test_an_open_file_says_what_it_is(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/file", b"12345", 0o640)
        async with await sandbox.read(ReadRequest(path="/workspace/file")) as reader:
            assert (reader.info.kind, reader.info.size_bytes, reader.info.mode) == (FileKind.FILE, 5, 0o640)

    async def test_sixty_four_mebibytes_go_in_and_out_as_a_stream(self, sandbox: Sandbox) -> None:
        source = PatternStream(64 * MIB)
        with anyio.fail_after(2 * HANG_S):
            result = await sandbox.write(WriteRequest(path="/workspace/big"), source)
            async with await sandbox.read(ReadRequest(path="/workspace/big")) as reader:
                size, digest = await digest_of(reader)
        assert (result.size_bytes, size) == (64 * MIB, 64 * MIB)
        assert result.sha256 == digest == source.digest

    async def test_a_file_that_is_mostly_hole_is_read_at_its_end(self, programs: None, sandbox: Sandbox) -> None:
        await sh(sandbox, "printf end | dd of=/workspace/sparse bs=1 seek=1073741824 conv=notrunc 2>/dev/null")
        assert await size_of(sandbox, "/workspace/sparse") == (1 << 30) + 3
        with anyio.fail_after(5):
            assert await read_file(sandbox, "/workspace/sparse", offset=(1 << 30) - 2) == b"\0\0end"

    async def test_commands_and_file_verbs_see_the_same_files(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/from-outside", b"hello")
        assert (await run(sandbox, "cat", "/workspace/from-outside")).stdout == b"hello"
        await run(sandbox, "tee", "/workspace/from-inside", stdin=b"world")
        assert await read_file(sandbox, "/workspace/from-inside") == b"world"

    async def test_b058_a_written_file_belongs_to_whoever_runs_commands(self, sandbox: Sandbox) -> None:
        """B-058, B-063: one owner for what the file verbs and what commands make."""
        await put(sandbox, "/workspace/new/from-outside")
        await run(sandbox, "touch", "/workspace/from-inside")
        inside = await status_of(sandbox, "/workspace/from-inside")
        for path in ("/workspace/new", "/workspace/new/from-outside"):
            outside = await status_of(sandbox, path)
            assert (outside.uid, outside.gid) == (inside.uid, inside.gid)

    # -- whole or not at all

    async def test_a_reader_never_sees_half_a_write(self, sandbox: Sandbox) -> None:
        versions = [letter * MIB for letter in (b"a", b"b")]
        await put(sandbox, "/workspace/file", versions[0])

        async def write() -> None:
            for turn in range(20):
                await put(sandbox, "/workspace/file", versions[turn % 2])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            for _ in range(20):
                assert await read_file(sandbox, "/workspace/file") in versions

    async def test_a_file_that_is_being_read_is_not_changed_by_a_write(self, sandbox: Sandbox) -> None:
        old = b"o" * (4 * MIB)
        await put(sandbox, "/workspace/file", old)
        async with await sandbox.read(ReadRequest(path="/workspace/file")) as reader:
            first = await reader.receive()
            await put(sandbox, "/workspace/file", b"new")
            rest = b"".join([chunk async for chunk in reader])
        assert first + rest == old

    async def test_a_write_that_fails_half_way_leaves_the_old_file_and_nothing_else(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/file", b"old", 0o600)
        source = CuriousStream(b"n" * MIB, PolicyDeniedError("Too much", why="the source says so", fix="Send less"))
        with pytest.raises(PolicyDeniedError):
            await sandbox.write(WriteRequest(path="/workspace/file"), source)
        assert source.closed
        assert await read_file(sandbox, "/workspace/file") == b"old"
        assert list(await entries(sandbox, "/workspace")) == ["file"]

    async def test_a_write_that_is_cancelled_leaves_the_old_file_and_nothing_else(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/file", b"old")
        source = CuriousStream(b"n" * MIB, None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.write, WriteRequest(path="/workspace/file"), source)
            await source.asked_again.wait()
            tasks.cancel_scope.cancel()
        assert source.closed
        assert await read_file(sandbox, "/workspace/file") == b"old"
        assert list(await entries(sandbox, "/workspace")) == ["file"]

    async def test_a_write_closes_its_source(self, sandbox: Sandbox) -> None:
        source = BytesStream(b"data")
        await sandbox.write(WriteRequest(path="/workspace/file"), source)
        with pytest.raises(anyio.ClosedResourceError):
            await source.receive()

    # -- modes, parents, creation, appending

    async def test_a_new_file_is_readable_by_all_and_an_old_one_keeps_its_mode(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/new")
        assert (await status_of(sandbox, "/workspace/new")).mode == 0o644
        for mode in (0o755, 0o600, 0o444):
            await put(sandbox, "/workspace/kept", b"1", mode)
            await put(sandbox, "/workspace/kept", b"22")
            assert (await status_of(sandbox, "/workspace/kept")).mode == mode
        assert await read_file(sandbox, "/workspace/kept") == b"22"

    async def test_parents_are_made_only_if_asked_for(self, sandbox: Sandbox) -> None:
        with pytest.raises(FileNotFoundError):
            await sandbox.write(WriteRequest(path="/workspace/a/b/file", make_parents=False), b"")
        assert await entries(sandbox, "/workspace") == {}
        await put(sandbox, "/workspace/a/b/file", b"x")
        assert (await status_of(sandbox, "/workspace/a/b")).mode == 0o755

    async def test_create_only_refuses_whatever_is_there(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/file", b"old")
        await run(sandbox, "ln", "-s", "/workspace/nowhere", "/workspace/dangling")
        for name in ("file", "dangling"):
            with pytest.raises(FileExistsError):
                await sandbox.write(WriteRequest(path=f"/workspace/{name}", create_only=True), b"new")
        assert await read_file(sandbox, "/workspace/file") == b"old"
        assert "nowhere" not in await entries(sandbox, "/workspace")
        await sandbox.write(WriteRequest(path="/workspace/new", create_only=True), b"new")
        assert await read_file(sandbox, "/workspace/new") == b"new"

    async def test_appending_adds_to_the_end_chunk_by_chunk(self, sandbox: Sandbox) -> None:
        for data in (b"one", b"two"):
            await sandbox.write(WriteRequest(path="/workspace/log", append=True), data)
        assert await read_file(sandbox, "/workspace/log") == b"onetwo"
        source = CuriousStream(b"three", None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.write, WriteRequest(path="/workspace/log", append=True), source)
            with anyio.fail_after(HANG_S):
                while await read_file(sandbox, "/workspace/log") != b"onetwothree":
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert await read_file(sandbox, "/workspace/log") == b"onetwothree"

    # -- links

    async def test_a_write_through_a_link_changes_what_it_leads_to(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/target", b"old", 0o640)
        for link, said in (("relative", "target"), ("absolute", "/workspace/target")):
            await run(sandbox, "ln", "-s", said, link)
            await put(sandbox, f"/workspace/{link}", link.encode())
            assert await read_file(sandbox, "/workspace/target") == link.encode()
            assert (await status_of(sandbox, f"/workspace/{link}")).link_target == said
        assert (await status_of(sandbox, "/workspace/target")).mode == 0o640

    async def test_m20_a_write_through_a_dangling_link_makes_the_file_inside(self, sandbox: Sandbox) -> None:
        """M-20, B-044: the target exists on the host, perhaps, but not inside; it is made inside."""
        await run(sandbox, "ln", "-s", "/tmp/made-through-a-link", "link")
        result = await sandbox.write(WriteRequest(path="/workspace/link"), b"inside")
        assert result.created
        assert (await status_of(sandbox, "/workspace/link")).kind is FileKind.SYMLINK
        assert await read_file(sandbox, "/tmp/made-through-a-link") == b"inside"

    async def test_links_that_lead_in_a_circle_are_an_error(self, sandbox: Sandbox) -> None:
        await run(sandbox, "ln", "-s", "b", "a")
        await run(sandbox, "ln", "-s", "a", "b")
        for call in (
            sandbox.read(ReadRequest(path="/workspace/a")),
            sandbox.stat(StatRequest(path="/workspace/a")),
            sandbox.write(WriteRequest(path="/workspace/a"), b""),
        ):
            with pytest.raises(OSError) as caught:
                await call
            assert caught.value.errno == errno.ELOOP

    async def test_stat_follows_a_link_or_looks_at_it(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/target", b"12345")
        await run(sandbox, "ln", "-s", "target", "link")
        link = await status_of(sandbox, "/workspace/link", follow=False)
        assert (link.kind, link.link_target, link.size_bytes) == (FileKind.SYMLINK, "target", 6)
        behind = await status_of(sandbox, "/workspace/link", follow=True)
        assert (behind.kind, behind.link_target, behind.size_bytes) == (FileKind.FILE, None, 5)
        await run(sandbox, "ln", "target", "second")
        assert (await status_of(sandbox, "/workspace/target")).links == 2

    # -- errors, at once

    async def test_a_missing_file_is_not_found(self, sandbox: Sandbox) -> None:
        for path in ("/workspace/missing", "/workspace/missing/file"):
            with pytest.raises(FileNotFoundError):
                await sandbox.read(ReadRequest(path=path))
            with pytest.raises(FileNotFoundError):
                await sandbox.stat(StatRequest(path=path))

    async def test_a_directory_is_neither_read_nor_written(self, sandbox: Sandbox) -> None:
        with pytest.raises(IsADirectoryError):
            await sandbox.read(ReadRequest(path="/workspace"))
        with pytest.raises(IsADirectoryError):
            await sandbox.write(WriteRequest(path="/workspace"), b"")

    async def test_a_path_through_a_file_is_not_a_directory(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/file", b"kept")
        with pytest.raises(NotADirectoryError):
            await sandbox.read(ReadRequest(path="/workspace/file/below"))
        with pytest.raises(NotADirectoryError):
            await sandbox.stat(StatRequest(path="/workspace/file/below"))
        with pytest.raises(NotADirectoryError):
            await sandbox.write(WriteRequest(path="/workspace/file/below"), b"")
        assert await read_file(sandbox, "/workspace/file") == b"kept"

    async def test_ft01_a_fifo_is_refused_at_once(self, sandbox: Sandbox) -> None:
        """FT-01, M-21, M-22: `open` on it would wait for a writer for ever."""
        await run(sandbox, "mkfifo", "fifo")
        await run(sandbox, "ln", "-s", "fifo", "link")
        assert (await status_of(sandbox, "/workspace/fifo")).kind is FileKind.FIFO
        for path in ("/workspace/fifo", "/workspace/link"):
            with anyio.fail_after(5):
                with pytest.raises(OSError) as caught:
                    await sandbox.read(ReadRequest(path=path))
                assert caught.value.errno == errno.EINVAL
                with pytest.raises(OSError):
                    await sandbox.write(WriteRequest(path=path), b"x")

    @pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/urandom"])
    async def test_ft01_a_device_is_refused_at_once(self, programs: None, sandbox: Sandbox, device: str) -> None:
        """FT-01: reading `/dev/zero` would never end."""
        await run(sandbox, "ln", "-s", device, "link")
        for path in (device, "/workspace/link"):
            with anyio.fail_after(5), pytest.raises(OSError) as caught:
                await sandbox.read(ReadRequest(path=path))
            assert caught.value.errno == errno.EINVAL
        assert (await status_of(sandbox, device)).kind is FileKind.DEVICE

    async def test_ft01_a_socket_is_refused_at_once(self, python: str, sandbox: Sandbox) -> None:
        await run(sandbox, python, "-c", "import socket; socket.socket(socket.AF_UNIX).bind('socket')")
        with anyio.fail_after(5), pytest.raises(OSError):
            await sandbox.read(ReadRequest(path="/workspace/socket"))
        assert (await status_of(sandbox, "/workspace/socket")).kind is FileKind.SOCKET

    async def test_many_files_are_written_and_read_at_once(self, sandbox: Sandbox) -> None:
        async def both(number: int) -> None:
            await put(sandbox, f"/workspace/{number}", b"%d" % number * 10_000)
            assert await read_file(sandbox, f"/workspace/{number}") == b"%d" % number * 10_000

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(both, number)
        assert len(await entries(sandbox, "/workspace")) == 50
