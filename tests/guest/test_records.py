"""Trees as records and as tar: hostile bytes are refused in the documented way, with bounded memory."""

import io
import tarfile
import tracemalloc
from collections.abc import AsyncIterator

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.streams import BytesStream
from mcp_sandbox.guest.pack import RECORD, SEGMENT, Record
from mcp_sandbox.guest.records import RecordReader, records_of_tar, tar_of_records
from mcp_sandbox.guest.wire import GuestProtocolError

__all__: list[str] = []

PIECES_MAX = 10_000
"""Where a consumer's own bound would cut off; zeros of a sparse file go on for as long as it says."""


async def consume(pieces: AsyncIterator[bytes]) -> int:
    """Receive everything, as far as it matters, and keep none of it."""
    count = 0
    async for _ in pieces:
        count += 1
        if count > PIECES_MAX:
            break
    return count


async def collect(pieces: AsyncIterator[bytes]) -> bytes:
    """Return everything, as far as it matters."""
    found: list[bytes] = []
    async for piece in pieces:
        found.append(piece)
        if len(found) > 20:
            break
    return b"".join(found)


def to_tar(data: bytes) -> bytes:
    """Translate records."""
    return anyio.run(lambda: collect(tar_of_records(RecordReader(BytesStream(data)))))


def to_records(data: bytes) -> bytes:
    """Translate an archive."""
    return anyio.run(lambda: collect(records_of_tar(BytesStream(data))))


def segment(offset: int, data: bytes) -> bytes:
    """Return a piece of content."""
    return SEGMENT.pack(offset, len(data)) + data


RECORDS = st.builds(
    Record, kind=st.sampled_from("dDflhpscez"), path=st.text(st.characters(codec="utf-8"), max_size=20),
    link=st.text(st.characters(codec="utf-8"), max_size=20), mode=st.integers(0, 0xFFFFFFFF),
    uid=st.integers(0, 0xFFFFFFFF), gid=st.integers(0, 0xFFFFFFFF), size=st.integers(0, (1 << 64) - 1),
    modified_ns=st.integers(-(1 << 62), 1 << 62),
).map(Record.encode)  # fmt: skip
SEGMENTS = st.builds(segment, st.integers(0, (1 << 64) - 1), st.binary(max_size=50))
TREES = st.lists(RECORDS | SEGMENTS | st.binary(max_size=60), max_size=8).map(b"".join)


@given(TREES)
@example(Record(kind="f", path="a", size=1 << 63).encode() + SEGMENT.pack(1 << 62, 1) + b"x" + SEGMENT.pack(0, 0))
@example(Record(kind="f", path="a", size=(1 << 64) - 1).encode() + SEGMENT.pack(0, 0))
@example(Record(kind="d", path="../../etc").encode())
@example(Record(kind="e", path="a", mode=0xFFFFFFFF).encode())
@settings(deadline=None)
def test_records_of_a_hostile_guest_are_translated_or_refused(data: bytes) -> None:
    tracemalloc.start()
    try:
        anyio.run(lambda: consume(tar_of_records(RecordReader(BytesStream(data)))))
    except (GuestProtocolError, OSError):
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 << 20


@given(TREES)
@settings(deadline=None)
def test_what_comes_of_records_stays_in_the_directory(data: bytes) -> None:
    try:
        archive = to_tar(data)
    except (GuestProtocolError, OSError):
        return
    if not archive.endswith(bytes(1024)) or len(archive) > 1 << 20:
        return
    with tarfile.open(fileobj=io.BytesIO(archive), errorlevel=0) as tar:
        for member in tar:
            assert not member.name.startswith("/")
            assert ".." not in member.name.split("/")


@pytest.mark.parametrize("kind", ["d", "l", "h", "p"])
@given(name=st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=120),
       nanoseconds=st.integers(-(1 << 55), 1 << 60))  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_a_record_survives_the_way_through_tar(kind: str, name: str, nanoseconds: int) -> None:
    if name in (".", ".."):
        return
    record = Record(kind=kind, path=name, link="target" if kind in "lh" else "", mode=0o751, modified_ns=nanoseconds)
    back = to_records(to_tar(record.encode() + Record(kind="z").encode()))
    head, path, link = Record.head(back[: RECORD.size])
    text = back[RECORD.size : RECORD.size + path + link].decode("utf-8", "surrogateescape")
    assert text == record.path + record.link
    assert (head.kind, head.mode, head.modified_ns) == (kind, 0o751, nanoseconds)


def _archive(format_: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format_) as tar:
        for name, data in (("a" * 150, b"one"), ("d/ü", b"two" * 1000)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


ARCHIVES = [_archive(kind) for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)]


@given(st.sampled_from(ARCHIVES), st.lists(st.tuples(st.integers(0, 6000), st.binary(max_size=12)), max_size=6))
@settings(deadline=None, max_examples=300)
def test_archives_with_errors_are_translated_or_refused(archive: bytes, changes: list[tuple[int, bytes]]) -> None:
    """With the checksums put right again, so that the errors get past them."""
    data = bytearray(archive)
    for at, piece in changes:
        data[at : at + len(piece)] = piece
    for at in range(0, len(data) - 511, 512):
        if bytes(data[at + 257 : at + 262]) == b"ustar":
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    try:
        to_records(bytes(data))
    except InvalidRequestError:
        return


def _pax(entry: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, len(entry)
    return info.tobuf(tarfile.USTAR_FORMAT) + entry + bytes(-len(entry) % 512) + tarfile.TarInfo("f").tobuf()


def _negative() -> bytes:
    info = tarfile.TarInfo("x")
    info.size = -5
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "archive",
    [
        _pax(b"9" * 5000 + b" path=x\n"), _pax(b"-5 a=b\n"), _pax(b"0 \n"), _pax(b"12 size=-1\n"), _pax(b"junk"),
        _pax(b"14 size=1e3\n\n\n"), _pax(b"17 mtime=ten past\n"), _pax(b"22 GNU.sparse.major=1\n"),
        _pax(b"18 uid=4294967296\n"), _pax(b"x" * 100, tarfile.GNUTYPE_SPARSE), _negative(), b"junk" * 128, b"x" * 100,
    ],
)  # fmt: skip
def test_archives_that_lie_are_refused(archive: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        to_records(archive)


@pytest.mark.parametrize("cut", [1, 511, 513, 2000])
def test_an_archive_that_breaks_off_is_refused(cut: int) -> None:
    whole = ARCHIVES[0]
    last = len(whole.rstrip(b"\0"))
    with pytest.raises(InvalidRequestError):
        to_records(whole[: last - cut])


def test_an_archive_of_endless_directories_is_refused() -> None:
    """Their attributes wait until the end, and memory is finite."""
    info = tarfile.TarInfo("d" * 3000)
    info.type = tarfile.DIRTYPE
    block = info.tobuf(tarfile.PAX_FORMAT)

    class Endless(BytesStream):
        async def receive(self, max_bytes: int = 65536) -> bytes:
            return block * 100

    async def translate() -> None:
        async for _ in records_of_tar(Endless(b"")):
            pass

    with pytest.raises(InvalidRequestError):
        anyio.run(translate)
