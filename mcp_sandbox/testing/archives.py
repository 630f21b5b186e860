"""Tar streams in and out of a sandbox: nothing is lost on the way, and no member ever leaves its directory."""

import contextlib
import io
import stat
import tarfile
from collections.abc import Mapping, Sequence
from typing import Final

import anyio
import pytest

from mcp_sandbox.core.attributes import attributes_of_pax
from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import DownloadRequest, FileInfo, FileKind, MkdirRequest, UploadRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.streams import BytesStream
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import entries, put, read_file, run, sh, status_of
from mcp_sandbox.testing.streams import CuriousStream

__all__ = ["ArchiveContract"]

Member = tuple[tarfile.TarInfo, bytes]


def _member(
    name: str,
    kind: bytes = tarfile.REGTYPE,
    data: bytes = b"",
    target: str = "",
    mode: int = 0o644,
    pax: Mapping[str, str] | None = None,
) -> Member:
    """Return one member of an archive, whatever its name and kind."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size, info.mtime = kind, target, mode, len(data), 1_600_000_000
    if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
        info.devmajor, info.devminor = 1, 5
    info.pax_headers = dict(pax or {})
    return info, data


def _pack(*members: Member, form: int = tarfile.PAX_FORMAT) -> bytes:
    """Return an archive of members exactly as they are given."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, errors="surrogateescape") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _beyond_path_max() -> Sequence[Member]:
    """Return members whose links lead further than a path can be long, where checks of the name give up."""
    members: list[Member] = []
    short, long = "", ""
    for letter in "abcdefghijklmnop":
        members.append(_member(f"{short}{'d' * 247}", tarfile.DIRTYPE, mode=0o755))
        members.append(_member(f"{short}{letter}", tarfile.SYMTYPE, target="d" * 247))
        short, long = f"{short}{'d' * 247}/", f"{long}{letter}/"
    up = f"{long}{'l' * 254}"
    return [
        *members,
        _member(up, tarfile.SYMTYPE, target="../" * 16),
        _member("escape", tarfile.SYMTYPE, target=f"{up}/../outside"),
        _member("hard", tarfile.LNKTYPE, target="escape/victim"),
        _member("hard", data=b"bad"),
        _member("escape/victim", data=b"bad"),
    ]


HOSTILE: Final[Mapping[str, Sequence[Member]]] = {
    "a name with dots": [_member("../outside/victim", data=b"bad")],
    "a name with dots further in": [_member("a/../../outside/victim", data=b"bad")],
    "an absolute name": [_member("/workspace/outside/victim", data=b"bad")],
    "a name with many slashes": [_member("//workspace/outside/victim", data=b"bad")],
    "a link to a directory, then a file through it": [
        _member("link", tarfile.SYMTYPE, target="/workspace/outside"),
        _member("link/victim", data=b"bad"),
    ],
    "a relative link, then a file through it": [
        _member("link", tarfile.SYMTYPE, target="../outside"),
        _member("link/victim", data=b"bad"),
    ],
    "a chain of links": [
        _member("one", tarfile.SYMTYPE, target=".."),
        _member("two", tarfile.SYMTYPE, target="one/outside"),
        _member("two/victim", data=b"bad"),
    ],
    "a link, then a file of the same name": [
        _member("file", tarfile.SYMTYPE, target="/workspace/outside/victim"),
        _member("file", data=b"bad"),
    ],
    "a directory that becomes a link": [
        _member("d", tarfile.DIRTYPE, mode=0o755),
        _member("d", tarfile.SYMTYPE, target="/workspace/outside"),
        _member("d/victim", data=b"bad"),
    ],
    "a hard link to the outside, then a file of the same name": [
        _member("hard", tarfile.LNKTYPE, target="../outside/victim"),
        _member("hard", data=b"bad"),
    ],
    "a hard link to an absolute name": [
        _member("hard", tarfile.LNKTYPE, target="/workspace/outside/victim"),
        _member("hard", data=b"bad"),
    ],
    "a hard link through a link": [
        _member("link", tarfile.SYMTYPE, target="/workspace/outside"),
        _member("hard", tarfile.LNKTYPE, target="link/victim"),
        _member("hard", data=b"bad"),
    ],
    "a directory through a link": [
        _member("link", tarfile.SYMTYPE, target="/workspace/outside"),
        _member("link/new", tarfile.DIRTYPE, mode=0o777),
    ],
    "a mode for a directory that is a link": [
        _member("link", tarfile.SYMTYPE, target="/workspace/outside"),
        _member("link", tarfile.DIRTYPE, mode=0o777),
        _member("link/victim", data=b"bad"),
    ],
    "a file through a link that was there before": [_member("planted/victim", data=b"bad")],
    "a file in place of a link that was there before": [_member("planted-file", data=b"bad")],
    "a name that an extended header overrides": [_member("safe", data=b"bad", pax={"path": "../outside/victim"})],
    "a target that an extended header overrides": [
        _member("hard", tarfile.LNKTYPE, target="safe", pax={"linkpath": "../outside/victim"}),
        _member("hard", data=b"bad"),
    ],
    "links beyond the longest path": _beyond_path_max(),
    "its own directory by another name": [_member("../into/../outside/victim", data=b"bad")],
}
"""Members that try to leave `/workspace/into`, by how they try."""

