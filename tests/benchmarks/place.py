"""Where the measured state lies: in a file system that nobody used before, if this process may make one."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from mcp_sandbox.cli.demo.stage import file_system, remove_tree
from tests.benchmarks.measuring import Samples

__all__ = ["FRESH", "described", "new_files", "scratch_directory"]

FRESH = "fresh"
_CLONE_NEWNS = 0x20000
_SIZE = 16 << 30


@contextmanager
def scratch_directory(*, fresh: bool) -> Generator[Path]:
    """Make a directory below $TMPDIR, and remove it.

    `fresh` makes a file system in it, for root where that works: on a used ext4 a new file costs up to forty times as
    much for minutes after many were deleted, since it does not reuse their inodes at once and searches past them.
    """
    scratch = Path(tempfile.mkdtemp(prefix="mcp-sandbox-bench-"))
    inner = scratch / FRESH
    inner.mkdir()
    try:
        mounted = fresh and file_system(scratch.resolve()) == "ext4" and _mounted(scratch / "image", inner)
        yield inner if mounted else scratch
    finally:
        if os.path.ismount(inner):
            subprocess.run(["umount", "--lazy", str(inner)], check=False)
        remove_tree(scratch)


def _mounted(image: Path, target: Path) -> bool:
    """Mount a new ext4 in a mount namespace of this process: both are gone with it, however it ends."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4") or ctypes.CDLL(None).unshare(_CLONE_NEWNS) != 0:
        return False
    with image.open("wb") as file:
        file.truncate(_SIZE)
    commands = [
        ["mount", "--make-rprivate", "/"],
        ["mkfs.ext4", "-q", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(image)],
        ["mount", "-o", "loop,noinit_itable", str(image), str(target)],
    ]
    done = all(subprocess.run(command, check=False, capture_output=True).returncode == 0 for command in commands)
    image.unlink()
    return done


def described(scratch: Path) -> str:
    """Say which file system it is."""
    kind = file_system(scratch.resolve())
    return f"a fresh {kind}" if scratch.name == FRESH else kind


def new_files(scratch: Path, count: int) -> Samples:
    """Time the making of empty files, each in a new directory, as layers are."""
    samples = Samples()
    top = scratch / "new-files"
    top.mkdir()
    for number in range(count):
        directory = top / str(number)
        directory.mkdir()
        with samples.timed():
            (directory / "file").touch()
    shutil.rmtree(top)
    return samples
