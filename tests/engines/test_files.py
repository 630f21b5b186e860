"""The file verbs behave the same behind every carrier."""

import errno
import hashlib

import anyio
import anyio.lowlevel
import pytest
from command_record import run, shell

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import (
    FileKind,
    ListRequest,
    MkdirRequest,
    ReadRequest,
    RemoveRequest,
    RenameRequest,
    StatRequest,
    WriteRequest,
)
from mcp_sandbox.core.streams import BytesStream, read_all
from mcp_sandbox.engines import guest_files as files
from mcp_sandbox.engines.carrier import GuestCarrier
from mcp_sandbox.guest.wire import Type

__all__ = ["TestReading", "TestTrees", "TestWriting"]

BIG = bytes(range(256)) * 8192


@pytest.fixture(autouse=True)
async def clean(carrier: GuestCarrier) -> None:
    """A container is shared: start from an empty directory."""
    await shell(carrier, "rm -rf /area/* /area/.[a-z]*")


async def put(carrier: GuestCarrier, path: str, data: bytes = b"data", **fields: object) -> None:
    """Write a file."""
    await files.write_file(carrier, WriteRequest(path=path, **fields), data)  # type: ignore[arg-type]


async def get(carrier: GuestCarrier, path: str, offset: int = 0, length: int | None = None) -> bytes:
    """Read a file."""
    async with await files.read_file(carrier, ReadRequest(path=path, offset=offset, length=length)) as reader:
        return await read_all(reader, 1 << 30)


async def names(carrier: GuestCarrier, path: str = "/area", depth: int = 1) -> set[str]:
    """List a directory."""
    listing = await files.list_tree(carrier, ListRequest(path=path, depth=depth))
    return {entry.path.removeprefix("/area/") for entry in listing.entries}


class TestReading:
    """What `read` and `stat` give."""

    async def test_a_large_file_arrives_whole(self, carrier: GuestCarrier) -> None:
        await put(carrier, "/area/big", BIG * 4)
        assert await get(carrier, "/area/big") == BIG * 4

    async def test_a_part_of_a_file_is_that_part(self, carrier: GuestCarrier) -> None:
        await put(carrier, "/area/big", BIG)
        for offset, length in [(0, 0), (0, 10), (5, 300_000), (len(BIG) - 3, 10), (len(BIG), 1)]:
            assert await get(carrier, "/area/big", offset, length) == BIG[offset : offset + length]

    async def test_an_offset_beyond_4_gib_is_understood(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "dd if=/dev/zero of=/area/sparse bs=1 count=0 seek=5000000000; printf end >> /area/sparse")
        assert await get(carrier, "/area/sparse", 5_000_000_000) == b"end"

    async def test_a_file_that_is_put_away_unread_costs_nothing(self, carrier: GuestCarrier) -> None:
        """More of them than a bridge has channels."""
        await put(carrier, "/area/big", BIG)
        for _ in range(1100):
            await (await files.read_file(carrier, ReadRequest(path="/area/big"))).aclose()
        assert await get(carrier, "/area/big", 0, 3) == BIG[:3]

    async def test_a_cancelled_read_costs_nothing(self, carrier: GuestCarrier) -> None:
        await put(carrier, "/area/big", BIG)
        for turns in range(60):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    for _ in range(20):
                        tasks.start_soon(get, carrier, "/area/big")
                    for _ in range(turns % 20):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
            await carrier.request(Type.PING, b"")  # what was opened meanwhile is closed before the next round
        assert await get(carrier, "/area/big", 0, 3) == BIG[:3]

    async def test_what_cannot_be_read_is_refused_at_once(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "mkfifo /area/fifo; ln -s loop /area/loop; touch /area/file")
        for path, number in {
            "/area/missing": errno.ENOENT, "/area": errno.EISDIR, "/area/fifo": errno.EINVAL,
            "/dev/zero": errno.EINVAL, "/dev/null": errno.EINVAL, "/area/file/below": errno.ENOTDIR,
            "/area/loop": errno.ELOOP, "/area/" + "n" * 300: errno.ENAMETOOLONG,
            "/" + "p/" * 3000: errno.ENAMETOOLONG,
        }.items():  # fmt: skip
            with anyio.fail_after(5), pytest.raises(OSError) as raised:
                await get(carrier, path)
            assert raised.value.errno == number
            assert raised.value.filename == path

    async def test_procfs_is_left_to_commands(self, carrier: GuestCarrier) -> None:
        """Its files would speak for init."""
        for path in ("/proc/1/environ", "/proc/self/mem", "/proc/1/root/area/file", "/proc/self/fd/0"):
            with pytest.raises(OSError):
                await get(carrier, path)

    async def test_what_is_no_path_is_refused(self, carrier: GuestCarrier) -> None:
        for path in ("relative", "", "/a\0b", "/a\ud800b"):
            with pytest.raises(InvalidRequestError):
                await get(carrier, path)

    async def test_stat_tells_a_link_from_what_it_leads_to(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "printf 12345 > /area/file; chmod 640 /area/file; ln -s file /area/link")
        followed = await files.stat_path(carrier, StatRequest(path="/area/link"))
        itself = await files.stat_path(carrier, StatRequest(path="/area/link", follow=False))
        assert (followed.kind, followed.size_bytes, followed.mode) == (FileKind.FILE, 5, 0o640)
        assert (itself.kind, itself.link_target) == (FileKind.SYMLINK, "file")

    async def test_names_that_are_not_utf8_work(self, carrier: GuestCarrier) -> None:
        await put(carrier, "/area/a\udcffb", b"x")
        assert await names(carrier) == {"a\udcffb"}
        assert await get(carrier, "/area/a\udcffb") == b"x"


