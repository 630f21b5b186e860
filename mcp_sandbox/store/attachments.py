"""What is attached to a snapshot after it was taken, beside its record: its portable form, and content made from that.

The id of the snapshot does not cover it. The portable form carries digests of its own.
"""

import fcntl
import json
import os
import secrets
import shutil
import stat
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final, cast

from mcp_sandbox.core.capability import Facet
from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.snapshot import NativeContent, SnapshotId
from mcp_sandbox.store.atomic import UNFINISHED, write_atomically

__all__ = ["Attachments", "open_regular"]

_MOST_BYTES: Final = 64 << 30


def open_regular(path: Path) -> IO[bytes]:
    """Open a file of the user's, without waiting for whoever would write to a FIFO.

    Raises:
        InvalidRequestError: It is no regular file, or too large.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _not_read(path, os.strerror(error.errno or 0)) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
        os.close(descriptor)
        raise _not_read(path, f"it is no file of at most {_MOST_BYTES >> 30} GiB")
    return os.fdopen(descriptor, "rb")


def _not_read(path: Path, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"File {path.name!r} not read", why=why, fix="Name a file that `mcp-sandbox snapshot export` wrote"
    )


class Attachments:
    """Every method blocks; call them in a thread.

    Args:
        directory: The one that holds the records.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def lock(self) -> Path:
        """Return the file to lock while content is made from a portable form."""
        return self._directory / "contents.lock"

    def portable(self, snapshot_id: SnapshotId) -> IO[bytes] | None:
        """Open the portable form of a snapshot, if it has one."""
        try:
            return self._portable(snapshot_id).open("rb")
        except FileNotFoundError:
            return None

    def has_portable(self, snapshot_id: SnapshotId) -> bool:
        """Whether a snapshot has a portable form."""
        return self._portable(snapshot_id).exists()

    def copy_of(self, source: Path) -> tuple[Path, IO[bytes]]:
        """Return a copy of a file of the user's, open and as something unfinished, which nobody else changes.

        Raises:
            InvalidRequestError: It is no regular file, or too large.
        """
        with open_regular(source) as opened:
            path = self._directory / f"{UNFINISHED}import-{secrets.token_hex(8)}"
            copy = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b")
            try:
                fcntl.flock(copy, fcntl.LOCK_EX)  # tells `sweep_unfinished` that we live
                shutil.copyfileobj(opened, copy, 1 << 20)
                copy.seek(0)
            except BaseException:
                copy.close()
                path.unlink(missing_ok=True)
                raise
        return path, copy

    def attach(self, snapshot_id: SnapshotId, archive: Path) -> None:
        """Make a file that was checked the portable form of a snapshot."""
        archive.replace(self._portable(snapshot_id))

    def native(self, snapshot_id: SnapshotId, provider: str) -> NativeContent | None:
        """Return the content that a provider made from the portable form, if it did."""
        return self.natives(snapshot_id).get(provider)

    def natives(self, snapshot_id: SnapshotId) -> dict[str, NativeContent]:
        """Return all content that was made from the portable form, by provider."""
        try:
            raw = cast("dict[str, dict[str, Any]]", json.loads(self._natives(snapshot_id).read_bytes()))
            return {name: _native(fields) for name, fields in raw.items()}
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            return {}  # it is made again

    def attach_native(self, snapshot_id: SnapshotId, native: NativeContent) -> None:
        """Remember what a provider made from the portable form."""
        natives = {**self.natives(snapshot_id), native.provider: native}
        plain = {name: {**asdict(each), "holds": sorted(each.holds)} for name, each in natives.items()}
        write_atomically(self._natives(snapshot_id), json.dumps(plain).encode())

    def remove(self, snapshot_id: SnapshotId) -> None:
        """Forget everything that is attached to a snapshot."""
        for path in (self._natives(snapshot_id), self._portable(snapshot_id)):
            with suppress(FileNotFoundError):
                path.unlink()

    def _portable(self, snapshot_id: SnapshotId) -> Path:
        return self._directory / f"{snapshot_id}.portable"

    def _natives(self, snapshot_id: SnapshotId) -> Path:
        return self._directory / f"{snapshot_id}.natives"


def _native(fields: dict[str, Any]) -> NativeContent:
    whole: dict[str, Any] = {**fields, "holds": frozenset(Facet(facet) for facet in fields["holds"])}
    return NativeContent(**whole)
