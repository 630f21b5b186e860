"""Snapshots as files: whole, reproducible, checked before they are believed, good on every provider."""

import gc
import json
import tarfile
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import backports.zstd as zstd
import pytest
from sandbox_world import Server, World, content, put, working_server

from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, ProviderUnavailableError, UnsupportedError
from mcp_sandbox.core.files import ListRequest, MkdirRequest, StatRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.service.exporting import export_snapshot, import_snapshot, verify_file, verify_snapshot
from mcp_sandbox.service.forking import fork
from mcp_sandbox.testing.driving import run, sh

__all__: list[str] = []


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What only the collector closes fails the test that left it open, not one that comes after."""
    yield
    gc.collect()


TREE = """
set -e
cd /workspace
mkdir -p deep/er; echo one > deep/er/file; chmod 640 deep/er/file
ln deep/er/file another-name; ln -s /usr/bin/python3 absolute; ln -s ../../../etc/passwd upwards
mkfifo fifo; touch empty; printf 'odd' > "$(printf 'not UTF-8 \\205\\nname')"
truncate -s 5M sparse; printf end >> sparse
head -c 3000000 /dev/zero | tr '\\0' 'x' > large
mkdir -m 1777 sticky; echo state > /root/.profile; mkdir -p /root/.config
find . /root -depth -exec touch -h -d '2001-02-03 04:05:06.123456789' {} +
"""


@pytest.fixture(params=["memory", "local"])
def world(request: pytest.FixtureRequest, tmp_path: Path, warm_state: Callable[[Path], Path]) -> World:
    warm_state(tmp_path / "state")
    return World.make(tmp_path, request.param)


@pytest.fixture
async def server(world: World) -> AsyncGenerator[Server]:
    async with working_server(world) as opened:
        yield opened


async def _census(sandbox: Sandbox) -> dict[str, object]:
    found: dict[str, object] = {}
    for root in ("/workspace", "/root"):
        top = await sandbox.stat(StatRequest(path=root))
        found[root] = (top.mode, top.modified_ns)
        for entry in (await sandbox.list(ListRequest(path=root, depth=99))).entries:
            text = await content(sandbox, entry.path) if entry.kind == "file" else entry.link_target
            links = entry.links if entry.kind == "file" else 1
            found[entry.path] = (entry.kind, entry.mode, entry.modified_ns, links, text)
    return found


async def _furnish(sandbox: Sandbox) -> None:
    if sandbox.capabilities.runs_programs:
        done = await sh(sandbox, TREE)
        assert done.exit_code == 0, done.stderr
    else:
        await put(sandbox, "/workspace/deep/er/file", "one", mode=0o640)
        await put(sandbox, "/workspace/large", "x" * 3_000_000)
        await put(sandbox, "/workspace/not UTF-8 \udc85\nname", "odd")
        await sandbox.mkdir(MkdirRequest(path="/root/.config"))


async def _exported(server: Server, target: Path) -> str:
    snapshot = (await server.snapshots.create(note="mine")).snapshot
    await export_snapshot(server.sandboxes, snapshot.id, target)
    return snapshot.id


async def test_a_snapshot_comes_back_from_its_file_to_the_last_byte(
    world: World, server: Server, tmp_path: Path
) -> None:
    source = (await server.sandboxes.open()).sandbox
    await _furnish(source)
    before, file = await _census(source), tmp_path / "work.snapshot"
    snapshot_id = await _exported(server, file)
    assert (await verify_file(file)).id == snapshot_id
    await server.snapshots.delete(snapshot_id)
    imported = await import_snapshot(server.sandboxes, file)
    assert (imported.snapshot.id, imported.snapshot.note, imported.known) == (snapshot_id, "mine", False)
    file.unlink()
    (copy,) = await server.sandboxes.create(from_snapshot=snapshot_id, name="copy")
    assert await _census(copy.sandbox) == before
    assert copy.record.parent == snapshot_id
    await put(source, "/workspace/new", "x")
    await server.snapshots.restore(snapshot_id)
    assert await _census((await server.sandboxes.open()).sandbox) == before
    stored = await server.sandboxes.snapshot(snapshot_id)
    assert await verify_snapshot(server.sandboxes, stored) == []
    if world.provider == "local":
        status = await sh(copy.sandbox, "stat -c '%b' sparse")
        assert int(status.stdout) * 512 < 1 << 20, "holes stay holes"


ATTRIBUTES = """
import os
for path in ("/workspace", "/workspace/dir", "/workspace/dir/file", "/root/file"):
    os.setxattr(path, "user.plain", b"value")
    os.setxattr(path, "user.odd=%", bytes(range(256)))
    os.setxattr(os.fsencode(path), b"user.not UTF-8 \\x85", b"")
