"""The sandboxes that exist, one directory each, shared by every server and command of one OS user.

Mutations happen under one short lock (never held across a call to an engine) and become visible in one rename, so a
process that is killed at any point leaves the old state, the new one, or an unfinished thing that nobody reads.
"""

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from anyio import to_thread

from mcp_sandbox.core.errors import CapacityError, InvalidRequestError, NotFoundError, StateError
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.store.atomic import UNFINISHED, Settle, alocked, settle_now, sweep_unfinished, write_atomically
from mcp_sandbox.store.encoding import decode, encode
from mcp_sandbox.store.identity import ID_PATTERN, ID_PREFIX
from mcp_sandbox.store.record import Owner, SandboxRecord, timestamp

__all__ = ["DefaultRecord", "Registry", "Seen", "Stamp"]

_LOG = logging.getLogger(__name__)
_NAMED = 3
_RECORD, _LOCK, _CREATING, _USED = "record.json", "lock", "creating", "used"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class DefaultRecord(NamedTuple):
    """A project's default sandbox, and whether it was entered just now."""

    record: SandboxRecord
    is_new: bool


class Stamp(NamedTuple):
    """Tells one state of a record from every other one."""

    inode: int
    modified_ns: int


class Seen(NamedTuple):
    """A record as it was read."""

    stamp: Stamp
    record: SandboxRecord


