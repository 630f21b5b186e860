"""What the demo puts on the host, what it looks at there, and how it takes everything away again."""

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.store.directories import state_root

__all__ = [
    "Stage",
    "alive",
    "descendants",
    "file_system",
    "mounts_below",
    "remove_tree",
    "set_up",
    "state_cannot_hold_sandboxes",
]

_HOME_VARIABLE: Final = "MCP_SANDBOX_HOME"
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (a directory is made in it safely)
_REMOVAL_S: Final = 5.0
_NOTES: Final = "This file is on the host. A sandbox sees it, and can change its own copy only.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Directories of one demo, all below one that goes away with it."""

    root: Path

    @property
    def project(self) -> Path:
        """The project that the server is started for."""
        return self.root / "project"

    @property
    def state(self) -> Path:
        """The server's state directory."""
        return self.root / "state"

    @property
    def log(self) -> Path:
        """What the server wrote to its standard error."""
        return self.root / "server.log"

    def project_as_it_is(self) -> dict[str, tuple[int, int, bytes]]:
        """Return mode, time of change and content of every file of the project."""
        found: dict[str, tuple[int, int, bytes]] = {}
        for path in sorted(self.project.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(self.project))] = (status.st_mode, status.st_mtime_ns, content)
        return found

    async def remove(self) -> None:
        """Remove everything. Idempotent."""
        await to_thread.run_sync(remove_tree, self.root)


@asynccontextmanager
async def set_up() -> AsyncGenerator[Stage]:
    """Make the directories, and remove them at the end, with everything that a server left in them."""
    stage = Stage(root=Path(tempfile.mkdtemp(prefix="mcp-sandbox-demo-", dir=_place())))
    try:
        stage.project.mkdir()
        (stage.project / "notes.txt").write_text(_NOTES, "utf-8")
        yield stage
    finally:
        with anyio.CancelScope(shield=True):
            await stage.remove()


def _place() -> Path | None:
    """Return a directory on a file system that can hold sandboxes; `None` is the system's own for such things.

    Who set the state directory knows such a place. In a container only memory may be one: layers do not lie on layers.
    """
    if (given := os.environ.get(_HOME_VARIABLE, "")).startswith("/") and os.access(Path(given).parent, os.W_OK):
        return Path(given).parent
    if file_system(Path(tempfile.gettempdir()).resolve()) == "overlay" and os.access(_MEMORY, os.W_OK):
        return _MEMORY
    return None


def state_cannot_hold_sandboxes() -> bool:
    """Whether a server that is told nothing would keep its sandboxes on overlayfs."""
    try:
        return file_system(state_root(os.environ).resolve()) == "overlay"
    except (ConfigError, OSError):
        return False


def file_system(directory: Path) -> str:
    """Return the type of the file system that a directory is on; empty where nothing tells."""
    best, kind = 0, ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
            mount, _, source = line.partition(" - ")
            point = mount.split()[4]
            if len(point) >= best and directory.is_relative_to(point):
                best, kind = len(point), source.split()[0]
    return kind


def remove_tree(tree: Path) -> None:
    """Remove a tree. Overlays leave directories that nobody may enter, and the last process may still be ending."""
    deadline_s = time.monotonic() + _REMOVAL_S
    while tree.exists():
        for directory, names, _ in os.walk(tree):
            for name in names:
                path = os.path.join(directory, name)  # noqa: PTH118 (there are thousands)
                with contextlib.suppress(OSError):
                    mode = os.lstat(path).st_mode
                    if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
                        os.chmod(path, stat.S_IRWXU)  # noqa: PTH101
        try:
            shutil.rmtree(tree)
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def descendants() -> dict[int, str]:
    """Return the processes below this one: pid to start time, which tells it from a later one with the same pid."""
    parents: dict[int, int] = {}
    started: dict[int, str] = {}
    for pid in _pids():
        if (fields := _status(pid)) is not None:
            parents[pid], started[pid] = int(fields[1]), fields[19]
    found: dict[int, str] = {}
    waiting = [os.getpid()]
    while waiting:
        above = waiting.pop()
        for pid, parent in parents.items():
            if parent == above and pid not in found:
                found[pid] = started[pid]
                waiting.append(pid)
    return found


def alive(processes: dict[int, str]) -> list[int]:
    """Return those of some processes that have not ended."""
    known = {pid: _status(pid) for pid in processes}
    return [pid for pid, fields in known.items() if fields and fields[19] == processes[pid] and fields[0] != "Z"]


def mounts_below(directory: Path) -> int:
    """Return how many mounts this process sees below a directory."""
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "replace").count(f" {directory}/")
    except OSError:
        return 0


def _pids() -> list[int]:
    try:
        return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    except OSError:
        return []


def _status(pid: int) -> list[str] | None:
    """Return what follows the name in `/proc/<pid>/stat`: state, parent and so on (man 5 proc)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