class TestWriting:
    """What `write` leaves behind."""

    async def test_the_answer_is_size_and_digest(self, carrier: GuestCarrier) -> None:
        done = await files.write_file(carrier, WriteRequest(path="/area/deep/er/file"), BytesStream(BIG))
        assert (done.size_bytes, done.sha256, done.created) == (len(BIG), hashlib.sha256(BIG).hexdigest(), True)
        assert (await run(carrier, "sha256sum", "/area/deep/er/file")).text().startswith(done.sha256.encode())
        assert not (await files.write_file(carrier, WriteRequest(path="/area/deep/er/file"), b"")).created

    async def test_a_replaced_file_keeps_its_mode_and_its_link(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "touch /area/file; chmod 751 /area/file; ln -s file /area/link")
        await put(carrier, "/area/link", b"through the link")
        assert await get(carrier, "/area/file") == b"through the link"
        assert (await files.stat_path(carrier, StatRequest(path="/area/link", follow=False))).kind is FileKind.SYMLINK
        assert (await files.stat_path(carrier, StatRequest(path="/area/file"))).mode == 0o751

    async def test_a_reader_sees_the_old_or_the_new_content(self, carrier: GuestCarrier) -> None:
        await put(carrier, "/area/file", b"a" * 500_000)
        seen = set[bytes]()
        async with anyio.create_task_group() as tasks:
            for content in (b"b", b"c", b"d"):
                tasks.start_soon(put, carrier, "/area/file", content * 500_000)
            for _ in range(20):
                seen.add(await get(carrier, "/area/file"))
        assert seen <= {content * 500_000 for content in (b"a", b"b", b"c", b"d")}
        assert await names(carrier) == {"file"}

    async def test_a_source_that_fails_leaves_the_old_content_and_no_litter(self, carrier: GuestCarrier) -> None:
        class Failing(BytesStream):
            async def receive(self, max_bytes: int = 65536) -> bytes:
                try:
                    return await super().receive(max_bytes)
                except anyio.EndOfStream:
                    raise ConnectionAbortedError from None

        await put(carrier, "/area/file", b"old")
        with pytest.raises(ConnectionAbortedError):
            await files.write_file(carrier, WriteRequest(path="/area/file"), Failing(BIG))
        assert await get(carrier, "/area/file") == b"old"
        assert await names(carrier) == {"file"}

    async def test_a_full_disk_is_told(self, carrier: GuestCarrier) -> None:
        with pytest.raises(OSError) as raised:
            await put(carrier, "/dev/full")
        assert raised.value.errno == errno.EINVAL  # no regular file: nothing is written to devices

    async def test_append_adds_and_creates(self, carrier: GuestCarrier) -> None:
        for piece in (b"one", b"two", BIG):
            await put(carrier, "/area/log/file", piece, append=True)
        assert await get(carrier, "/area/log/file") == b"onetwo" + BIG

    async def test_create_only_refuses_what_is_there(self, carrier: GuestCarrier) -> None:
        await put(carrier, "/area/file", create_only=True)
        await shell(carrier, "ln -s nowhere /area/dangling")
        for name in ("file", "dangling"):
            with pytest.raises(FileExistsError):
                await put(carrier, f"/area/{name}", b"other", create_only=True)
        assert await get(carrier, "/area/file") == b"data"

    async def test_a_path_that_ends_in_a_slash_names_no_file(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "mkdir /area/directory; ln -s directory /area/link")
        with pytest.raises(IsADirectoryError):
            await put(carrier, "/area/link/")
        assert await names(carrier, depth=3) == {"directory", "link"}

    async def test_without_parents_a_missing_directory_is_told(self, carrier: GuestCarrier) -> None:
        with pytest.raises(FileNotFoundError):
            await put(carrier, "/area/missing/file", make_parents=False)


