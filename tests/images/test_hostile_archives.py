"""Archives and directories that want to write elsewhere, to fill the disk, or to bring in what no sandbox may have.

FT-07 and SNAP-05 of the attacks: nothing outside is touched, and of what is refused nothing stays.
"""

import gzip
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.engines.identity import Identity, choose_identity
from mcp_sandbox.engines.image_store import ImageStore
from mcp_sandbox.hostfs import docker_archives
from mcp_sandbox.hostfs.tree_writer import Bounds
from tests.images.small_root import docker_archive, tar_with

__all__: list[str] = []

_BOUNDS = Bounds(max_bytes=1 << 20, max_entries=1000)


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, mode
    return member


def _file(name: str, content: bytes = b"evil") -> tuple[tarfile.TarInfo, bytes]:
    return _member(name), content


def _symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return _member(name, tarfile.SYMTYPE, target), b""


def _hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return _member(name, tarfile.LNKTYPE, target), b""


def _pax(name: str, **headers: str) -> tuple[tarfile.TarInfo, bytes]:
    member = _member(name)
    member.pax_headers = headers
    return member, b"evil"


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    root = tmp_path / "store"
    for name in ("base", "trash"):
        (root / name).mkdir(parents=True)
    return ImageStore(root, choose_identity(), _BOUNDS)


def _left(store: ImageStore) -> list[str]:
    root: Path = store.root
    return [str(path) for name in ("base", "images") for path in (root / name).glob("*")]


def _add(store: ImageStore, packed: bytes) -> Path:
    """Import an archive; return where its files are."""
    path = store.root.parent / "archive"
    path.write_bytes(packed)
    return store.root / "base" / store.add(path).base / "root"