"""
READ = """
import os
for path in ("/workspace", "/workspace/dir", "/workspace/dir/file", "/workspace/dir/same", "/root/file"):
    print(path, [(name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))])
"""


async def test_attributes_of_programs_travel_with_a_snapshot(server: Server, world: World, tmp_path: Path) -> None:
    """And a snapshot without any is written as versions knew it that had none."""
    if world.provider != "local":
        pytest.skip("this provider keeps no attributes")
    source, file, plain = (await server.sandboxes.open()).sandbox, tmp_path / "attributes", tmp_path / "plain"
    assert (await sh(source, "mkdir dir && touch dir/file ~/file")).exit_code == 0
    without = await _exported(server, plain)
    assert (await sh(source, "ln dir/file dir/same")).exit_code == 0
    assert (await run(source, "python3", "-c", ATTRIBUTES)).exit_code == 0
    before = (await run(source, "python3", "-c", READ)).stdout
    assert before.count(b"user.odd=%") == 5
    snapshot_id = await _exported(server, file)
    assert [_schema(each) for each in (plain, file)] == [1, 2]
    for each in (without, snapshot_id):
        await server.snapshots.delete(each)
    assert not (await import_snapshot(server.sandboxes, file)).lacks_attributes
    (copy,) = await server.sandboxes.create(from_snapshot=snapshot_id, name="copy")
    assert (await run(copy.sandbox, "python3", "-c", READ)).stdout == before
    await sh(copy.sandbox, "echo other > dir/file; python3 -c \"import os; os.removexattr('dir/file', 'user.plain')\"")
    await server.snapshots.restore(snapshot_id, "copy", ["dir"])
    assert (await run(copy.sandbox, "python3", "-c", READ)).stdout == before


async def test_a_provider_without_attributes_says_that_it_leaves_them_out(tmp_path: Path) -> None:
    file = tmp_path / "attributes"
    async with World.make(tmp_path / "one", "local").server() as one:
        source = (await one.sandboxes.open()).sandbox
        await sh(source, "mkdir dir && touch dir/file ~/file && ln dir/file dir/same")
        assert (await run(source, "python3", "-c", ATTRIBUTES)).exit_code == 0
        await _exported(one, file)
    async with World.make(tmp_path / "other", "memory").server() as other:
        imported = await import_snapshot(other.sandboxes, file)
        assert imported.lacks_attributes
        (copy,) = await other.sandboxes.create(from_snapshot=imported.snapshot.id)
        assert await content(copy.sandbox, "/workspace/dir/file") == ""


async def test_the_environment_travels_with_a_snapshot(tmp_path: Path) -> None:
    """Into sandboxes made from it, and their forks; what is asked for here wins. Without any a record is as before."""
    file = tmp_path / "work.snapshot"
    there = {"A": "of the snapshot", "B": "line\nbreak \u6f22", "PATH_LIKE": "/a:/b"}
    async with World.make(tmp_path / "one", "local").server(env=there) as one:
        plain = (await one.snapshots.create()).snapshot
        assert plain.env == tuple(sorted(there.items()))
        await export_snapshot(one.sandboxes, plain.id, file)
        (forked,) = (await fork(one.sandboxes)).made
        assert await _variables(forked.sandbox, *there) == there
    async with World.make(tmp_path / "other", "local").server(env={"A": "of here"}) as other:
        imported = await import_snapshot(other.sandboxes, file)
        (copy,) = await other.sandboxes.create(from_snapshot=imported.snapshot.id, name="copy")
        assert await _variables(copy.sandbox, *there) == {**there, "A": "of here"}
        again = (await other.snapshots.create("copy")).snapshot
        assert dict(again.env) == {**there, "A": "of here"}
        own = (await other.sandboxes.open()).sandbox
        assert await _variables(own, "A", "B") == {"A": "of here", "B": ""}
    async with World.make(tmp_path / "bare", "local").server() as bare:
        snapshot = (await bare.snapshots.create()).snapshot
        assert b'"env"' not in snapshot.canonical()


async def _variables(sandbox: Sandbox, *names: str) -> dict[str, str]:
    said = await run(sandbox, "python3", "-c", "import json, os; print(json.dumps(dict(os.environ)))")
    found = json.loads(said.stdout)
    return {name: found.get(name, "") for name in names}


def _schema(file: Path) -> int:
    with tarfile.open(file) as tar:
        packed = tar.extractfile("manifest.json.zst")
        assert packed is not None
        return json.loads(zstd.decompress(packed.read()))["schema"]


@pytest.mark.parametrize(("made_on", "used_on"), [("local", "memory"), ("memory", "local")])
async def test_a_file_of_one_provider_makes_sandboxes_of_another(tmp_path: Path, made_on: str, used_on: str) -> None:
    file = tmp_path / "work.snapshot"
    try:
        async with World.make(tmp_path / "one", made_on).server() as one:
            source = (await one.sandboxes.open()).sandbox
            await put(source, "/workspace/a", "common", mode=0o750)
            snapshot_id = await _exported(one, file)
            with pytest.raises(UnsupportedError, match="belongs to provider"):
                await one.sandboxes.create(from_snapshot=snapshot_id, provider=used_on)
            await one.sandboxes.destroy(source.id)
        async with World.make(tmp_path / "two", used_on).server() as two:
            await import_snapshot(two.sandboxes, file)
            made = await two.sandboxes.create(from_snapshot=snapshot_id[:12], count=2)
            for live in made:
                assert live.record.provider == used_on
                assert await content(live.sandbox, "/workspace/a") == "common"
                assert (await live.sandbox.stat(StatRequest(path="/workspace/a"))).mode == 0o750
            (branch,) = await two.snapshots.list()
            assert branch.imported
            assert len(branch.sandboxes) == 2
            for live in made:
                await two.sandboxes.destroy(live.record.id)
            await two.snapshots.delete(snapshot_id)
            assert not list((tmp_path / "two" / "state" / "snapshots").glob("*.portable"))
    except ProviderUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("made_on", "used_on"), [("local", "memory"), ("memory", "local")])
async def test_a_snapshot_goes_to_another_provider_of_this_machine_and_back(
    tmp_path: Path, made_on: str, used_on: str
) -> None:
    world, file = World.make(tmp_path, made_on), tmp_path / "work.snapshot"
    try:
        async with world.server() as server:
            source = (await server.sandboxes.open()).sandbox
            await put(source, "/workspace/a", "there")
            snapshot_id = await _exported(server, file)
            assert (await import_snapshot(server.sandboxes, file)).known
            assert not list(world.state.snapshots.glob("*.portable")), "its own provider needs none"
        async with world.server(project="/q", provider=used_on, everywhere=True) as other:
            assert (await import_snapshot(other.sandboxes, file)).known
            live = (await other.snapshots.restore(snapshot_id)).sandbox
            assert live.record.provider == used_on
            assert await content(live.sandbox, "/workspace/a") == "there"
            await put(live.sandbox, "/workspace/a", "and back")
            file.unlink()
            back_id = await _exported(other, file)
        async with world.server(everywhere=True) as server:
            assert (await import_snapshot(server.sandboxes, file)).known
            live = (await server.snapshots.restore(back_id)).sandbox
            assert live.record.provider == made_on
            assert await content(live.sandbox, "/workspace/a") == "and back"
            for summary in await server.sandboxes.list():
                await server.sandboxes.destroy(summary.record.id)
    except ProviderUnavailableError as error:
        pytest.skip(str(error))


async def test_the_same_snapshot_makes_the_same_file(server: Server, tmp_path: Path) -> None:
    await _furnish((await server.sandboxes.open()).sandbox)
    snapshot_id = await _exported(server, tmp_path / "one")
    await put((await server.sandboxes.open()).sandbox, "/workspace/later", "x")
    await export_snapshot(server.sandboxes, snapshot_id, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600
    await server.snapshots.delete(snapshot_id)
    await import_snapshot(server.sandboxes, tmp_path / "one")
    await export_snapshot(server.sandboxes, snapshot_id, tmp_path / "three")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "three").read_bytes()


async def test_what_changed_elsewhere_is_named_and_carried_on_request(server: Server, tmp_path: Path) -> None:
    box = (await server.sandboxes.open()).sandbox
    await put(box, "/opt/tool/bin", "x")
    await put(box, "/opt/tool/lib", "y")
    snapshot = (await server.snapshots.create()).snapshot
    exported = await export_snapshot(server.sandboxes, snapshot.id, tmp_path / "one")
    assert any(path in ("/opt", "/opt/tool") for path in exported.left_out)
    assert not any(path.startswith(("/workspace", "/root/")) for path in exported.left_out)
    more = await export_snapshot(server.sandboxes, snapshot.id, tmp_path / "two", paths=["/opt/tool"])
    assert more.trees == ("/opt/tool", "/root", "/workspace")
    assert "/opt/tool" not in more.left_out
    imported = await import_snapshot(server.sandboxes, tmp_path / "two")
    assert imported.known


async def test_ft08_an_export_replaces_nothing_and_follows_no_link(server: Server, tmp_path: Path) -> None:
    """FT-08: an existing file, a link out, a directory, a missing directory: refused, and nothing is left."""
    await server.sandboxes.open()
    snapshot = (await server.snapshots.create()).snapshot
    place = tmp_path / "place"
    place.mkdir()
    (place / "file").write_text("mine")
    (place / "link").symlink_to(tmp_path / "outside")
    for name in ("file", "link", "."):
        with pytest.raises(InvalidRequestError, match="Nothing exported"):
            await export_snapshot(server.sandboxes, snapshot.id, place / name)
    with pytest.raises(InvalidRequestError, match="No such file"):
        await export_snapshot(server.sandboxes, snapshot.id, place / "missing" / "x")
    with pytest.raises(InvalidRequestError, match="no directory of the snapshot"):
        await export_snapshot(server.sandboxes, snapshot.id, place / "new", paths=["/nothing"])
    assert sorted(path.name for path in place.iterdir()) == ["file", "link"]
    assert (place / "file").read_text() == "mine"
    await export_snapshot(server.sandboxes, snapshot.id, place / "link", replace_file=True)
    assert not (place / "link").is_symlink()
    assert not (tmp_path / "outside").exists()
    await verify_file(place / "link")


async def test_a_portable_form_that_is_here_is_not_replaced(world: World, server: Server, tmp_path: Path) -> None:
    await put((await server.sandboxes.open()).sandbox, "/workspace/a", "mine")
    snapshot_id = await _exported(server, tmp_path / "one")
    assert (await import_snapshot(server.sandboxes, tmp_path / "one")).known
    assert not list(world.state.snapshots.glob("*.portable")), "its content is here"
    assert list(world.state.snapshots.glob(".new-*")) == []
    await server.snapshots.delete(snapshot_id)
    await import_snapshot(server.sandboxes, tmp_path / "one")
    (portable,) = world.state.snapshots.glob("*.portable")
    first = portable.stat().st_ino
    assert (await import_snapshot(server.sandboxes, tmp_path / "one")).known
    assert portable.stat().st_ino == first
    portable.unlink()
    with pytest.raises(NotFoundError, match="Import it again"):
        await server.sandboxes.create(from_snapshot=snapshot_id)
    assert await verify_snapshot(server.sandboxes, await server.sandboxes.snapshot(snapshot_id))
    await import_snapshot(server.sandboxes, tmp_path / "one")
    (live,) = await server.sandboxes.create(from_snapshot=snapshot_id)
    assert await content(live.sandbox, "/workspace/a") == "mine"


async def test_verify_says_which_layer_is_missing(tmp_path: Path) -> None:
    world = World.make(tmp_path, "local")
    async with world.server() as server:
        try:
            box = (await server.sandboxes.open()).sandbox
        except ProviderUnavailableError as error:
            pytest.skip(str(error))
        await put(box, "/workspace/a", "x")
        snapshot = (await server.snapshots.create()).snapshot
        stored = await server.sandboxes.snapshot(snapshot.id)
        assert await verify_snapshot(server.sandboxes, stored) == []
        store = world.state.provider("local")
        (record,) = (store / "snapshots").glob("*.json")
        record.write_text(record.read_text().replace('"layers": ["', '"layers": ["gone", "'))
        assert await verify_snapshot(server.sandboxes, stored) == ["layer gone is missing"]
        record.unlink()
        assert await verify_snapshot(server.sandboxes, stored) == ["its list of layers is gone"]
        await server.sandboxes.destroy(box.id)
