"""Category L: files that pretend to be snapshots, records that were changed, and what an export must not hold."""

import base64
import hashlib
import json
import os
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import backports.zstd as zstd
import pytest

from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, SandboxError, SnapshotCorruptError
from mcp_sandbox.core.files import ReadRequest, WriteRequest
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.providers import registry as providers
from mcp_sandbox.service.exporting import export_snapshot, import_snapshot
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.snapshots import SnapshotService
from mcp_sandbox.store.directories import StateDirectories, open_state
from mcp_sandbox.store.record import Owner
from mcp_sandbox.store.registry import Registry
from mcp_sandbox.store.snapshots import SnapshotStore

TOKEN = "CANARY0123456789abcdef"
Members = dict[str, bytes]


@pytest.fixture
def state(tmp_path: Path) -> StateDirectories:
    """State directories of one user."""
    return open_state({"MCP_SANDBOX_HOME": str(tmp_path / TOKEN / "state")})


@pytest.fixture
async def sandboxes(state: StateDirectories, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SandboxService]:
    """Sandboxes on the double: what comes in is refused before any engine is asked."""
    monkeypatch.setenv("MCP_CONTRACT_CANARY", TOKEN)
    async with SandboxService(
        registry=Registry(state.registry),
        snapshots=SnapshotStore(state.snapshots),
        open_provider=lambda name: providers.load(name, state.provider(name)),
        owner=Owner(principal="me", project=f"/home/{TOKEN}/project"),
        provider="memory",
        template=SandboxSpec(id=cast("Any", "template")),
    ) as opened:
        yield opened


@pytest.fixture
async def archive(sandboxes: SandboxService, tmp_path: Path) -> Path:
    """A sound file, of a snapshot that is not here any more."""
    box = (await sandboxes.open()).sandbox
    for path, text in (("a", b"one\n"), ("d/b", b"two\n"), ("d/c", b"x" * 3_000_000)):
        await box.write(WriteRequest(path=f"/workspace/{path}"), text)
    snapshots = SnapshotService(sandboxes)
    snapshot = (await snapshots.create(note="sound")).snapshot
    await export_snapshot(sandboxes, snapshot.id, tmp_path / "sound")
    await snapshots.delete(snapshot.id)
    return tmp_path / "sound"


def _bytes(path: Path) -> bytes:
    return path.read_bytes()


