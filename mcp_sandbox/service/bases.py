"""What the project had when a sandbox's own version of a path came about: the base of every change that comes home.

An overlay shows the project as it is, so nothing in it tells what a file was when the sandbox began to change it, and
copying or digesting a project at the start would cost what an overlay saves. But the kernel notes when each file last
changed, its `ctime`, and no program can set it. So two moments are enough:

- *looked*: the last moment at which the whole workspace was compared with the project. A path that did not differ then
  had no version of its own in the sandbox. It is noted before the comparison, by the clock that files get their times
  from. The first is when the sandbox was made (`SandboxRecord.project_since_ns`).
- When a path is first found to differ, what the project has there is noted: its inode, `ctime`, size and so on. That is
  the base, if its `ctime` is before *looked*: then it has not changed since the sandbox's version came about. If it is
  not, the project's file changed around the same time, nobody knows which of them the sandbox's version rests on, and
  that is what the base says.

What comes home is a conflict unless the project still has exactly its base, or what the sandbox itself brought there.
A comparison is made whenever a server begins to use a sandbox that was there before, after every `changes`, and before
every apply; it costs as much as there are changes. Where the project was copied none is needed: what it changed after
that moment no version in the sandbox rests on. A restored snapshot brings versions that came about earlier: what
was seen is forgotten then, and *looked* goes back to when that snapshot's sandbox was made.

What is not seen: a file that was read before *looked*, kept in mind, and written over afterwards; a directory that was
replaced by another one of the same name whose files are old; a file deleted in the project between *looked* and its
first difference, which comes home as a new one. Clocks that are set back, and file systems whose times come from
another machine, can hide a change of the project; every apply can be undone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from anyio import to_thread

from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.differences import Change, DiffRequest, LiveState, ProjectState, StartState, State
from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.core.provider import Provider
from mcp_sandbox.core.sandbox import WORKSPACE
from mcp_sandbox.hostfs.host_tree import HostEntry, HostTree
from mcp_sandbox.service.quantities import size
from mcp_sandbox.store.atomic import locked
from mcp_sandbox.store.record import SandboxRecord, file_time_ns
from mcp_sandbox.store.seen import Base, Home, Seen, load_seen, save_seen

__all__ = ["conflict", "has_way_home", "learned", "look_again", "note_put_back", "origin", "relative", "seen_lock"]

_MOST: Final = 100_000


def origin(record: SandboxRecord) -> State:
    """Return what changes that come home are counted from: the project, with what a manifest had prepared in it."""
    return ProjectState(sandbox=record.id) if record.from_snapshot else StartState(sandbox=record.id)


def has_way_home(record: SandboxRecord) -> bool:
    """Whether a sandbox has a workspace of its own that began as its project."""
    return bool(record.project) and record.workspace in ("overlay", "copy")


def relative(path: str) -> str:
    """Return a path below the workspace relative to it; the workspace itself is empty."""
    return path.removeprefix(WORKSPACE).removeprefix("/")


def seen_lock(directory: Path) -> Path:
    """Return the file to lock while what was seen is read and written."""
    return directory / "seen.lock"


async def look_again(provider: Provider, record: SandboxRecord, directory: Path) -> None:
    """Compare the whole workspace with the project, and remember what that tells.

    Nothing is learned where that fails or there is too much: the last look holds.

    Args:
        provider: That of the sandbox.
        record: The sandbox.
        directory: The registry's of this sandbox.
    """
    capabilities = provider.capabilities
    if not has_way_home(record) or not capabilities.supports(Verb.DIFF) or capabilities.workspace_copied:
        return
    at_ns = file_time_ns()
    request = DiffRequest(before=origin(record), after=LiveState(sandbox=record.id), paths=(WORKSPACE,), limit=_MOST)
    try:
        found = await provider.diff(request)
    except SandboxError:
        return
    if not found.truncated and not found.unseen:
        await to_thread.run_sync(_remember, record, directory, found.changes, at_ns)


def _remember(record: SandboxRecord, directory: Path, changes: Sequence[Change], at_ns: int) -> None:
    try:
        with HostTree(Path(record.project)) as tree, locked(seen_lock(directory)):
            seen = load_seen(directory)
            if at_ns > seen.looked_ns:
                bases = learned(seen, changes, tree, since_ns=record.project_since_ns, copied=False)
                save_seen(directory, Seen(looked_ns=at_ns, bases=bases, homes=_still(seen.homes, tree)))
    except OSError:
        return  # the project or the sandbox is gone


def _still(homes: Mapping[str, Home], tree: HostTree) -> dict[str, Home]:
    """Leave out what came home and is not there any more."""
    return {path: home for path, home in homes.items() if home.entry is None or tree.look(path) is not None}


def learned(seen: Seen, changes: Sequence[Change], tree: HostTree, *, since_ns: int, copied: bool) -> "dict[str, Base]":
    """Return the bases of changes: those that are known, and of the others what the project has now.

    Args:
        seen: What was known.
        changes: Differences to the project.
        tree: The project.
        since_ns: When the sandbox was made.
        copied: Whether what a change was before is what was copied, and not what the project has now.
    """
    looked_ns = max(seen.looked_ns, since_ns)
    bases: dict[str, Base] = {}
    new: set[str] = set()
    for change in changes:
        path = relative(change.path)
        is_below_new = path.rpartition("/")[0] in new
        if change.before is None and change.after is not None and change.after.kind is FileKind.DIRECTORY:
            new.add(path)
        if not path or is_below_new:
            continue
        if (known := seen.bases.get(path)) is not None:
            bases[path] = known
            continue
        entry = tree.look(path)
        if entry is None:
            is_known = not (copied and change.before is not None)
        else:
            home = seen.homes.get(path)
            is_known = entry.is_directory or entry.changed_ns < looked_ns or (home is not None and home.entry == entry)
        bases[path] = Base(entry=entry, since_ns=0 if is_known else max(looked_ns, 1))
    return bases


def conflict(path: str, seen: Seen, bases: Mapping[str, Base], entry: HostEntry | None) -> str:
    """Return how the project changed since the base, as a clause; empty if it did not.

    Args:
        path: Relative to the project.
        seen: What is known.
        bases: What `learned` returned.
        entry: What the project has now.
    """
    home = seen.homes.get(path)
    if home is not None and home.entry == entry:
        return ""
    base = bases.get(path, Base(entry=None))
    if base.since_ns:
        if entry is None:
            return "it was deleted in the project"
        return f"it changed in the project at {_time(entry.changed_ns)}, {_after(base.since_ns)}"
    was = base.entry
    if was is None or entry is None:
        if was is entry:
            return ""
        return "it was created in the project, too" if was is None else "it was deleted in the project"
    if was == entry or (was.is_directory and entry.is_directory and was.mode == entry.mode):
        return ""
    if was.type != entry.type:
        return "it is another kind of thing in the project now"
    sizes = f"{size(was.size_bytes)} then, {size(entry.size_bytes)} now"
    return f"it changed in the project at {_time(entry.changed_ns)} ({sizes})"


def note_put_back(
    directory: Path,
    project: str,
    paths: Collection[str],
    never_seen: Collection[str],
    *,
    before: "Mapping[str, HostEntry | None] | None" = None,
) -> None:
    """Note that the project has again what it had before an apply: its times changed, and nothing else. Blocks.

    Args:
        directory: The registry's of the sandbox that it came from; nothing is noted if it is gone.
        project: The project.
        paths: Where something was put back.
        never_seen: Which of them the sandbox's versions do not rest on.
        before: What was there before: where something else is now, somebody changed it meanwhile, and nothing is noted.
    """
    if not directory.is_dir():
        return
    at_ns = file_time_ns()
    with HostTree(Path(project)) as tree, locked(seen_lock(directory)):
        seen = load_seen(directory)
        now = {path: tree.look(path) for path in paths}
        bases = {
            path: Base(entry=entry, since_ns=at_ns if path in never_seen else 0)
            for path, entry in now.items()
            if before is None or _is_back(entry, before.get(path))
        }
        homes = {path: home for path, home in seen.homes.items() if path not in bases}
        save_seen(directory, replace(seen, bases={**seen.bases, **bases}, homes=homes))


def _is_back(entry: HostEntry | None, before: HostEntry | None) -> bool:
    return before is None if entry is None else entry.is_same_content(before)


def _after(since_ns: int) -> str:
    if since_ns <= 1:
        return "and it is not known since when the sandbox has its own version"
    return f"and the sandbox's version is newer than {_time(since_ns)}: it may rest on either"


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
