"""Trees made to hurt whoever walks them: the agent inside, and what copies and removes layers outside."""

import io
import json
import os
import stat
import tarfile
import tempfile
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.files import DownloadRequest, ListRequest, RemoveRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.testing.driving import entries, new_spec, put, read_file, run, sh

pytestmark = pytest.mark.usefixtures("takes_snapshots")

DEEP = """
import os, sys
os.chdir("/workspace")
for _ in range(int(sys.argv[1])):
    os.mkdir("d")
    os.chdir("d")
open("bottom", "w").write("deep")
"""
READ_DEEP = """
import os, sys
os.chdir("/workspace")
for _ in range(int(sys.argv[1])):
    os.chdir("d")
print(open("bottom").read())
"""
LINKED = """
import os
os.mkdir("/workspace/l")
os.chdir("/workspace/l")
for number in range(3000):
    open(f"a{number}", "w").close()
    os.link(f"a{number}", f"b{number}")
"""
OVERLAY_MARKS = """
import os
os.chdir("/workspace")
os.makedirs("d/below")
open("d/below/file", "w").write("kept")
for name in ("opaque", "redirect", "whiteout", "metacopy", "origin", "upper"):
    for space in ("trusted", "user"):
        for target in ("d", "d/below", "d/below/file"):
            for value in (b"y", b"x", b"/../../../../etc", b""):
                try:
                    os.setxattr(target, f"{space}.overlay.{name}", value)
                except OSError:
                    pass
"""


async def snapshot_live(sandbox: Sandbox) -> None:
    """Take a snapshot that must copy, because something runs, and go back to it."""
    async with await sandbox.exec(ExecRequest(argv=("sleep", "60"), cwd="/")):
        content = await sandbox.snapshot(SnapshotRequest())
    assert "stood still" in content.method
    await sandbox.restore(content)


@pytest.mark.parametrize("depth", [1200, 3000])
async def test_a_deep_tree_is_copied_restored_and_removed(sandbox: Sandbox, depth: int) -> None:
    """The copy ran out of stack at a thousand levels, outside."""
    await run(sandbox, "python3", "-c", DEEP, str(depth))
    await snapshot_live(sandbox)
    assert (await run(sandbox, "python3", "-c", READ_DEEP, str(depth))).stdout == b"deep\n"
    with anyio.fail_after(30):
        await sandbox.remove(RemoveRequest(path="/workspace/d", recursive=True))
    assert await entries(sandbox, "/workspace") == {}


@pytest.mark.usefixtures("embedded")
async def test_a_tree_that_is_too_deep_is_refused_with_a_reason(sandbox: Sandbox) -> None:
    await run(sandbox, "python3", "-c", DEEP, "6000")
    async with await sandbox.exec(ExecRequest(argv=("sleep", "60"))):
        with pytest.raises(Exception, match=r"File name too long|Too many open files"):
            await sandbox.snapshot(SnapshotRequest())
    stopped = await sandbox.snapshot(SnapshotRequest())
    await sandbox.restore(stopped)
    assert (await run(sandbox, "python3", "-c", READ_DEEP, "6000")).stdout == b"deep\n"


async def test_thousands_of_linked_files_stay_linked(sandbox: Sandbox) -> None:
    """Each one was looked up in a list: 60,000 kept the sandbox standing still for 18 s."""
    assert (await run(sandbox, "python3", "-c", LINKED)).exit_code == 0
    await snapshot_live(sandbox)
    assert (await sh(sandbox, "stat -c %h l/a7 l/b2999; ls l | wc -l")).stdout.split() == [b"2", b"2", b"6000"]
    async with await sandbox.download(DownloadRequest(path="/workspace/l")) as stream:
        archive = b"".join([chunk async for chunk in stream])
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert sum(member.islnk() for member in tar) == 3000


@pytest.mark.usefixtures("root_inside")
async def test_modes_that_lock_everybody_out_lock_nobody_out(sandbox: Sandbox) -> None:
    script = (
        "echo f > f; mkdir d w; echo d > d/d; echo w > w/w; chmod 000 f d; chmod 300 w; chmod 000 /workspace / /usr"
    )
    await sh(sandbox, script)
    await snapshot_live(sandbox)
    shown = await sh(sandbox, "cat f d/d w/w; stat -c %a f d w /workspace / /usr")
    assert shown.stdout.split() == [b"f", b"d", b"w", b"0", b"0", b"300", b"0", b"0", b"0"]
    stopped = await sandbox.snapshot(SnapshotRequest())
    await sandbox.restore(stopped)
    assert await read_file(sandbox, "/workspace/d/d") == b"d\n"
    for path in ("f", "d", "w"):
        await sandbox.remove(RemoveRequest(path=f"/workspace/{path}", recursive=True))


async def test_special_files_neither_hold_up_a_snapshot_nor_leave_it_short(sandbox: Sandbox) -> None:
    script = (
        "mkfifo pipe; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'; ln -s / root; "
        "ln -s loop loop; mknod device c 1 3 2>/dev/null; mknod whiteout c 0 0 2>/dev/null; echo last > zzz"
    )
    await sh(sandbox, script)
    with anyio.fail_after(20):
        await snapshot_live(sandbox)
    assert await read_file(sandbox, "/workspace/zzz") == b"last\n"
    assert {"pipe", "root", "loop", "zzz"} <= set(await entries(sandbox, "/workspace"))