ODD_ATTRIBUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "no name": {"SCHILY.xattr.user.": "x"},
    "a name with a NUL": {"SCHILY.xattr.user.a%00b": "x"},
    "a name that is too long": {f"SCHILY.xattr.user.{'n' * 300}": "x"},
    "a value that is too long": {"SCHILY.xattr.user.long": "v" * 70_000},
    "too many": {f"SCHILY.xattr.user.{number}": "v" for number in range(5000)},
    "too much together": {f"SCHILY.xattr.user.{number}": "v" * 60_000 for number in range(4)},
}

BROKEN: Final[Mapping[str, bytes]] = {
    "noise": b"this is no tar archive at all " * 100,
    "half a header": _pack(_member("file", data=b"x"))[:300],
    "half a file": _pack(_member("file", data=b"x" * 10_000))[:2000],
    "a wrong checksum": _pack(_member("file", data=b"x")).replace(b"file", b"fine", 1),
    "a size that is no number": _pack(_member("file", data=b"x"), form=tarfile.USTAR_FORMAT).replace(
        b"00000000001", b"zzzzzzzzzzz", 1
    ),
}


def _tree(found: Mapping[str, FileInfo]) -> dict[str, tuple[FileKind, int, str | None]]:
    """Return what must survive a round trip, of everything but directories' sizes."""
    return {name: (entry.kind, entry.mode, entry.link_target) for name, entry in found.items()}


