"""The records of snapshots: one file each, named by its id, never changed, checked whenever it is read."""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mcp_sandbox.core.capability import Facet
from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, SnapshotCorruptError, StateError
from mcp_sandbox.core.snapshot import NativeContent, Snapshot, SnapshotId
from mcp_sandbox.store.atomic import Settle, settle_now, sweep_unfinished, write_atomically, write_once
from mcp_sandbox.store.attachments import Attachments
from mcp_sandbox.store.encoding import decode, encode, pairs
from mcp_sandbox.store.record import Owner

__all__ = ["SnapshotStore", "StoredSnapshot"]

_LOG = logging.getLogger(__name__)
_SCHEMA = 1
_ID = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """A snapshot and whose it is; the id covers the snapshot alone, so that more can be attached later."""

    snapshot: Snapshot
    owner: Owner
    imported: bool = False
    """Whether it came in a file: its native content is elsewhere, and what it says of that is a stranger's word."""
    before_restore: bool = False
    """Whether a restore took it, of what it replaced; only the newest of these stay."""
    project_since_ns: int = 0
    """`SandboxRecord.project_since_ns` of its sandbox; 0 is not known, as for all that came in a file."""

    @property
    def id(self) -> SnapshotId:
        """The id of the snapshot."""
        return self.snapshot.id

    @property
    def own(self) -> "tuple[NativeContent, ...]":
        """The native content that goes with it: none if it was imported, for then it is somebody else's."""
        return () if self.imported else (self.snapshot.native,)