class Registry:
    """What concerns one sandbox is done in place, in a fraction of a millisecond: a hop to a thread costs more.

    `list` and `find` read the records of all sandboxes: call them in a thread.

    Args:
        directory: An existing private directory.
        settle: Makes what was written survive a loss of power; at once, or behind the answer.
    """

    def __init__(self, directory: Path, settle: Settle = settle_now) -> None:
        self._directory = directory
        self._settle = settle
        self._known: dict[SandboxId, tuple[Stamp, SandboxRecord]] = {}
        self._swept = False

    def directory(self, sandbox_id: SandboxId) -> Path:
        """Return the directory of one sandbox, which holds its record, its lock and whatever belongs to it."""
        return self._directory / sandbox_id

    def lock(self, sandbox_id: SandboxId) -> Path:
        """Return the file to lock around long changes to a sandbox: create, snapshot, restore, destroy."""
        return self._directory / sandbox_id / _LOCK

    def stamp(self, sandbox_id: SandboxId) -> Stamp | None:
        """Return what changes with the record; `None` if there is none. One system call."""
        try:
            found = os.stat(f"{self._directory}/{sandbox_id}/{_RECORD}")  # noqa: PTH116 (on the path of every exec)
        except OSError:
            return None
        return Stamp(found.st_ino, found.st_mtime_ns)

    def touch(self, sandbox_id: SandboxId) -> None:
        """Note that a sandbox is in use. Neither rewrites its record nor disturbs whoever cached it."""
        with suppress(OSError):
            os.utime(self._directory / sandbox_id / _USED)

    async def add(self, record: SandboxRecord, *, most: int | None = None, is_there: bool = False) -> None:
        """Enter a sandbox.

        Args:
            record: What to enter.
            most: How many its project may have then; any number without.
            is_there: Whether the engine has it; else it is about to be created.

        Raises:
            StateError: The id is taken, or the name is, in the same project.
            CapacityError: The project has as many already.
        """
        async with self._locked():
            if most is not None:
                self.require_room(record.owner, 1, most)
            await self._add(record, is_there=is_there)
        self._settle_entry(record.id)

    def require_room(self, owner: Owner, count: int, most: int) -> None:
        """Return if a project may have so many more sandboxes.

        Raises:
            CapacityError: It may not; names those that were not used for longest.
        """
        if len(os.listdir(self._directory)) + count <= most:  # noqa: PTH208 (all projects, and then some)
            return
        records = self.list(principal=owner.principal, project=owner.project)
        if len(records) + count > most:
            raise _full(records, count, most)

    def is_creating(self, sandbox_id: SandboxId) -> bool:
        """Whether the engine was never seen to have this sandbox."""
        return (self._directory / sandbox_id / _CREATING).exists()

    def mark_created(self, sandbox_id: SandboxId) -> Seen:
        """Note that the engine has it, and return the record as `look` does."""
        (self._directory / sandbox_id / _CREATING).unlink(missing_ok=True)
        return self.look(sandbox_id)

    def look(self, sandbox_id: SandboxId) -> Seen:
        """Return a record and the stamp that tells later whether it is still the same.

        Raises:
            NotFoundError: There is none.
        """
        stamp = self.stamp(sandbox_id)
        record = self.get(sandbox_id)
        return Seen(stamp or Stamp(0, 0), record)

    def get(self, sandbox_id: SandboxId) -> SandboxRecord:
        """Return one record.

        Raises:
            NotFoundError: There is none.
            StateError: It cannot be read by this version.
        """
        record = self._read(sandbox_id)
        if record is None:
            raise NotFoundError(
                f"No sandbox {sandbox_id!r}",
                why="it does not exist or was destroyed",
                fix="See `sandbox_list`, or leave `sandbox` away to use the project's own",
            )
        return self._used(record)

    def list(self, *, principal: str, project: str | None = None) -> tuple[SandboxRecord, ...]:
        """Return the records of one principal, oldest first; of one project, or of all with `None`."""
        found = self._of(principal, project)
        return tuple(self._used(record) for record in sorted(found, key=lambda record: (record.created_at, record.id)))

    def find(self, handle: str, *, principal: str, project: str | None = None) -> SandboxRecord:
        """Return the sandbox that a handle means: its id, its name, or a unique prefix of its id.

        A whole id is unguessable, so it is good in every project of the principal; the others only in `project`.

        Raises:
            NotFoundError: None does; names near ones.
            InvalidRequestError: Several do.
        """
        handle = handle.strip()
        if ID_PATTERN.match(handle):
            record = self.get(SandboxId(handle))
            if record.principal == principal:
                return record
        records = sorted(self._of(principal, project), key=lambda record: record.id)
        prefix = handle.lower().removeprefix(ID_PREFIX)
        matches = [record for record in records if handle and record.name == handle] or [
            record for record in records if prefix and record.id.startswith(ID_PREFIX + prefix)
        ]
        if len(matches) == 1:
            return self._used(matches[0])
        if matches:
            raise InvalidRequestError(
                f"Sandbox {handle!r} not chosen",
                why=f"it means {len(matches)} sandboxes: {_listed(matches)}",
                fix="Give more of the id",
            )
        raise _no_such(handle, records)

    async def default_for(self, owner: Owner, make: Callable[[], SandboxRecord]) -> DefaultRecord:
        """Return the default sandbox of a project, entering what `make` returns if there is none.

        However many processes ask at once, one of them enters it.

        Raises:
            StateError: There is one, but this version cannot read it.
        """
        if (found := await to_thread.run_sync(self._default, owner)) is not None:
            return DefaultRecord(found, is_new=False)
        async with self._locked():
            if (found := self._default(owner)) is not None:
                return DefaultRecord(found, is_new=False)
            record = make()
            await self._add(record)
        self._settle_entry(record.id)
        return DefaultRecord(record, is_new=True)

    async def update(self, sandbox_id: SandboxId, **changes: object) -> SandboxRecord:
        """Change fields of a record and return it; fields that only newer versions know stay as they are.

        Raises:
            NotFoundError: There is no such sandbox (any more).
        """
        async with self._locked():
            record = replace(self.get(sandbox_id), **changes)
            path = self._directory / sandbox_id / _RECORD
            sweep_unfinished(path.parent)
            write_atomically(path, encode({**decode(path.read_bytes()), **record.to_json()}), durable=False)
        self._settle(path)
        return record

    async def remove(self, sandbox_id: SandboxId) -> None:
        """Forget a sandbox and everything in its directory. No-op if there is none."""
        grave = self._directory / f"{UNFINISHED}gone-{sandbox_id}-{secrets.token_hex(4)}"
        async with self._locked():
            with suppress(FileNotFoundError):
                (self._directory / sandbox_id).rename(grave)
        self._known.pop(sandbox_id, None)
        await to_thread.run_sync(lambda: shutil.rmtree(grave, ignore_errors=True))

    async def sweep(self) -> None:
        """Remove what killed processes left unfinished; files that live ones are writing stay."""
        async with self._locked():
            await to_thread.run_sync(self._sweep)
        await to_thread.run_sync(self._sweep_directories)

    def _sweep_directories(self) -> None:
        for directory in (*self._directory.glob(f"{ID_PREFIX}*"), *self._directory.glob(f"{ID_PREFIX}*/*/")):
            sweep_unfinished(directory)

    def _locked(self) -> AbstractAsyncContextManager[None]:
        return alocked(self._directory / _LOCK, what="List of sandboxes")

    async def _add(self, record: SandboxRecord, *, is_there: bool = False) -> None:
        if not self._swept:
            await to_thread.run_sync(self._sweep)
        final, beside = f"{self._directory}/{record.id}", f"{self._directory}/{UNFINISHED}{record.id}"
        if self.stamp(record.id) is not None:
            raise StateError("Sandbox not created", why=f"there is one with the id {record.id!r}", fix="Use another id")
        if record.name and any(other.name == record.name for other in self._of(record.principal, record.project)):
            raise StateError(
                "Sandbox not created",
                why=f"this project has one with the name {record.name!r}",
                fix="Choose another name, or destroy that one first",
            )
        os.mkdir(beside, 0o700)  # noqa: PTH102 (text, here and below: every `create` waits for it)
        for name in (_USED,) if is_there else (_CREATING, _USED):
            os.close(os.open(f"{beside}/{name}", _NEW_FILE, 0o600))
        written = os.open(f"{beside}/{_RECORD}", _NEW_FILE, 0o600)
        try:
            os.write(written, encode(record.to_json()))
            found = os.fstat(written)
        finally:
            os.close(written)
        os.rename(beside, final)  # noqa: PTH104
        self._known[record.id] = (Stamp(found.st_ino, found.st_mtime_ns), record)

    def _settle_entry(self, sandbox_id: SandboxId) -> None:
        directory = self._directory / sandbox_id
        self._settle(directory / _RECORD)
        self._settle(directory)

    def _sweep(self) -> None:
        """Remove what killed processes left; the lock is held, so nobody is building anything."""
        for entry in self._directory.glob(f"{UNFINISHED}*"):
            shutil.rmtree(entry, ignore_errors=True)
        self._swept = True

    def _default(self, owner: Owner) -> SandboxRecord | None:
        for found in self._scan():
            if isinstance(found, SandboxRecord):
                if found.is_default and found.owner == owner:
                    return found
            elif (found.raw.get("is_default"), found.raw.get("principal"), found.raw.get("project")) == (
                True,
                owner.principal,
                owner.project,
            ):
                raise found.error
        return None

    def _of(self, principal: str, project: str | None) -> Sequence[SandboxRecord]:
        return [
            found
            for found in self._scan()
            if isinstance(found, SandboxRecord) and found.principal == principal and project in (None, found.project)
        ]

    def _scan(self) -> "Iterator[SandboxRecord | _Unreadable]":
        for entry in os.listdir(self._directory):  # noqa: PTH208 (names only)
            if not ID_PATTERN.match(entry):
                continue
            sandbox_id = SandboxId(entry)
            try:
                record = self._read(sandbox_id)
            except StateError as error:
                _LOG.warning("record of sandbox %s: %s", sandbox_id, error)
                yield _Unreadable(error, self._raw(sandbox_id))
            else:
                if record is not None:
                    yield record

    def _read(self, sandbox_id: SandboxId) -> SandboxRecord | None:
        stamp = self.stamp(sandbox_id)
        if stamp is None:
            return None
        known = self._known.get(sandbox_id)
        if known is None or known[0] != stamp:
            try:
                text = (self._directory / sandbox_id / _RECORD).read_bytes()
            except FileNotFoundError:
                return None
            known = self._known[sandbox_id] = (stamp, SandboxRecord.parse(text))
        return known[1]

    def _raw(self, sandbox_id: SandboxId) -> dict[str, Any]:
        try:
            return dict(decode((self._directory / sandbox_id / _RECORD).read_bytes()))
        except (OSError, ValueError):
            return {}

    def _used(self, record: SandboxRecord) -> SandboxRecord:
        try:
            used = (self._directory / record.id / _USED).stat().st_mtime
        except OSError:
            return record
        return replace(record, last_used_at=max(timestamp(datetime.fromtimestamp(used, UTC)), record.last_used_at))