OUTSIDE = "/tmp/mcp-sandbox-was-here"
HOSTILE: dict[str, Callable[[], bytes]] = {
    "an absolute name": lambda: tar_with(_file(OUTSIDE)),
    "a name that leads upwards": lambda: tar_with(_file("../../../outside")),
    "a name that leads upwards later": lambda: tar_with(_file("a/b/../../../outside")),
    "a file behind a link out": lambda: tar_with(_symlink("d", "/tmp"), _file("d/mcp-sandbox-was-here")),
    "a file behind a link upwards": lambda: tar_with(_symlink("d", "../../.."), _file("d/outside")),
    "a directory behind a link": lambda: tar_with(_symlink("d", "/tmp"), (_member("d/e", tarfile.DIRTYPE), b"")),
    "a hard link to the outside": lambda: tar_with(_hard_link("passwd", "/etc/passwd")),
    "a hard link upwards": lambda: tar_with(_hard_link("passwd", "../../../../../etc/passwd")),
    "a hard link through a link": lambda: tar_with(_symlink("d", "/etc"), _hard_link("passwd", "d/passwd")),
    "a hard link to what comes later": lambda: tar_with(_hard_link("a", "b"), _file("b")),
    "a pax header with an absolute name": lambda: tar_with(_pax("harmless", path=OUTSIDE)),
    "a pax header that leads upwards": lambda: tar_with(_pax("harmless", path="../../outside")),
    "a name longer than any path": lambda: tar_with(_pax("harmless", path="d/" * 3000)),
    "a name longer than any name": lambda: tar_with(_file("n" * 300)),
    "more directories in each other than anybody needs": lambda: tar_with(_file("d/" * 300 + "f")),
    "/var as a link": lambda: tar_with(_symlink("var", "/tmp")),
    "/etc as a file": lambda: tar_with(_file("etc"), _file("etc/passwd")),
    "more bytes than allowed": lambda: tar_with(_file("large", bytes(2 << 20))),
    "more members than allowed": lambda: tar_with(*(_file(f"f{number}", b"") for number in range(1001))),
    "a compressed stream that grows": lambda: gzip.compress(bytes(8 << 20)),
    "a stream that is cut off": lambda: tar_with(_file("a"), _file("b", bytes(5000)))[:3000],
    "a header that is damaged": lambda: tar_with(_file("a"), _file("b")).replace(b"b\0\0\0", b"c\0\0\0"),
    "no archive at all": lambda: b"#!/bin/sh\n" * 200,
    "a size below zero": lambda: _with_size(-1),
    "a sparse file of exabytes": lambda: tar_with(
        _pax("s", **{"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 60)})
    ),
}


def _with_size(size: int) -> bytes:
    member = _member("f")
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(2048)


@pytest.mark.parametrize("archive", HOSTILE.values(), ids=HOSTILE.keys())
def test_ft07_a_hostile_archive_is_refused_and_nothing_of_it_stays(
    store: ImageStore, archive: Callable[[], bytes]
) -> None:
    before = sorted(os.listdir(store.root.parent))
    with pytest.raises(InvalidRequestError):
        _add(store, archive())
    assert _left(store) == []
    assert not os.path.lexists(OUTSIDE)
    assert sorted({*os.listdir(store.root.parent)} - {"archive"}) == before


def test_ft07_of_two_members_with_one_name_the_later_one_stays(store: ImageStore) -> None:
    root = _add(store, tar_with(_symlink("f", "/etc/passwd"), _file("f", b"later"), _file("g/h"), _file("g", b"file")))
    assert (root / "f").read_bytes() == b"later"
    assert not (root / "f").is_symlink()
    assert (root / "g").read_bytes() == b"file"


def test_snap05_devices_stay_outside_and_are_told(store: ImageStore) -> None:
    path = store.root.parent / "archive"
    devices = [(_member("disk", tarfile.BLKTYPE), b""), (_member("null", tarfile.CHRTYPE), b"")]
    path.write_bytes(tar_with((_member("file"), b"x"), *devices))
    content = store.add(path)
    assert content.notes == ("2 devices left out",)
    found = [p.lstat().st_mode for p in (store.root / "base" / content.base / "root").rglob("*")]
    assert not any(stat.S_ISBLK(mode) or stat.S_ISCHR(mode) for mode in found)


def test_snap05_no_file_keeps_a_setuid_bit(store: ImageStore) -> None:
    root = _add(store, tar_with((_member("su", mode=0o6755), b"x"), (_member("d", tarfile.DIRTYPE, mode=0o2775), b"")))
    assert stat.S_IMODE((root / "su").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o2775


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_snap05_owners_are_kept_within_the_ids_of_sandboxes(tmp_path: Path) -> None:
    for name in ("base", "trash"):
        (tmp_path / "store" / name).mkdir(parents=True)
    identity = Identity(start=1_900_000_000, count=65_536, gid=1_900_000_000)
    known, beyond, below = _member("known"), _member("beyond"), _member("below")
    known.uid, known.gid = 1000, 33
    beyond.uid = beyond.gid = 70_000
    below.uid = below.gid = -5
    (tmp_path / "archive").write_bytes(tar_with((known, b""), (beyond, b""), (below, b"")))
    content = ImageStore(tmp_path / "store", identity).add(tmp_path / "archive")
    root = tmp_path / "store" / "base" / content.base / "root"
    owners = {name: (root / name).stat() for name in ("known", "beyond", "below", "etc", ".")}
    assert {name: (s.st_uid - identity.start, s.st_gid - identity.start) for name, s in owners.items()} == {
        "known": (1000, 33),
        "beyond": (65_534, 65_534),
        "below": (65_534, 65_534),
        "etc": (0, 0),
        ".": (0, 0),
    }
    assert content.notes == ("2 owners beyond 65,535 left out",)


def test_snap05_links_in_a_directory_are_copied_and_never_followed(store: ImageStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "secret").write_text("secret")
    (source / "file").symlink_to(tmp_path / "secret")
    (source / "directory").symlink_to(tmp_path)
    (source / "etc").mkdir()
    (source / "etc" / "hosts").symlink_to(tmp_path / "secret")
    os.mkfifo(source / "fifo")
    root = store.root / "base" / store.add(source).base / "root"
    assert os.readlink(root / "file") == str(tmp_path / "secret")
    assert (root / "directory").is_symlink()
    assert stat.S_ISFIFO((root / "fifo").lstat().st_mode)
    assert not (root / "etc" / "hosts").is_symlink()
    assert (tmp_path / "secret").read_text() == "secret"


def test_the_state_of_mcp_sandbox_cannot_become_an_image(store: ImageStore) -> None:
    with pytest.raises(InvalidRequestError, match="state of mcp-sandbox"):
        store.add(store.root.parent)
    assert _left(store) == []


def test_layers_of_a_docker_archive_are_put_upon_each_other(store: ImageStore) -> None:
    root = _add(
        store,
        docker_archive(
            tar_with(_file("gone"), _file("kept", b"below"), _file("full/old"), _file("full/.wh..wh..opq", b"")),
            gzip.compress(tar_with(_file(".wh.gone", b""), _file("full/new"), _file("full/.wh..wh..opq", b""))),
            tar_with(_file("kept", b"above")),
        ),
    )
    assert not (root / "gone").exists()
    assert (root / "kept").read_bytes() == b"above"
    assert os.listdir(root / "full") == ["new"]


@pytest.mark.parametrize(
    "layers",
    [
        [tar_with(_symlink("d", "/tmp")), tar_with(_file("d/.wh..wh..opq", b""))],
        [tar_with(_symlink("d", "/tmp")), tar_with(_file("d/.wh.file", b""))],
        [tar_with(_file("../.wh.file", b""))],
        [b"no archive"],
    ],
    ids=["emptied behind a link", "removed behind a link", "removed upwards", "no archive"],
)
def test_ft07_a_layer_takes_nothing_away_outside(store: ImageStore, layers: list[bytes]) -> None:
    with pytest.raises(InvalidRequestError):
        _add(store, docker_archive(*layers))
    assert _left(store) == []


def test_a_file_of_zeros_takes_no_room(tmp_path: Path) -> None:
    for name in ("base", "trash"):
        (tmp_path / "store" / name).mkdir(parents=True)
    store = ImageStore(tmp_path / "store", choose_identity())
    (tmp_path / "archive").write_bytes(tar_with(_file("zeros", bytes(32 << 20))))
    found = (tmp_path / "store" / "base" / store.add(tmp_path / "archive").base / "root" / "zeros").stat()
    assert found.st_size == 32 << 20
    assert found.st_blocks * 512 < 1 << 20


def test_equal_trees_are_one_content_whatever_order_they_came_in(store: ImageStore) -> None:
    one = _add(store, tar_with(_file("a", b"1"), _file("b/c", b"2")))
    again = _add(store, tar_with(_file("b/c", b"2"), _file("a", b"1")))
    other = _add(store, tar_with(_file("a", b"1"), _file("b/c", b"3")))
    assert one == again != other


def test_what_a_killed_import_left_is_swept_by_the_next_one(store: ImageStore) -> None:
    left = store.root / "images" / ".new-killed"
    (left / "root" / "usr").mkdir(parents=True)
    _add(store, tar_with(_file("a")))
    assert not left.exists()


def test_a_compressed_archive_needs_no_program_but_for_zstd(store: ImageStore) -> None:
    import bz2
    import lzma

    plain = tar_with(_file("a", b"same"))
    packed = [plain, gzip.compress(plain), bz2.compress(plain), lzma.compress(plain)]
    assert len({_add(store, one) for one in packed}) == 1


def test_a_broken_compression_is_refused(store: ImageStore) -> None:
    packed = gzip.compress(tar_with(_file("a", os.urandom(5000))))
    with pytest.raises(InvalidRequestError):
        _add(store, packed[:-2000])
    assert _left(store) == []


def test_an_image_is_a_copy_of_its_source(store: ImageStore) -> None:
    source = store.root.parent / "source"
    source.mkdir()
    (source / "f").write_text("as it was")
    root = store.root / "base" / store.add(source).base / "root"
    (source / "f").write_text("changed")
    assert (root / "f").read_text() == "as it was"


def test_an_archive_of_zstd_is_unpacked_by_its_program(store: ImageStore) -> None:
    if shutil.which("zstd") is None:
        pytest.skip("this machine has no program zstd")
    packed = subprocess.run(["zstd", "-qc"], input=tar_with(_file("a", b"x")), capture_output=True, check=True).stdout
    assert (_add(store, packed) / "a").read_bytes() == b"x"
    with pytest.raises(InvalidRequestError):
        _add(store, packed[:-3])


def test_of_an_oci_layout_the_image_of_this_machine_is_taken(store: ImageStore) -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    layers = {"theirs": tar_with(_file("theirs")), "ours": gzip.compress(tar_with(_file("ours")))}
    files: dict[str, bytes] = {"oci-layout": b"{}"}

    def blob(content: bytes) -> dict[str, str]:
        digest = hashlib.sha256(content).hexdigest()
        files[f"blobs/sha256/{digest}"] = content
        return {"digest": f"sha256:{digest}"}

    described: list[dict[str, object]] = []
    for architecture, name in (("pdp11", "theirs"), (machine, "ours")):
        manifest = {"config": blob(b"{}"), "layers": [blob(layers[name])]}
        described.append({**blob(json.dumps(manifest).encode()), "platform": {"architecture": architecture}})
    files["index.json"] = json.dumps({"manifests": described}).encode()
    root = _add(store, tar_with(*(_file(name, content) for name, content in files.items())))
    assert (root / "ours").exists()
    assert not (root / "theirs").exists()


def test_a_tree_that_nobody_may_enter_can_be_imported_and_removed(store: ImageStore) -> None:
    root = _add(store, tar_with((_member("shut", tarfile.DIRTYPE, mode=0), b""), _file("shut/f", b"x")))
    assert stat.S_IMODE((root / "shut").stat().st_mode) == 0
    (root / "shut").chmod(0o700)
    assert (root / "shut" / "f").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.json", [{"Layers": 5}]),
        ("manifest.json", [{"Layers": ["layer"], "Config": "layer"}]),
        ("index.json", {"manifests": 5}),
        ("index.json", {"manifests": [5]}),
        ("index.json", {"layers": {"digest": 1}}),
    ],
)
def test_ft07_an_index_that_means_nothing_is_refused_or_a_file_like_others(
    store: ImageStore, name: str, content: object
) -> None:
    archive = tar_with(_file(name, json.dumps(content).encode()), _file("layer", b"[]"))
    try:
        assert (_add(store, archive) / name).exists()
    except InvalidRequestError:
        assert _left(store) == []


def test_a_tree_of_many_files_is_no_image_in_layers_whatever_they_are_called(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive of a few bytes may have millions of members, and those of layers are all held in memory."""
    monkeypatch.setattr(docker_archives, "MEMBERS_MAX", 100)
    many = [_file(f"f{number}") for number in range(100)]
    root = _add(store, tar_with(_file("manifest.json", b'[{"Layers": ["f1"]}]'), *many))
    assert (root / "f99").exists()