@pytest.mark.usefixtures("root_inside")
@pytest.mark.parametrize(
    "script",
    [
        "mv /var /elsewhere",
        "mv /var/spool /var/elsewhere; ln -s /etc /var/spool",
        "mv /var/spool /var/elsewhere; ln -s /nowhere /var/spool",
        "mv /var/spool /var/elsewhere; mkdir /var/spool; ln -s / /var/spool/mcp-sandbox",
        "mv /var/spool /var/elsewhere; mkdir /var/spool; echo > /var/spool/mcp-sandbox",
        "mv /var /elsewhere; echo > /var",
    ],
)
async def test_directories_moved_from_above_a_mount_point_do_not_keep_the_sandbox_from_starting(
    sandbox: Sandbox, script: str
) -> None:
    """A mount point itself cannot be moved, but what it lies in can; everything was lost then."""
    await sh(sandbox, f"echo kept > /workspace/kept; {script}; true")
    await sandbox.snapshot(SnapshotRequest())  # nothing runs, so the next call starts it anew
    assert await read_file(sandbox, "/workspace/kept") == b"kept\n"
    assert (await sh(sandbox, "echo spooled > /var/spool/mcp-sandbox/file && cat /etc/hostname")).stdout == b"sandbox\n"


@pytest.mark.usefixtures("embedded")
async def test_marks_of_the_overlay_set_from_inside_mean_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    """Not where they are set, not in a snapshot made of that layer, and not in what is above it."""
    await run(sandbox, "python3", "-c", OVERLAY_MARKS)
    for take in (sandbox.snapshot(SnapshotRequest()), snapshot_live(sandbox)):
        await take
        assert await read_file(sandbox, "/workspace/d/below/file") == b"kept"
        assert set(await entries(sandbox, "/workspace", 3)) == {"d", "d/below", "d/below/file"}


async def test_a_directory_made_again_stays_empty_whatever_attributes_it_has(sandbox: Sandbox) -> None:
    """The mark that hides what lay below is an attribute among others; a copy that lost it would bring it back."""
    await sh(sandbox, "mkdir d; echo old > d/old")
    await sandbox.snapshot(SnapshotRequest())
    fill = "import os; [os.setxattr('d', f'user.{n:060}', b'v' * 20) for n in range(30)]"
    await sh(sandbox, 'rm -r d; mkdir d; python3 -c "$1"', fill)
    await snapshot_live(sandbox)
    assert await entries(sandbox, "/workspace", 2) == {"d": (await entries(sandbox, "/workspace"))["d"]}


async def test_names_of_any_kind_survive_every_verb(sandbox: Sandbox) -> None:
    program = r"""
import os
names = [b"new\nline", b"-rf", b"\xff\xfe", b" ", b"\x1b[2J", b"x" * 255, b"$(id)`id`\"'"]
for name in [*names, "\u202egnp.exe".encode()]:
    open(os.path.join(b"/workspace", name), "w").write("x")
"""
    await run(sandbox, "python3", "-c", program)
    await snapshot_live(sandbox)
    listing = await sandbox.list(ListRequest(path="/workspace"))
    assert len(listing.entries) == 8
    for entry in listing.entries:
        assert await read_file(sandbox, entry.path) == b"x"
        await sandbox.remove(RemoveRequest(path=entry.path))
    assert await entries(sandbox, "/workspace") == {}


@pytest.mark.usefixtures("embedded")
async def test_what_is_made_inside_is_nobodys_power_outside(sandbox: Sandbox, state_directory: Path) -> None:
    """Set-user-id files lie on the host's disk: behind a door that only their server opens, and never root's."""
    await put(sandbox, "/workspace/mine", b"#!/bin/sh\n", mode=0o6777)
    assert stat.S_IMODE(os.stat(state_directory).st_mode) == 0o700
    status = os.stat(f"{state_directory}/layers/{_top_layer(state_directory, sandbox)}/workspace/mine")
    assert status.st_mode & stat.S_ISUID, "the control: the bit is really there"
    assert status.st_uid != 0
    if os.getuid() != 0:
        assert status.st_uid == os.getuid()


async def test_a_sandbox_with_every_horror_is_removed_from_the_disk(state_directory: Path) -> None:
    """And nothing that its links lead to."""
    with tempfile.TemporaryDirectory() as target:
        os.mkdir(f"{target}/kept")
        async with LocalProvider(state_directory) as provider:
            spec = new_spec(provider.capabilities)
            async with await provider.create(spec) as box:
                await run(box, "python3", "-c", DEEP, "2000")
                script = (
                    "mkdir -p locked/in; echo > locked/in/f; chmod 000 locked/in locked; mkfifo p; truncate -s 1T s; "
                    'ln -s "$1" dir; ln -s "$1/kept" file; touch -- -rf "$(id)"; chmod 000 /workspace /'
                )
                await sh(box, script, target)
                layer = _top_layer(state_directory, box)
            await provider.destroy(spec.id)
        # What nobody names is removed after a time; other layers belong to other tests.
        os.rename(f"{state_directory}/layers/{layer}", f"{state_directory}/trash/{layer}")
        async with LocalProvider(state_directory) as provider:
            await provider.destroy((await _created(provider)).id)
            with anyio.fail_after(20):
                while layer in os.listdir(f"{state_directory}/trash"):
                    await anyio.sleep(0.05)
        assert os.listdir(target) == ["kept"]


def _top_layer(state_directory: Path, sandbox: Sandbox) -> str:
    """Return the layer that a sandbox writes to; in the state of all tests there are those of others."""
    return json.loads((state_directory / "sandboxes" / sandbox.id / "state.json").read_bytes())["top"]


async def _created(provider: Provider) -> Sandbox:
    async with await provider.create(new_spec(provider.capabilities)) as sandbox:
        return sandbox