def _listed(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


def _members(path: Path) -> Members:
    with tarfile.open(path) as tar:
        return {member.name: cast("Any", tar.extractfile(member)).read() for member in tar}


def _written(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with path.open("wb") as file:
        for member, data in members:
            file.write(member.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512))
        file.write(bytes(1024))
    return path


def _plain(name: str, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    return member, data


def _forged(archive: Path, change: Callable[[dict[str, Any]], None], more: Members | None = None) -> Path:
    """Return an archive whose manifest was changed, and everything else made to fit."""
    members = _members(archive)
    manifest = json.loads(zstd.decompress(members["manifest.json.zst"]))
    change(manifest)
    encoded = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    record = json.loads(members["snapshot.json"])
    record |= {"manifest": hashlib.sha256(encoded).hexdigest(), "manifest_bytes": len(encoded)}
    chunks = {**{name: data for name, data in members.items() if name.startswith("chunks/")}, **(more or {})}
    return _written(
        archive.with_name("forged"),
        [
            _plain("mcp-sandbox-snapshot", b"1\n"),
            *(_plain(name, data) for name, data in chunks.items()),
            _plain("manifest.json.zst", zstd.compress(encoded)),
            _plain("snapshot.json", json.dumps(record, sort_keys=True, separators=(",", ":")).encode()),
        ],
    )


def _claiming(archive: Path, **fields: Any) -> Path:
    """Return an archive whose record says something else of the snapshot, under the id that goes with it."""
    members = _members(archive)
    record = json.loads(members["snapshot.json"])
    record["snapshot"] |= fields
    canonical = json.dumps(record["snapshot"], sort_keys=True, separators=(",", ":")).encode()
    record["id"] = hashlib.sha256(canonical).hexdigest()
    members["snapshot.json"] = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    return _written(archive.with_name("forged"), [_plain(name, data) for name, data in members.items()])


def _workspace(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return next(tree for tree in manifest["trees"] if tree["root"] == "/workspace")["entries"]


def _entry(path: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"path": path, "kind": kind, "mode": 0o644, "uid": 0, "gid": 0, "modified_ns": 0, **fields}


async def _refused(sandboxes: SandboxService, state: StateDirectories, path: Path, names: str) -> None:
    """Check that an archive is refused with the culprit named, and that nothing came in."""
    with pytest.raises(SnapshotCorruptError, match=names):
        await import_snapshot(sandboxes, path)
    left = [found.name for found in state.snapshots.iterdir() if found.suffix in (".json", ".portable", ".natives")]
    assert left == []
    assert not [found for found in state.snapshots.iterdir() if found.name.startswith(".new-")]


async def test_a_sound_archive_comes_in(sandboxes: SandboxService, archive: Path) -> None:
    """The probe of this file: what is forged below is refused for what was changed in it."""
    assert not (await import_snapshot(sandboxes, _forged(archive, lambda _: None))).known


PATHS: dict[str, Callable[[list[dict[str, Any]]], None]] = {
    "out": lambda entries: entries.append(_entry("../escaped", "f", size_bytes=0, chunks=[])),
    "absolute": lambda entries: entries.append(_entry("/etc/cron.d/x", "f", size_bytes=0, chunks=[])),
    "dots inside": lambda entries: entries.append(_entry("d/../../x", "f", size_bytes=0, chunks=[])),
    "twice": lambda entries: entries.append({**entries[-1]}),
    "through a link": lambda entries: entries.extend(
        [_entry("e", "l", target="/etc"), _entry("e/passwd", "f", size_bytes=0, chunks=[])]
    ),
    "below a file": lambda entries: entries.append(_entry("d/c/x", "f", size_bytes=0, chunks=[])),
    "no parent": lambda entries: entries.append(_entry("z/x", "f", size_bytes=0, chunks=[])),
    "NUL": lambda entries: entries.append(_entry("z\0x", "f", size_bytes=0, chunks=[])),
    "long name": lambda entries: entries.append(_entry("z" * 256, "f", size_bytes=0, chunks=[])),
    "device": lambda entries: entries.append(_entry("z", "c")),
    "whiteout": lambda entries: entries.append(_entry("z", "w")),
    "socket": lambda entries: entries.append(_entry("z", "s")),
    "set-user-id": lambda entries: entries.append(_entry("z", "f", size_bytes=0, chunks=[]) | {"mode": 0o4755}),
    "hard link out": lambda entries: entries.append(_entry("z", "h", target="../../etc/shadow")),
    "hard link to a link": lambda entries: entries.extend(
        [_entry("y", "l", target="/x"), _entry("z", "h", target="y")]
    ),
    "empty link": lambda entries: entries.append(_entry("z", "l", target="")),
    "negative size": lambda entries: entries.append(_entry("z", "f", size_bytes=-1, chunks=[])),
    "bomb": lambda entries: entries.append(_entry("z", "f", size_bytes=1 << 50, chunks=[])),
    "owner": lambda entries: entries.append(_entry("z", "f", size_bytes=0, chunks=[]) | {"uid": -1}),
    "chunk without a digest": lambda entries: entries.append(_entry("z", "f", size_bytes=1, chunks=["../../x"])),
    "missing chunk": lambda entries: entries.append(_entry("z", "f", size_bytes=1, chunks=["0" * 64])),
    "surrogate": lambda entries: entries.append(_entry("z\ud800", "f", size_bytes=0, chunks=[])),
}  # fmt: skip


@pytest.mark.parametrize("trick", PATHS)
async def test_snap05_a_path_that_plays_tricks_is_refused_by_name(
    sandboxes: SandboxService, state: StateDirectories, archive: Path, trick: str
) -> None:
    """SNAP-05: links out, devices, set-user-id, whiteouts, bombs, names."""
    forged = _forged(archive, lambda manifest: PATHS[trick](_workspace(manifest)))
    await _refused(sandboxes, state, forged, r"\((.*/workspace/|chunks/0000)")


@pytest.mark.parametrize("root", ["/", "/proc/1", "workspace", "/workspace/../etc", "/workspace/d", "/dev", ""])
async def test_snap05_a_tree_that_is_none_is_refused(
    sandboxes: SandboxService, state: StateDirectories, archive: Path, root: str
) -> None:
    def add(manifest: dict[str, Any]) -> None:
        manifest["trees"].append({"root": root, "entries": [_entry("", "d") | {"mode": 0o755}]})

    await _refused(sandboxes, state, _forged(archive, add), "refused")


async def test_snap05_extended_attributes_and_other_fields_are_refused(
    sandboxes: SandboxService, state: StateDirectories, archive: Path
) -> None:
    def add(manifest: dict[str, Any]) -> None:
        _workspace(manifest)[1]["xattrs"] = {"security.capability": "AQAAAgAgAAAAAAAAAAAAAAAAAAA="}

    await _refused(sandboxes, state, _forged(archive, add), "not in the form that we write")


ATTRIBUTES: dict[str, dict[str, Any]] = {
    "a capability of a file": {"security.capability": "AQAAAgAgAAAAAAAAAAAAAAAAAAA="},
    "a mark of an overlay": {"trusted.overlay.opaque": "eQ=="},
    "no name": {"user.": "eA=="},
    "a name with a NUL": {"user.a\0b": "eA=="},
    "a name that is too long": {f"user.{'n' * 300}": "eA=="},
    "a value that is too long": {"user.a": base64.b64encode(bytes(70_000)).decode()},
    "too much together": {f"user.{number}": base64.b64encode(bytes(60_000)).decode() for number in range(4)},
    "too many": {f"user.{number}": "" for number in range(2000)},
    "a value in another form": {"user.a": "eA==\n"},
    "a value that is no text": {"user.a": 1},
}


@pytest.mark.parametrize("attributes", ATTRIBUTES.values(), ids=ATTRIBUTES)
async def test_snap05_attributes_that_no_program_can_have_set_are_refused(
    sandboxes: SandboxService, state: StateDirectories, archive: Path, attributes: dict[str, Any]
) -> None:
    """SNAP-05: file capabilities, for example, would travel in one."""

    def add(manifest: dict[str, Any]) -> None:
        manifest["schema"] = 2
        next(entry for entry in _workspace(manifest) if entry["kind"] == "f")["attributes"] = attributes

    await _refused(sandboxes, state, _forged(archive, add), "refused")


@pytest.mark.parametrize("schema", [1, 3, "2", None])
async def test_snap05_attributes_come_in_the_schema_that_has_them_alone(
    sandboxes: SandboxService, state: StateDirectories, archive: Path, schema: Any
) -> None:
    def add(manifest: dict[str, Any]) -> None:
        manifest["schema"] = schema
        next(entry for entry in _workspace(manifest) if entry["kind"] == "f")["attributes"] = {"user.a": "eA=="}

    await _refused(sandboxes, state, _forged(archive, add), "schema|form")


async def test_snap05_a_link_has_no_attributes(
    sandboxes: SandboxService, state: StateDirectories, archive: Path
) -> None:
    def add(manifest: dict[str, Any]) -> None:
        manifest["schema"] = 2
        _workspace(manifest).append(_entry("zz", "l", target="x", attributes={"user.a": "eA=="}))

    await _refused(sandboxes, state, _forged(archive, add), "zz")


@pytest.mark.parametrize(
    "env",
    [[["A=B", "x"]], [["A", "x\0y"]], [["A", 1]], [["", "x"]], [["B", "x"], ["A", "x"]], [["A"]], {"A": "x"}, [], "AB"],
    ids=repr,
)
async def test_snap05_variables_that_no_command_can_have_are_refused(
    sandboxes: SandboxService, state: StateDirectories, archive: Path, env: Any
) -> None:
    await _refused(sandboxes, state, _claiming(archive, env=env), "snapshot.json")


async def test_snap05_a_bomb_is_not_unpacked(sandboxes: SandboxService, state: StateDirectories, archive: Path) -> None:
    bomb = zstd.compress(bytes(200 << 20))
    digest = hashlib.sha256(b"y").hexdigest()

    def add(manifest: dict[str, Any]) -> None:
        _workspace(manifest).append(_entry("z", "f", size_bytes=1, chunks=[digest]))

    assert len(bomb) < 1 << 20
    await _refused(sandboxes, state, _forged(archive, add, {f"chunks/{digest}": bomb}), f"chunks/{digest}")


async def test_snap05_a_chunk_under_the_name_of_another_is_refused(
    sandboxes: SandboxService, state: StateDirectories, archive: Path
) -> None:
    """SNAP-05: a collision of digests can only be claimed."""
    digest = hashlib.sha256(b"one\n").hexdigest()
    forged = _forged(archive, lambda _: None, {f"chunks/{digest}": zstd.compress(b"evil")})
    await _refused(sandboxes, state, forged, f"chunks/{digest}")


async def test_snap05_members_that_tar_could_have_besides_are_refused(
    sandboxes: SandboxService, state: StateDirectories, archive: Path, tmp_path: Path
) -> None:
    """SNAP-05: pax headers, links, devices, other names, twice the same one, something behind the end."""
    sound = [_plain(name, data) for name, data in _members(archive).items()]
    link, device, owned = (tarfile.TarInfo(name) for name in ("chunks/link", "chunks/device", "snapshot.json"))
    link.type, link.linkname, device.type, owned.uid = tarfile.SYMTYPE, "/etc/passwd", tarfile.CHRTYPE, 1000
    extended = tarfile.TarInfo("mcp-sandbox-snapshot")
    extended.pax_headers = {"path": "../../escaped"}
    for number, extra in enumerate((link, device, owned, tarfile.TarInfo("../../escaped"))):
        await _refused(
            sandboxes, state, _written(tmp_path / str(number), [*sound[:1], (extra, b""), *sound[1:]]), "byte"
        )
    for number, members in enumerate(([sound[1], *sound], [*sound, sound[-1]], [*sound[:2], *sound[1:]], sound[:-1])):
        await _refused(sandboxes, state, _written(tmp_path / f"x{number}", members), "refused")
    pax = tmp_path / "pax"
    pax.write_bytes(extended.tobuf(tarfile.PAX_FORMAT) + _bytes(archive))
    await _refused(sandboxes, state, pax, "at byte 0")
    behind = tmp_path / "behind"
    behind.write_bytes(_bytes(archive) + b"x")
    await _refused(sandboxes, state, behind, "end")


async def test_snap01_one_flipped_byte_anywhere_is_found(
    sandboxes: SandboxService, state: StateDirectories, archive: Path, tmp_path: Path
) -> None:
    """SNAP-01: whatever is changed in a file, in a member's header, its content or its padding."""
    whole = _bytes(archive)
    flipped = tmp_path / "flipped"
    for at in [*range(0, len(whole), max(1, len(whole) // 150)), len(whole) - 1]:
        flipped.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        await _refused(sandboxes, state, flipped, "refused")


async def test_snap01_a_file_that_was_cut_short_is_found(
    sandboxes: SandboxService, state: StateDirectories, archive: Path, tmp_path: Path
) -> None:
    whole, cut = _bytes(archive), tmp_path / "cut"
    for size in (0, 1, 511, 512, 1024, 1536, len(whole) // 2, len(whole) - 1024, len(whole) - 1):
        cut.write_bytes(whole[:size])
        await _refused(sandboxes, state, cut, "refused")


async def test_snap01_a_portable_form_that_changes_later_is_not_restored(
    sandboxes: SandboxService, state: StateDirectories, archive: Path
) -> None:
    """SNAP-01: nothing is restored partially, and the live sandbox stays as it is."""
    snapshot = (await import_snapshot(sandboxes, archive)).snapshot
    (portable,) = state.snapshots.glob("*.portable")
    data = bytearray(portable.read_bytes())
    data[700 if data[700] else 600] ^= 1
    portable.write_bytes(bytes(data))
    box = (await sandboxes.open()).sandbox
    await box.write(WriteRequest(path="/workspace/a"), b"live")
    with pytest.raises(SandboxError):
        await SnapshotService(sandboxes).restore(snapshot.id)
    async with await box.read(ReadRequest(path="/workspace/a")) as reader:
        assert await reader.receive() == b"live"
    assert len(await sandboxes.list()) == 1


async def test_snap05_a_stranger_cannot_name_content_that_is_here(
    sandboxes: SandboxService, state: StateDirectories, archive: Path
) -> None:
    """SNAP-05: the record names native content by a reference; deleting the import must not delete that of another."""
    box = (await sandboxes.open()).sandbox
    await box.write(WriteRequest(path="/workspace/a"), b"mine")
    snapshots = SnapshotService(sandboxes)
    victim = (await snapshots.create(note="victim")).snapshot
    native = json.loads(_members(archive)["snapshot.json"])["snapshot"]["native"]
    forged = _claiming(archive, native={**native, "ref": victim.native.ref})
    imported = (await import_snapshot(sandboxes, forged)).snapshot
    (copy,) = await sandboxes.create(from_snapshot=imported.id)
    async with await copy.sandbox.read(ReadRequest(path="/workspace/a")) as reader:
        assert await reader.receive() == b"one\n"
    await snapshots.delete(imported.id)
    await box.write(WriteRequest(path="/workspace/a"), b"newer")
    await snapshots.restore(victim.id)
    async with await box.read(ReadRequest(path="/workspace/a")) as reader:
        assert await reader.receive() == b"mine"


async def test_snap02_an_export_holds_nothing_of_the_host(sandboxes: SandboxService, archive: Path) -> None:
    """SNAP-02: no path of the machine, no variable of the server, no name of the project."""
    members = _members(archive)
    unpacked = [
        zstd.decompress(data) if name.endswith(".zst") or "/" in name else data for name, data in members.items()
    ]
    for text in (_bytes(archive), *unpacked, *(name.encode() for name in members)):
        assert TOKEN.encode() not in text
    record = json.loads(members["snapshot.json"])["snapshot"]
    assert record.keys() == {"sandbox", "parent", "created_at", "note", "native", "cwd", "schema"}


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "", "a\x1b[2J", "x" * 10_240, "*", "0/../1", "\0"])
async def test_snap04_no_name_leads_anywhere(
    sandboxes: SandboxService, state: StateDirectories, tmp_path: Path, name: str
) -> None:
    """SNAP-04: a snapshot is found by the digits of its id alone."""
    snapshots = SnapshotService(sandboxes)
    await sandboxes.open()
    before = _listed(tmp_path)
    for attempt in (
        snapshots.delete(name),
        snapshots.restore(name),
        export_snapshot(sandboxes, name, tmp_path / "out"),
    ):
        with pytest.raises(NotFoundError):
            await attempt
    assert _listed(tmp_path) == before


async def test_snap05_what_is_no_file_is_not_waited_for(sandboxes: SandboxService, tmp_path: Path) -> None:

    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", ".", "missing"):
        with pytest.raises(InvalidRequestError, match="not read"):
            await import_snapshot(sandboxes, tmp_path / name)