class SnapshotStore:
    """What concerns one snapshot is done in place, in a fraction of a millisecond: a hop to a thread costs more.

    Whatever reads all records is called in a thread.

    Args:
        directory: An existing private directory.
        settle: Makes what was written survive a loss of power; at once, or behind the answer.
    """

    def __init__(self, directory: Path, settle: Settle = settle_now) -> None:
        self._directory = directory
        self._settle = settle
        self._known: dict[SnapshotId, StoredSnapshot] = {}
        self.attachments = Attachments(directory)

    def save(self, stored: StoredSnapshot) -> None:
        """Write a record, once; saving it again changes nothing."""
        fields = asdict(stored.snapshot)
        fields["native"]["holds"] = sorted(stored.snapshot.native.holds)
        path = self._path(stored.id)
        marks = {name: True for name in ("imported", "before_restore") if getattr(stored, name)}
        since = {"project_since_ns": stored.project_since_ns} if stored.project_since_ns else {}
        record = {"schema": _SCHEMA, "snapshot": fields, **asdict(stored.owner), **marks, **since}
        write_once(path, encode(record), durable=False)
        self._settle(path)

    def load(self, snapshot_id: SnapshotId) -> StoredSnapshot:
        """Return one record.

        Raises:
            NotFoundError: There is none.
            SnapshotCorruptError: Its bytes do not match its id.
            StateError: A newer version wrote it.
        """
        try:
            text = self._path(snapshot_id).read_bytes()
        except FileNotFoundError:
            raise _no_such(snapshot_id, ()) from None
        return _parsed(snapshot_id, text)

    def again(self, snapshot_id: SnapshotId) -> StoredSnapshot:
        """Return a record that was loaded before, without checking it again; raises as `load`."""
        known = self._known.get(snapshot_id)
        return known if known is not None and self._path(snapshot_id).exists() else self.load(snapshot_id)

    def list(self, *, principal: str, project: str | None = None) -> tuple[StoredSnapshot, ...]:
        """Return the snapshots of one principal, oldest first; of one project, or of all with `None`.

        Damaged ones are passed over, with a line in the log.
        """
        return tuple(
            sorted(
                (
                    stored
                    for stored in self._scan()
                    if stored.owner.principal == principal and project in (None, stored.owner.project)
                ),
                key=lambda stored: (stored.snapshot.created_at, stored.id),
            )
        )

    def all(self) -> "Iterator[StoredSnapshot]":
        """Return every snapshot of everybody.

        Raises:
            SnapshotCorruptError, StateError: A record cannot be read.
        """
        for snapshot_id in self._names():
            if (stored := self._seen(snapshot_id)) is not None:
                yield stored
            elif self._path(snapshot_id).exists():
                yield self.load(snapshot_id)

    def find(self, prefix: str, *, principal: str, project: str | None = None) -> StoredSnapshot:
        """Return the snapshot whose id begins with `prefix`, read from the disk and checked.

        A whole id is good in every project of the principal; a prefix only in `project`.

        Raises:
            NotFoundError: There is none; names near ones.
            InvalidRequestError: There are several.
            SnapshotCorruptError: Its bytes do not match its id.
        """
        wanted = prefix.strip().lower()
        if _ID.match(wanted):
            if not self._path(SnapshotId(wanted)).exists():
                raise _no_such(prefix, self.list(principal=principal, project=project))
            stored = self.load(SnapshotId(wanted))
            if stored.owner.principal == principal:
                return stored
        named = [name for name in self._names() if wanted and name.startswith(wanted)]
        matches = [
            stored
            for stored in map(self._seen, named)
            if stored and stored.owner.principal == principal and project in (None, stored.owner.project)
        ]
        if len(matches) > 1:
            raise InvalidRequestError(
                f"Snapshot {prefix!r} not chosen",
                why=f"{len(matches)} ids begin with it: {', '.join(sorted(stored.id[:16] for stored in matches)[:5])}",
                fix="Give more of the id",
            )
        if matches:
            return self.load(matches[0].id)
        for damaged in named if len(wanted) >= 8 else ():
            self.load(damaged)
        raise _no_such(prefix, self.list(principal=principal, project=project))

    def only(self, prefix: str, *, principal: str, project: str | None = None) -> StoredSnapshot | None:
        """Return what `find` would, if that is quickly said: `None` where it would look on, or raise."""
        wanted = prefix.strip().lower()
        is_whole = _ID.match(wanted)
        named = [wanted] if is_whole else [name for name in self._names() if wanted and name.startswith(wanted)]
        if len(named) != 1:
            return None
        try:
            stored = self._known[SnapshotId(named[0])] = self.load(SnapshotId(named[0]))
        except (NotFoundError, SnapshotCorruptError, StateError):
            return None
        mine = stored.owner.principal == principal and (is_whole or project in (None, stored.owner.project))
        return stored if mine else None

    def setup(self, key: str) -> SnapshotId | None:
        """Return what was noted for a preparation with this digest; `None` if nothing was."""
        try:
            return SnapshotId((self._directory / f"{key}.setup").read_text("ascii"))
        except (FileNotFoundError, UnicodeDecodeError):
            return None

    def note_setup(self, key: str, snapshot_id: SnapshotId) -> None:
        """Note the snapshot that a preparation with this digest ended in; empty if it changed nothing."""
        write_atomically(self._directory / f"{key}.setup", snapshot_id.encode("ascii"), durable=False)

    def forget_setup(self, key: str) -> None:
        """Forget what was noted. No-op if nothing was."""
        (self._directory / f"{key}.setup").unlink(missing_ok=True)

    def setups(self) -> "dict[str, SnapshotId]":
        """Return all that was noted, by digest."""
        names = [path.stem for path in self._directory.glob("*.setup")]
        return {name: found for name in names if (found := self.setup(name))}

    def setup_lock(self) -> Path:
        """Return the lock file to hold while something is prepared."""
        return self._directory / "setup.lock"

    def sweep(self) -> None:
        """Remove what killed processes left unfinished."""
        sweep_unfinished(self._directory)

    def natives(self, stored: StoredSnapshot) -> "tuple[NativeContent, ...]":
        """Return all content that goes with a snapshot, made when it was taken or from its portable form."""
        return (*stored.own, *self.attachments.natives(stored.id).values())

    def damaged(self) -> dict[SnapshotId, str]:
        """Return the ids of records that cannot be read, and why."""
        found: dict[SnapshotId, str] = {}
        for snapshot_id in self._names():
            try:
                self.load(snapshot_id)
            except NotFoundError:
                continue
            except (SnapshotCorruptError, StateError) as error:
                found[snapshot_id] = error.why
        return found

    def retire(self, snapshot_id: SnapshotId) -> None:
        """Take a snapshot off every list, in one step, before its content goes; `delete` or `reinstate` comes after.

        Raises:
            NotFoundError: There is none.
        """
        try:
            self._path(snapshot_id).rename(self._retired_path(snapshot_id))
        except FileNotFoundError:
            raise _no_such(snapshot_id, ()) from None
        self._known.pop(snapshot_id, None)
        self._settle(self._directory)

    def reinstate(self, snapshot_id: SnapshotId) -> None:
        """Undo `retire`."""
        with suppress(FileNotFoundError):
            self._retired_path(snapshot_id).rename(self._path(snapshot_id))

    def retired(self) -> "Iterator[StoredSnapshot]":
        """Return the snapshots whose content is to go: whoever deletes them is at it, or was killed."""
        for path in self._directory.glob("*.retired"):
            with suppress(FileNotFoundError, SnapshotCorruptError, StateError):
                yield _parsed(SnapshotId(path.stem), path.read_bytes())

    def delete(self, snapshot_id: SnapshotId) -> None:
        """Remove a record, retired or not. No-op if there is none."""
        self.attachments.remove(snapshot_id)
        for path in (self._path(snapshot_id), self._retired_path(snapshot_id)):
            path.unlink(missing_ok=True)
        self._known.pop(snapshot_id, None)
        self._settle(self._directory)

    def _retired_path(self, snapshot_id: SnapshotId) -> Path:
        return self._directory / f"{snapshot_id}.retired"

    def _path(self, snapshot_id: SnapshotId) -> Path:
        return self._directory / f"{snapshot_id}.json"

    def _names(self) -> "Iterator[SnapshotId]":
        for name in os.listdir(self._directory):  # noqa: PTH208 (there may be thousands)
            if name.endswith(".json") and _ID.match(name[:-5]):
                yield SnapshotId(name[:-5])

    def _scan(self) -> Iterator[StoredSnapshot]:
        for snapshot_id in self._names():
            if (stored := self._seen(snapshot_id)) is not None:
                yield stored

    def _seen(self, snapshot_id: SnapshotId) -> StoredSnapshot | None:
        """Return a record without checking it again: what was read once never changes. `None` for a damaged one."""
        if snapshot_id not in self._known:
            try:
                self._known[snapshot_id] = self.load(snapshot_id)
            except (NotFoundError, SnapshotCorruptError, StateError) as error:
                _LOG.warning("record of snapshot %s: %s", snapshot_id, error)
                return None
        return self._known[snapshot_id]