class _Unreadable(NamedTuple):
    error: StateError
    raw: dict[str, Any]


def _listed(records: Sequence[SandboxRecord], most: int = 5) -> str:
    shown = [f"{record.id[:11]}{f' ({record.name})' if record.name else ''}" for record in records[:most]]
    return ", ".join(shown) + (f" and {len(records) - most} more" if len(records) > most else "")


def _full(records: Sequence[SandboxRecord], count: int, most: int) -> CapacityError:
    others = sorted((one for one in records if not one.is_default), key=lambda one: one.last_used_at)
    oldest = ", ".join(f"{one.name or one.id} ({one.last_used_at[:10]})" for one in others[:_NAMED])
    unused = f"; those that were not used for longest are {oldest}" if oldest else ""
    return CapacityError(
        "No sandbox created" if count == 1 else f"{count} sandboxes not created",
        why=f"this project has {len(records)} already, and {most} is the most{unused}",
        fix="Destroy some with `sandbox_destroy`, or start the server with a higher --max-sandboxes",
    )


def _no_such(handle: str, records: Sequence[SandboxRecord]) -> NotFoundError:
    handle = handle[:64]
    names = {name: record for record in records for name in (record.name, record.id) if name}
    near = [names[name] for name in get_close_matches(handle, names, n=3, cutoff=0.6)]
    if near:
        fix = f"Check the spelling; near it is {_listed(near)}"
    elif records:
        fix = f"There are {_listed(records)}; without `sandbox` the project's own is used"
    else:
        fix = "There are none; leave `sandbox` away to use the project's own, made on first use"
    return NotFoundError(f"No sandbox {handle!r}", why="no id, name or prefix of an id matches", fix=fix)