class ArchiveContract(Contract):
    """Upload and download."""

    @pytest.fixture
    async def into(self, sandbox: Sandbox) -> str:
        """A directory to unpack into, with victims beside it and a planted link in it."""
        await put(sandbox, "/workspace/outside/victim", b"victim", 0o600)
        await sandbox.mkdir(MkdirRequest(path="/workspace/into"))
        await run(sandbox, "ln", "-s", "/workspace/outside", "/workspace/into/planted")
        await run(sandbox, "ln", "-s", "/workspace/outside/victim", "/workspace/into/planted-file")
        return "/workspace/into"

    async def test_a_round_trip_keeps_content_modes_times_and_links(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/a/script", b"#!/bin/sh\n", 0o755)
        await put(sandbox, "/workspace/a/deep/private", b"\0\xff" * 50_000, 0o600)
        await sandbox.mkdir(MkdirRequest(path="/workspace/a/empty", mode=0o700))
        await run(sandbox, "ln", "/workspace/a/script", "/workspace/a/second-name")
        await run(sandbox, "ln", "-s", "/absolute/elsewhere", "/workspace/a/absolute")
        await run(sandbox, "ln", "-s", "script", "/workspace/a/relative")
        if sandbox.capabilities.runs_programs:
            await sh(sandbox, "find a -exec touch -h -d '2001-02-03 04:05:06' {} +")
        await sandbox.mkdir(MkdirRequest(path="/workspace/b"))
        tar = await sandbox.download(DownloadRequest(path="/workspace/a"))
        await sandbox.upload(UploadRequest(path="/workspace/b"), tar)
        before, after = await entries(sandbox, "/workspace/a", 9), await entries(sandbox, "/workspace/b", 9)
        assert _tree(after) == _tree(before)
        assert {n: e.modified_ns // 10**9 for n, e in after.items()} == {
            n: e.modified_ns // 10**9 for n, e in before.items()
        }
        assert (after["script"].links, after["second-name"].links) == (2, 2)
        assert await read_file(sandbox, "/workspace/b/deep/private") == b"\0\xff" * 50_000

    async def test_extended_attributes_of_programs_come_in_and_go_out(self, sandbox: Sandbox) -> None:
        """As pax headers that GNU tar and bsdtar know; undeclared, they may be left out."""
        headers = {
            "SCHILY.xattr.user.plain": "value", "SCHILY.xattr.user.odd%3D%25": "\0\n=\udcff",
            "SCHILY.xattr.security.capability": "0", "SCHILY.xattr.trusted.overlay.opaque": "y", "comment": "none",
        }  # fmt: skip
        data = _pack(
            _member("d", tarfile.DIRTYPE, mode=0o755, pax=headers), _member("d/f", data=b"content", pax=headers),
            _member("d/bare", data=b"none"),
        )  # fmt: skip
        await sandbox.mkdir(MkdirRequest(path="/workspace/in"))
        await sandbox.upload(UploadRequest(path="/workspace/in"), BytesStream(data))
        async with await sandbox.download(DownloadRequest(path="/workspace/in")) as stream:
            out = b"".join([chunk async for chunk in stream])
        with tarfile.open(fileobj=io.BytesIO(out), errors="surrogateescape") as tar:
            found = {info.name.removeprefix("./").rstrip("/"): attributes_of_pax(info.pax_headers) for info in tar}
        expected = {"user.odd=%": b"\0\n=\xff", "user.plain": b"value"}
        assert dict(found["d/bare"]) == {}
        assert await read_file(sandbox, "/workspace/in/d/f") == b"content"
        for name in ("d", "d/f"):
            kept = dict(found[name])
            assert kept == expected or not (kept or sandbox.capabilities.extended_attributes), "all of them, or none"

    @pytest.mark.parametrize("headers", ODD_ATTRIBUTES.values(), ids=ODD_ATTRIBUTES)
    async def test_attributes_that_no_file_can_have_are_refused_or_left_out(
        self, sandbox: Sandbox, headers: Mapping[str, str]
    ) -> None:
        data = _pack(_member("f", data=b"content", pax=headers))
        with contextlib.suppress(InvalidRequestError, OSError):
            await sandbox.upload(UploadRequest(path="/workspace/in"), BytesStream(data))
        assert (await run(sandbox, "echo", "works")).stdout == b"works\n"

    async def test_a_download_is_an_archive_with_relative_names(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/a/deep/file", b"content")
        content = await self.members(sandbox, "/workspace/a")
        assert {name.rstrip("/") for name in content} - {"", "."} == {"deep", "deep/file"}
        assert content["deep/file"] == b"content"

    async def test_a_download_of_a_file_has_one_member_with_its_name(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/a/file", b"content")
        assert await self.members(sandbox, "/workspace/a/file") == {"file": b"content"}

    async def test_a_download_of_what_is_missing_is_not_found(self, sandbox: Sandbox) -> None:
        with pytest.raises(FileNotFoundError):
            await sandbox.download(DownloadRequest(path="/workspace/missing"))

    async def test_a_download_that_is_given_up_leaves_the_sandbox_at_work(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/a/big", b"x" * (8 << 20))
        stream = await sandbox.download(DownloadRequest(path="/workspace/a"))
        await stream.receive(10)
        await stream.aclose()
        assert (await run(sandbox, "echo", "works")).stdout == b"works\n"

    async def test_a_download_passes_over_fifos_without_hanging(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/a/file", b"1")
        await run(sandbox, "mkfifo", "/workspace/a/fifo")
        with anyio.fail_after(10):
            assert (await self.members(sandbox, "/workspace/a"))["file"] == b"1"

    @pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    async def test_every_common_format_is_understood(self, sandbox: Sandbox, form: int) -> None:
        await sandbox.mkdir(MkdirRequest(path="/workspace/into"))
        long = form != tarfile.USTAR_FORMAT
        name = "/".join(["d" * 60] * (3 if long else 2)) + "/" + "f" * (200 if long else 60)
        data = _pack(_member("./short", data=b"1"), _member(name, data=b"2" * 100_000, mode=0o755), form=form)
        await sandbox.upload(UploadRequest(path="/workspace/into"), BytesStream(data))
        assert await read_file(sandbox, "/workspace/into/short") == b"1"
        assert await read_file(sandbox, f"/workspace/into/{name}") == b"2" * 100_000
        assert (await status_of(sandbox, f"/workspace/into/{name}")).mode == 0o755

    async def test_b055_a_thousand_files_arrive_in_one_trip(self, sandbox: Sandbox) -> None:
        """B-055: no message has to carry them one by one."""
        await sandbox.mkdir(MkdirRequest(path="/workspace/into"))
        members = [_member(f"d{n % 10}/f{n}", data=b"%d" % n) for n in range(1000)]
        await sandbox.upload(UploadRequest(path="/workspace/into"), BytesStream(_pack(*members)))
        found = await entries(sandbox, "/workspace/into", 2)
        assert sum(entry.kind is FileKind.FILE for entry in found.values()) == 1000
        assert await read_file(sandbox, "/workspace/into/d7/f997") == b"997"

    async def test_an_upload_replaces_files_and_keeps_what_it_does_not_name(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/into/replaced", b"old, and longer", 0o600)
        await put(sandbox, "/workspace/into/kept", b"kept")
        await sandbox.upload(
            UploadRequest(path="/workspace/into"), BytesStream(_pack(_member("replaced", data=b"new")))
        )
        assert await read_file(sandbox, "/workspace/into/replaced") == b"new"
        assert (await status_of(sandbox, "/workspace/into/replaced")).mode == 0o644
        assert await read_file(sandbox, "/workspace/into/kept") == b"kept"

    async def test_odd_names_in_an_archive_arrive_as_they_are(self, sandbox: Sandbox) -> None:
        await sandbox.mkdir(MkdirRequest(path="/workspace/into"))
        names = ["line\nbreak", "not UTF-8 \udc85", "漢" * 85, "-rf"]
        data = _pack(*(_member(name, data=b"x") for name in names), form=tarfile.GNU_FORMAT)
        await sandbox.upload(UploadRequest(path="/workspace/into"), BytesStream(data))
        assert set(await entries(sandbox, "/workspace/into")) == set(names)

    async def test_an_upload_closes_its_source(self, sandbox: Sandbox) -> None:
        source = BytesStream(_pack(_member("file")))
        await sandbox.upload(UploadRequest(path="/workspace"), source)
        with pytest.raises(anyio.ClosedResourceError):
            await source.receive()

    async def test_an_upload_that_is_cancelled_leaves_the_sandbox_at_work(self, sandbox: Sandbox) -> None:
        source = CuriousStream(_pack(_member("big", data=b"x" * (1 << 20)))[:600_000], None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.upload, UploadRequest(path="/workspace"), source)
            await source.asked_again.wait()
            tasks.cancel_scope.cancel()
        assert source.closed
        assert (await run(sandbox, "echo", "works")).stdout == b"works\n"

    # -- hostile archives

    @pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE)
    async def test_ft07_b045_no_member_leaves_the_directory(
        self, sandbox: Sandbox, into: str, members: Sequence[Member]
    ) -> None:
        """FT-07, B-043, B-046: refused or unpacked harmlessly, but nothing outside is read, written or changed."""
        before = await entries(sandbox, "/workspace/outside", 9)
        root = set(await entries(sandbox, "/workspace"))
        with contextlib.suppress(InvalidRequestError, OSError):
            await sandbox.upload(UploadRequest(path=into), BytesStream(_pack(*members)))
        assert await entries(sandbox, "/workspace/outside", 9) == before
        assert await read_file(sandbox, "/workspace/outside/victim") == b"victim"
        assert set(await entries(sandbox, "/workspace")) == root

    @pytest.mark.parametrize("name", ["../victim", "/workspace/victim", "a/../../victim"])
    async def test_b046_a_name_that_leads_out_is_refused_by_name(self, sandbox: Sandbox, into: str, name: str) -> None:
        """B-046."""
        with pytest.raises(InvalidRequestError) as caught:
            await sandbox.upload(UploadRequest(path=into), BytesStream(_pack(_member(name, data=b"bad"))))
        assert repr(name) in str(caught.value)

    @pytest.mark.parametrize(
        "kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE], ids=["char", "block", "fifo"]
    )
    async def test_ft07_a_device_in_an_archive_is_never_made(self, sandbox: Sandbox, into: str, kind: bytes) -> None:
        with contextlib.suppress(InvalidRequestError, OSError):
            await sandbox.upload(UploadRequest(path=into), BytesStream(_pack(_member("node", kind))))
        found = await entries(sandbox, into)
        assert "node" not in found or found["node"].kind is FileKind.FIFO

    async def test_the_last_of_several_members_with_one_name_wins_or_all_are_refused(
        self, sandbox: Sandbox, into: str
    ) -> None:
        data = _pack(_member("same", data=b"first"), _member("same", data=b"second"), _member("./same", data=b"third"))
        try:
            await sandbox.upload(UploadRequest(path=into), BytesStream(data))
        except InvalidRequestError:
            return
        assert await read_file(sandbox, f"{into}/same") == b"third"

    @pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
    async def test_what_is_no_archive_is_refused(self, sandbox: Sandbox, into: str, data: bytes) -> None:
        with pytest.raises((InvalidRequestError, OSError)):
            await sandbox.upload(UploadRequest(path=into), BytesStream(data))
        assert (await run(sandbox, "echo", "works")).stdout == b"works\n"

    async def test_ft07_special_bits_do_not_make_a_file_that_belongs_to_somebody_else(
        self, sandbox: Sandbox, into: str
    ) -> None:
        info, data = _member("setuid", data=b"#!/bin/sh\n", mode=0o6755)
        info.uid = info.gid = 12_345
        await sandbox.upload(UploadRequest(path=into), BytesStream(_pack((info, data))))
        found = await status_of(sandbox, f"{into}/setuid")
        assert found.mode & stat.S_IXUSR
        if not sandbox.capabilities.owners:
            own = await status_of(sandbox, "/workspace/outside/victim")
            assert (found.uid, found.gid) == (own.uid, own.gid)

    @staticmethod
    async def members(sandbox: Sandbox, path: str) -> dict[str, bytes]:
        """Download a tree and return the content of its members by name."""
        async with await sandbox.download(DownloadRequest(path=path)) as stream:
            data = b"".join([chunk async for chunk in stream])
        content: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
            for info in tar:
                reader = tar.extractfile(info) if info.isreg() else None
                content[info.name.removeprefix("./")] = reader.read() if reader else b""
        return content
