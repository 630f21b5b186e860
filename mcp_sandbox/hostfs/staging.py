"""What is to stand in a tree of the host, made ready in it: complete files and links under numbers. Blocks."""

import os
import secrets
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from mcp_sandbox.core.errors import CapacityError, StateError
from mcp_sandbox.hostfs.host_tree import HostEntry, HostTree

__all__ = ["STAGE", "Stage", "new_stage_name"]

STAGE: Final = ".mcp-sandbox-apply-"
"""What the name of a stage begins with."""
SPARE_BYTES: Final = 256 << 20
"""What must stay free on the disk."""
_SYNCED_SINGLY: Final = 64
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT_ATTRIBUTES: Final = ("user.", "system.posix_acl_access", "security.selinux")


def new_stage_name() -> str:
    """Return a name that nobody has."""
    return f"{STAGE}{secrets.token_hex(6)}"


class Stage:
    """A directory in the tree. Use as a context manager; `remove` it when all is done.

    Args:
        tree: Opened.
        name: Of the stage; made unless `exists`.
        exists: Whether it is there already, from somebody who crashed.
    """

    def __init__(self, tree: HostTree, name: str, *, exists: bool = False) -> None:
        self._tree = tree
        self._name = name
        self._exists = exists

    def __enter__(self) -> Self:
        """Make and open it."""
        if not self._exists:
            os.mkdir(self._name, 0o700, dir_fd=self._tree.top)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(self._name, flags, dir_fd=self._tree.top)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        os.close(self.descriptor)

    def remove(self) -> None:
        """Remove it with all that it holds."""
        for name in os.listdir(self.descriptor):  # noqa: PTH208 (of a descriptor)
            os.unlink(name, dir_fd=self.descriptor)
        os.rmdir(self._name, dir_fd=self._tree.top)

    def require_room(self, size_bytes: int) -> None:
        """Return if so much more fits on the disk.

        Raises:
            CapacityError: It does not.
        """
        disk = os.fstatvfs(self.descriptor)
        if disk.f_bavail * disk.f_frsize < size_bytes + SPARE_BYTES:
            raise CapacityError("Nothing applied", why="it does not fit on the disk", fix="Free some space")

    def append(self, slot: str, data: bytes) -> None:
        """Add to a file, making it if it is not there; stretches of zeros become holes."""
        flags = _NEW if self.look(slot) is None else os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(slot, flags, 0o600, dir_fd=self.descriptor)
        try:
            end = os.lseek(descriptor, 0, os.SEEK_END)
            if len(data) >= 65_536 and not data.strip(b"\0"):
                os.ftruncate(descriptor, end + len(data))
                return
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)

    def link(self, slot: str, target: str) -> None:
        """Make a symbolic link."""
        os.symlink(target, slot, dir_fd=self.descriptor)

    def settle(self, slot: str, *, mode: int, uid: int, gid: int, like: str = "") -> HostEntry:
        """Give what is staged its owner and mode; return what it is then.

        Args:
            slot: Where it is.
            mode: Permission bits.
            uid: The owner, if we may choose; -1 leaves it.
            gid: The same of the group.
            like: Path of the file that it will replace, whose access lists it takes over.
        """
        if uid >= 0:
            os.chown(slot, uid, gid, dir_fd=self.descriptor, follow_symlinks=False)
        found = self.look(slot)
        if found is None:
            raise StateError("Nothing applied", why="somebody removed what was made ready", fix="Try again")
        if found.type == stat.S_IFREG:
            descriptor = os.open(slot, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.descriptor)
            try:
                if like:
                    self._take_over(like, descriptor)
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
        return self.look(slot) or found

    def sync(self) -> None:
        """Bring everything in it to the disk: one by one, or all that the machine has to write."""
        slots = os.listdir(self.descriptor)  # noqa: PTH208 (of a descriptor)
        if len(slots) > _SYNCED_SINGLY:
            os.sync()
            return
        for slot in slots:
            with suppress(OSError):  # a link, or a file that its owner may not read
                descriptor = os.open(slot, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.descriptor)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def keep(self, slot: str, directory: Path) -> None:
        """Keep what is in a slot elsewhere: by a link where that can be, and nobody else has one."""
        status = os.stat(slot, dir_fd=self.descriptor, follow_symlinks=False)
        place = directory / slot
        if stat.S_ISLNK(status.st_mode):
            place.symlink_to(os.readlink(slot, dir_fd=self.descriptor))
            return
        if status.st_nlink == 1:
            with suppress(OSError):
                os.link(slot, place, src_dir_fd=self.descriptor, follow_symlinks=False)
                return
        source = os.open(slot, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.descriptor)
        with os.fdopen(source, "rb") as reader, place.open("xb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
            os.fsync(writer.fileno())
        os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))

    def bring_back(self, kept: Path, entry: HostEntry) -> HostEntry:
        """Stage what was kept, under the same number, as it was then."""
        slot = kept.name
        if kept.is_symlink():
            self.link(slot, str(kept.readlink()))
        else:
            try:
                os.link(kept, slot, dst_dir_fd=self.descriptor, follow_symlinks=False)
                return self.look(slot) or entry
            except OSError:
                with kept.open("rb") as reader:
                    while chunk := reader.read(1 << 20):
                        self.append(slot, chunk)
                if self.look(slot) is None:
                    self.append(slot, b"")
        as_owner = os.geteuid() == 0
        staged = self.settle(slot, mode=entry.mode, uid=entry.uid if as_owner else -1, gid=entry.gid)
        times = (entry.modified_ns, entry.modified_ns)
        os.utime(slot, ns=times, dir_fd=self.descriptor, follow_symlinks=False)
        return self.look(slot) or staged

    def look(self, slot: str) -> HostEntry | None:
        """Return what is in a slot."""
        try:
            return HostEntry.of(os.stat(slot, dir_fd=self.descriptor, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def _take_over(self, path: str, descriptor: int) -> None:
        with suppress(OSError), self._tree.parent(path) as (directory, name):
            old = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            try:
                for attribute in os.listxattr(old):
                    if attribute.startswith(_KEPT_ATTRIBUTES):
                        with suppress(OSError):
                            os.setxattr(descriptor, attribute, os.getxattr(old, attribute))
            finally:
                os.close(old)
