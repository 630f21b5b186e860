"""The images that container tests start from: a small Debian made by debootstrap, and one of nothing.

The Debian takes half a minute to make, once per machine: it is kept below /var/tmp for whoever runs the tests next.
"""

import fcntl
import functools
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["base_archive", "empty_archive", "why_no_base"]

SUITE: Final = "bookworm"
PACKAGES: Final = ("procps", "python3")
MIRROR: Final = "http://deb.debian.org/debian"
LEFT_OUT: Final = (
    "dev/*", "proc/*", "sys/*", "usr/share/doc/*", "usr/share/info/*", "usr/share/locale/*", "usr/share/man/*",
    "var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*",
)  # fmt: skip
RECIPE: Final = hashlib.sha256(repr((SUITE, PACKAGES, LEFT_OUT, os.uname().machine)).encode()).hexdigest()[:16]
BUILD_S: Final = 300


def _place(uid: int) -> Path:
    return Path(f"/var/tmp/mcp-sandbox-tests-{uid}")


def _kept() -> Path | None:
    """Return an archive that we or root made before, and that nobody else can have changed."""
    for uid in (0, os.geteuid()):
        archive = _place(uid) / f"base-{RECIPE}.tar"
        try:
            states = [path.lstat() for path in (archive.parent, archive)]
        except FileNotFoundError:
            continue
        if all(state.st_uid == uid and not state.st_mode & 0o022 for state in states):
            return archive
    return None


@functools.cache
def why_no_base() -> str:
    """Return why there can be no Debian here; empty if there can."""
    if _kept() is not None:
        return ""
    if os.geteuid() != 0:
        return "only root can make the base image; ordinary users use what root made before"
    return "" if shutil.which("debootstrap") else "no debootstrap here: apt-get install debootstrap"


def base_archive() -> Path:
    """Return a tar archive of the Debian, made now if there is none yet."""
    place = _place(os.geteuid())
    if (kept := _kept()) is not None:
        return kept
    place.mkdir(mode=0o755, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be making it
        if (kept := _kept()) is not None:
            return kept
        with tempfile.TemporaryDirectory(prefix="base-", dir=_fast_place(place)) as scratch:
            _make(Path(scratch), place / f"base-{RECIPE}.tar")
    archive = _kept()
    assert archive is not None, f"somebody else may write to {place}"
    return archive


def _fast_place(otherwise: Path) -> Path:
    """Return where a system can be unpacked, in memory if there is room: dpkg syncs every file."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    return memory if roomy and not os.statvfs(memory).f_flag & (os.ST_NODEV | os.ST_NOEXEC) else otherwise


def _make(scratch: Path, archive: Path) -> None:
    tree, beside = scratch / "tree", archive.with_suffix(f".{os.getpid()}")
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(tree), MIRROR]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_S)
    if done.returncode:
        raise RuntimeError(f"debootstrap failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    left_out = [f"--exclude=./{pattern}" for pattern in LEFT_OUT]
    packed = ["tar", "--create", f"--file={beside}", "--numeric-owner", f"--directory={tree}", *left_out, "."]
    try:
        subprocess.run(packed, check=True)
        beside.chmod(0o644)
        beside.replace(archive)
    finally:
        beside.unlink(missing_ok=True)


def empty_archive() -> bytes:
    """Return a tar archive of nothing."""
    archive = io.BytesIO()
    tarfile.open(fileobj=archive, mode="w").close()
    return archive.getvalue()