def _parsed(snapshot_id: SnapshotId, text: bytes) -> StoredSnapshot:
    try:
        data = decode(text)
        schema = data["schema"]
        if isinstance(schema, int) and schema > _SCHEMA:
            raise StateError(
                f"Snapshot {snapshot_id[:12]} not read",
                why=f"a newer mcp-sandbox wrote it (schema {schema}, this version knows {_SCHEMA})",
                fix="Upgrade mcp-sandbox",
            )
        stored = StoredSnapshot(
            snapshot=_snapshot(data["snapshot"]),
            owner=Owner(principal=str(data["principal"]), project=str(data["project"])),
            imported=data.get("imported") is True,
            before_restore=data.get("before_restore") is True,
            project_since_ns=int(data.get("project_since_ns", 0)),
        )
        digest = stored.id
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(snapshot_id, "its record cannot be read") from error
    if digest != snapshot_id:
        raise _corrupt(snapshot_id, f"its record has the digest {digest[:12]}")
    return stored


def _snapshot(fields: Mapping[str, Any]) -> Snapshot:
    native: dict[str, Any] = {**fields["native"]}
    native["holds"] = frozenset(Facet(facet) for facet in native["holds"])
    whole: dict[str, Any] = {**fields, "native": NativeContent(**native), "env": pairs(fields.get("env", ()))}
    whole["denied"] = tuple(str(glob) for glob in fields.get("denied", ()))
    return Snapshot(**whole)


def _corrupt(snapshot_id: SnapshotId, why: str) -> SnapshotCorruptError:
    return SnapshotCorruptError(
        f"Snapshot {snapshot_id[:12]} is damaged", why=why, fix="Use another snapshot; `snapshot_list` shows them"
    )


def _no_such(prefix: str, known: tuple[StoredSnapshot, ...]) -> NotFoundError:
    prefix = prefix[:64]
    near = get_close_matches(prefix, [stored.id[: len(prefix)] for stored in known], n=3, cutoff=0.7)
    newest = [stored.id[:12] for stored in known[-3:]]
    if prefix and near:
        fix = f"Check it; near it is {', '.join(near)}"
    elif newest:
        fix = f"The newest are {', '.join(reversed(newest))}; `snapshot_list` shows all"
    else:
        fix = "There are none yet; `snapshot_create` takes one"
    return NotFoundError(f"No snapshot {prefix!r}", why="no id begins with it", fix=fix)
