"""Whole trees in and out, behind every carrier."""

import contextlib
import errno
import io
import os
import tarfile
from typing import Final, NamedTuple

import anyio
import pytest
from command_record import shell

from mcp_sandbox.core.errors import InvalidRequestError, SandboxGoneError
from mcp_sandbox.core.files import DownloadRequest, UploadRequest
from mcp_sandbox.core.streams import BytesStream, read_all
from mcp_sandbox.engines.carrier import GuestCarrier
from mcp_sandbox.engines.guest_trees import pack_tar, unpack_tar
from mcp_sandbox.guest.pack import Record
from mcp_sandbox.guest.wire import Type, fields

__all__ = ["Member", "TestHostileRecords", "TestTrees"]

MEGABYTE: Final = 1 << 20


@pytest.fixture(autouse=True)
async def clean(carrier: GuestCarrier) -> None:
    """A container is shared: start from an empty directory."""
    await shell(carrier, "rm -rf /area/* /area/.[a-z]*")


class Member(NamedTuple):
    """A member of an archive, with its content."""

    info: tarfile.TarInfo
    data: bytes


def member(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", link: str = "", **fields: object) -> Member:
    """Return a member of an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return Member(info, data)


def archive(*members: Member) -> bytes:
    """Return members as an archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


async def upload(carrier: GuestCarrier, tar: bytes, path: str = "/area") -> None:
    """Unpack an archive."""
    with anyio.fail_after(20):
        await unpack_tar(carrier, UploadRequest(path=path), BytesStream(tar))


async def download(carrier: GuestCarrier, path: str) -> dict[str, tarfile.TarInfo]:
    """Pack a tree; return its members, the last of each name."""
    async with await pack_tar(carrier, DownloadRequest(path=path)) as stream:
        data = await read_all(stream, 1 << 30)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {info.name: info for info in tar}


class TestTrees:
    """Archives that mean well."""

    async def test_a_tree_comes_back_as_it_went(self, carrier: GuestCarrier) -> None:
        content = os.urandom(3 * MEGABYTE + 17)
        sent = archive(
            member("d", tarfile.DIRTYPE, mode=0o2750, mtime=1_000_000_000.25),
            member("d/file", data=content, mode=0o4711, mtime=1_234_567_890.123),
            member("d/early", mtime=-1.5),
            member("d/link", tarfile.SYMTYPE, link="/absolute/and gone"),
            member("d/hard", tarfile.LNKTYPE, link="d/file"),
            member("d/fifo", tarfile.FIFOTYPE, mode=0o600),
            member("n" * 200 + "/" + "m" * 200, data=b"long"),
            member("d/a\udcffb", data=b"bytes"),
        )
        await upload(carrier, sent)
        found = await download(carrier, "/area")
        assert found["d"].mode == 0o2750
        assert found["d"].mtime == 1_000_000_000.25
        assert {found["d/file"].type, found["d/hard"].type} == {tarfile.REGTYPE, tarfile.LNKTYPE}
        whole = found["d/file"] if found["d/file"].isreg() else found["d/hard"]
        assert (whole.size, whole.mode, round(whole.mtime, 3)) == (len(content), 0o4711, 1_234_567_890.123)
        assert found["d/early"].mtime == -1.5
        assert found["d/link"].linkname == "/absolute/and gone"
        assert found["d/fifo"].type == tarfile.FIFOTYPE
        assert found["n" * 200 + "/" + "m" * 200].size == 4
        assert "d/a\udcffb" in found
        text = (await shell(carrier, "cd /area/d; cat file | sha256sum; cat hard | sha256sum")).text().split(b"\n")
        assert text[0] == text[1]

    async def test_holes_stay_holes_and_read_as_zeros(self, carrier: GuestCarrier) -> None:
        grow = "dd if=/dev/zero of=s bs=1 count=0"
        await shell(carrier, f"cd /area; {grow} seek=3000000; printf x >> s; {grow} seek=4000000")
        async with await pack_tar(carrier, DownloadRequest(path="/area")) as stream:
            data = await read_all(stream, 1 << 30)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            extracted = tar.extractfile("s")
            assert extracted is not None
            content = extracted.read()
        assert content == bytes(3_000_000) + b"x" + bytes(999_999)

    async def test_a_single_file_can_be_packed(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "printf 123 > /area/one")
        assert {name: info.size for name, info in (await download(carrier, "/area/one")).items()} == {"one": 3}

    async def test_thousands_of_files_travel_in_one_go(self, carrier: GuestCarrier) -> None:
        await upload(carrier, archive(*(member(f"d{n % 50}/f{n}", data=b"%d" % n) for n in range(3000))))
        found = await download(carrier, "/area")
        assert sum(info.isreg() for info in found.values()) == 3000

    async def test_a_download_that_is_put_away_costs_nothing(self, carrier: GuestCarrier) -> None:
        await upload(carrier, archive(*(member(f"f{n}", data=bytes(MEGABYTE)) for n in range(4))))
        for _ in range(20):
            await (await pack_tar(carrier, DownloadRequest(path="/area"))).aclose()
        with anyio.fail_after(5):
            while int.from_bytes((await carrier.request(Type.LIVE, b"")).payload, "little"):
                await anyio.sleep(0.01)  # workers notice at their next write

    async def test_existing_files_are_replaced_and_others_stay(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "cd /area; mkdir d; echo keep > d/keep; echo old > d/file; ln -s d link")
        await upload(carrier, archive(member("d/file", data=b"new"), member("link", data=b"no link")))
        assert (await shell(carrier, "cd /area; cat d/keep d/file link")).text() == b"keep\nnewno link"

    async def test_what_cannot_be_packed_is_refused_at_once(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "mkfifo /area/fifo")
        for path in ("/area/missing", "/dev/null", "/area/fifo"):
            with anyio.fail_after(5), pytest.raises(OSError):
                await download(carrier, path)

    async def test_a_source_that_fails_ends_the_upload(self, carrier: GuestCarrier) -> None:
        class Failing(BytesStream):
            async def receive(self, max_bytes: int = 65536) -> bytes:
                try:
                    return await super().receive(max_bytes)
                except anyio.EndOfStream:
                    raise ConnectionAbortedError from None

        tar = archive(member("file", data=bytes(MEGABYTE)))[: MEGABYTE // 2]
        with anyio.fail_after(10), pytest.raises(ConnectionAbortedError):
            await unpack_tar(carrier, UploadRequest(path="/area"), Failing(tar))
        assert (await shell(carrier, "echo fine")).text() == b"fine\n"

    async def test_a_worker_that_is_killed_is_an_error_not_a_short_tree(self, carrier: GuestCarrier) -> None:
        await upload(carrier, archive(member("f", data=b"x" * (4 * MEGABYTE))))
        stream = await pack_tar(carrier, DownloadRequest(path="/area"))
        await stream.receive()
        workers = "cat /proc/[0-9]*/stat | while read p n _; do [ $p != 1 ] && [ $n = '(guest)' ] && echo $p; done"
        with contextlib.suppress(SandboxGoneError):  # before it was said that the command started
            await shell(carrier, f"kill -9 $({workers})")
        with anyio.fail_after(10), pytest.raises((OSError, SandboxGoneError)):  # SandboxGone: the bridge died as well
            await read_all(stream, 1 << 30)
        await stream.aclose()


class TestHostileRecords:
    """Nothing that an archive says reaches beyond the directory."""

    async def test_a_member_that_would_leave_is_refused(self, carrier: GuestCarrier) -> None:
        for bad in (
            member("../out", data=b"x"), member("/absolute", data=b"x"), member("a/../../out", data=b"x"),
            member("dev", tarfile.CHRTYPE), member("dev", tarfile.BLKTYPE),
            member("h", tarfile.LNKTYPE, link="../../etc/x"),
        ):  # fmt: skip
            with pytest.raises(InvalidRequestError):
                await upload(carrier, archive(bad))

    async def test_a_link_in_the_archive_is_not_written_through(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "mkdir /area/out /area/in")
        with pytest.raises(OSError):
            await upload(
                carrier, archive(member("l", tarfile.SYMTYPE, link="../out"), member("l/file", data=b"x")), "/area/in"
            )
        assert (await shell(carrier, "ls /area/out")).text() == b""

    async def test_attributes_of_a_directory_do_not_follow_a_link_in_its_place(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "mkdir /area/in; touch /area/victim; chmod 600 /area/victim")
        tar = archive(member("d", tarfile.DIRTYPE, mode=0o777), member("d", tarfile.SYMTYPE, link="../victim"))
        await upload(carrier, tar, "/area/in")
        assert (await shell(carrier, "stat -c %a /area/victim")).text() == b"600\n"

    async def test_a_hard_link_does_not_follow_links(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "mkdir /area/in /area/out; echo secret > /area/out/file")
        tar = archive(member("l", tarfile.SYMTYPE, link="../out"), member("h", tarfile.LNKTYPE, link="l/file"))
        with pytest.raises(OSError):
            await upload(carrier, tar, "/area/in")
        assert (await shell(carrier, "stat -c %h /area/out/file")).text() == b"1\n"

    async def test_records_that_make_no_sense_are_refused(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "mkdir /area/in")
        for records in (
            b"", b"\0", bytes(48), bytes(48) * 100, Record(kind="d", path="a").encode(),
            Record(kind="f", path="a", size=5).encode() + b"\xff" * 16,
            Record(kind="f", path="..").encode(), Record(kind="d", path="/etc").encode(),
            Record(kind="h", path="a", link="/etc/hostname").encode(), Record(kind="s", path="a").encode(),
            Record(kind="d", path="x\0y").encode(), Record(kind="d", path="a/" * 4000 + "b").encode(),
        ):  # fmt: skip
            with anyio.fail_after(10), pytest.raises(OSError):
                await carrier.feed(Type.UNPACK, fields("/area/in"), BytesStream(records))
        assert (await shell(carrier, "ls -A /area")).text() == b"in\n"

    async def test_a_kind_of_zero_does_not_remove_what_is_there(self, carrier: GuestCarrier) -> None:
        await shell(carrier, "mkdir /area/in; touch /area/in/a")
        record = b"\0" + Record(kind="d", path="a").encode()[1:]
        with pytest.raises(OSError) as raised:
            await carrier.feed(Type.UNPACK, fields("/area/in"), BytesStream(record))
        assert raised.value.errno == errno.EPROTO
        assert (await shell(carrier, "ls -A /area/in")).text() == b"a\n"