class TestTrees:
    """Listing, removing, renaming, making directories."""

    async def test_a_listing_tells_everything_in_one_go(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "cd /area; mkdir -p d/e; touch d/f; ln -s d link; mkfifo fifo; ln d/f d/g; printf abc > x")
        listing = await files.list_tree(carrier, ListRequest(path="/area", depth=9))
        found = {entry.path.removeprefix("/area/"): entry for entry in listing.entries}
        assert {name: entry.kind for name, entry in found.items()} == {
            "d": FileKind.DIRECTORY, "d/e": FileKind.DIRECTORY, "d/f": FileKind.FILE, "d/g": FileKind.FILE,
            "link": FileKind.SYMLINK, "fifo": FileKind.FIFO, "x": FileKind.FILE,
        }  # fmt: skip
        assert (found["x"].size_bytes, found["d/f"].links, found["link"].link_target) == (3, 2, "d")

    async def test_depth_limit_and_pruning_hold(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "cd /area; mkdir -p a/b/c skip/inside; touch a/1 a/2 a/3")
        assert await names(carrier, depth=1) == {"a", "skip"}
        listing = await files.list_tree(carrier, ListRequest(path="/area", depth=9, prune=frozenset({"skip"})))
        assert {entry.path for entry in listing.entries} >= {"/area/skip", "/area/a/b/c"}
        assert "/area/skip/inside" not in {entry.path for entry in listing.entries}
        short = await files.list_tree(carrier, ListRequest(path="/area", depth=9, limit=3))
        assert (len(short.entries), short.truncated, listing.truncated) == (3, True, False)

    async def test_what_is_no_directory_cannot_be_listed(self, carrier: GuestCarrier) -> None:
        await put(carrier, "/area/file")
        with pytest.raises(NotADirectoryError):
            await names(carrier, "/area/file")
        with pytest.raises(FileNotFoundError):
            await names(carrier, "/area/missing")

    async def test_many_entries_are_listed(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "cd /area; seq -f file-with-a-rather-long-name-%g 1 2000 | while read n; do : > $n; done")
        assert len(await names(carrier)) == 2000

    async def test_removing_takes_links_themselves_and_trees_when_asked(self, carrier: GuestCarrier) -> None:
        await shell(
            carrier, "cd /area; mkdir -p keep tree/a/b; touch keep/file tree/a/b/c; ln -s keep link; chmod 0 tree/a"
        )
        await files.remove_path(carrier, RemoveRequest(path="/area/link"))
        with pytest.raises(OSError) as raised:
            await files.remove_path(carrier, RemoveRequest(path="/area/tree"))
        assert raised.value.errno == errno.ENOTEMPTY
        await files.remove_path(carrier, RemoveRequest(path="/area/tree", recursive=True))
        assert await names(carrier, depth=3) == {"keep", "keep/file"}
        await files.remove_path(carrier, RemoveRequest(path="/area/tree", missing_ok=True))
        with pytest.raises(FileNotFoundError):
            await files.remove_path(carrier, RemoveRequest(path="/area/tree"))

    async def test_a_tree_deeper_than_there_are_descriptors_is_removed(self, carrier: GuestCarrier) -> None:
        deep = "/".join(["d"] * 1900)
        script = f"cd /area && mkdir -p {deep} && touch {deep}/end"
        assert (await shell(carrier, script)).result.exit_code == 0
        await files.remove_path(carrier, RemoveRequest(path="/area/d", recursive=True))
        assert await names(carrier) == set()

    async def test_renaming_replaces_only_when_asked(self, carrier: GuestCarrier) -> None:
        await put(carrier, "/area/a", b"a")
        await put(carrier, "/area/b", b"b")
        with pytest.raises(FileExistsError):
            await files.rename_path(carrier, RenameRequest(source="/area/a", target="/area/b", replace=False))
        await files.rename_path(carrier, RenameRequest(source="/area/a", target="/area/b"))
        assert await names(carrier) == {"b"}
        assert await get(carrier, "/area/b") == b"a"

    async def test_directories_are_made_with_their_mode(self, carrier: GuestCarrier) -> None:
        await files.make_directory(carrier, MkdirRequest(path="/area/a/b/c", mode=0o1777))
        assert (await files.stat_path(carrier, StatRequest(path="/area/a/b/c"))).mode == 0o1777
        await files.make_directory(carrier, MkdirRequest(path="/area/a/b/c"))
        with pytest.raises(FileExistsError):
            await files.make_directory(carrier, MkdirRequest(path="/area/a/b/c", exist_ok=False))
        with pytest.raises(FileNotFoundError):
            await files.make_directory(carrier, MkdirRequest(path="/area/x/y", parents=False))
