"""Which changes of a sandbox can come home into its project, which must not, and which meet somebody else's."""

import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mcp_sandbox.core.differences import Change, Side
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.hostfs.denied import Denied
from mcp_sandbox.hostfs.host_tree import HostEntry, HostTree
from mcp_sandbox.policy.protected import why_protected
from mcp_sandbox.service.bases import conflict, relative
from mcp_sandbox.store.seen import Base, Seen

__all__ = ["Homebound", "Plan", "Stopped", "planned"]

_CARRIED: Final = (FileKind.FILE, FileKind.DIRECTORY, FileKind.SYMLINK)
_LINK_BYTES: Final = 4095


@dataclass(frozen=True, slots=True, kw_only=True)
class Homebound:
    """A change that can come home."""

    path: str
    """Relative to the project."""
    change: Change
    entry: HostEntry | None
    """What the project has there now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A change that does not come home, and why, as a clause."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What becomes of every change, by path."""

    ready: tuple[Homebound, ...] = ()
    left: tuple[Stopped, ...] = ()
    """Stay in the sandbox, whatever happens: devices, protected names and the like."""
    conflicts: tuple[Stopped, ...] = ()
    """As long as there is one, nothing comes home."""
    overwritten: tuple[str, ...] = ()
    """Are ready although the project changed there: a person said so."""
    behind: tuple[str, ...] = ()
    """Came home before, and changed in the project since, but not in the sandbox: nothing to bring."""


@dataclass(slots=True)
class _Names:
    """What directories hold now, and would hold if everything came home."""

    tree: HostTree
    added: Mapping[str, Collection[str]]
    known: "dict[str, frozenset[str]]" = field(default_factory=dict[str, frozenset[str]])

    def of(self, directory: str) -> frozenset[str]:
        if directory not in self.known:
            here = self.tree.names(directory) if directory else self.tree.top_names()
            self.known[directory] = frozenset(here) | frozenset(self.added.get(directory, ()))
        return self.known[directory]


def planned(
    changes: Sequence[Change],
    tree: HostTree,
    seen: Seen,
    bases: Mapping[str, Base],
    *,
    unchanged_since_home: Collection[str] = (),
    denied: Sequence[str] = (),
    protected: bool = False,
    overwrite: bool = False,
    owner: int = 0,
) -> Plan:
    """Say what becomes of changes. Blocks.

    Args:
        changes: Differences to the project, by path.
        tree: The project.
        seen: What is known of it.
        bases: Of these changes.
        unchanged_since_home: Paths whose version in the sandbox is what came home from it.
        denied: Globs of what the sandbox must not see, and so not replace.
        protected: Whether a person allowed protected names.
        overwrite: Whether a person gave up what the project has where it changed.
        owner: Who applies; 0 may change everybody's files.
    """
    names = _Names(tree, _added(changes))
    hidden = Denied(denied)
    ready: list[Homebound] = []
    left: list[Stopped] = []
    conflicts: list[Stopped] = []
    behind: list[str] = []
    overwritten: list[str] = []
    links = {relative(each.path) for each in changes if each.after is not None and each.after.kind is FileKind.SYMLINK}
    reachable: set[str] = set()
    """Directories of the project that were looked at: all is well with them."""
    becoming: set[str] = set()
    """Directories that are there at the end."""
    staying: set[str] = set()
    """Directories that stay in the sandbox, with all that is in them."""
    for change in changes:
        path = relative(change.path)
        if not path:
            continue
        entry = tree.look(path)
        if _is_below(path, staying):
            continue
        if path in unchanged_since_home:
            home = seen.homes.get(path)
            if home is None or home.entry != entry:
                behind.append(path)
            continue
        if _is_there(change, entry):
            continue
        if change.after is None and entry is None and not bases.get(path, Base(entry=None)).entry:
            continue
        why = "it is denied" if _is_hidden(path, hidden) else _why_not(
            path, change, entry, tree, owner, becoming, reachable, links
        )  # fmt: skip
        if not why and not protected:
            why = _why_protected(path, change, names)
        if why:
            left.append(Stopped(path=path, why=why))
            if change.after is not None and change.after.kind is FileKind.DIRECTORY:
                staying.add(path)
        elif (how := conflict(path, seen, bases, entry)) and not overwrite:
            conflicts.append(Stopped(path=path, why=how))
        else:
            overwritten += [path] * bool(how)
            ready.append(Homebound(path=path, change=change, entry=entry))
            if change.after is not None and change.after.kind is FileKind.DIRECTORY:
                becoming.add(path)
    kept = _with_what_stays(ready, tree, left, conflicts)
    return Plan(
        ready=tuple(kept), left=tuple(left), conflicts=tuple(conflicts), overwritten=tuple(overwritten),
        behind=tuple(behind),
    )  # fmt: skip


def _is_hidden(path: str, denied: Denied) -> bool:
    names = path.split("/")
    return any(denied.hides("/".join(names[:depth])) for depth in range(1, len(names) + 1))


def _is_below(path: str, directories: Collection[str]) -> bool:
    return bool(directories) and any(path[:at] in directories for at, letter in enumerate(path) if letter == "/")


def _is_there(change: Change, entry: HostEntry | None) -> bool:
    """Whether a directory came home already: its owner can always use it here, so that it can be put back."""
    after = change.after
    if after is None or entry is None or after.kind is not FileKind.DIRECTORY or not entry.is_directory:
        return False
    return entry.mode & 0o777 == after.mode & 0o777 | 0o700


def _added(changes: Sequence[Change]) -> "dict[str, set[str]]":
    added: dict[str, set[str]] = {}
    for change in changes:
        if change.after is not None:
            directory, _, name = relative(change.path).rpartition("/")
            while name not in added.setdefault(directory, set()):
                added[directory].add(name)  # what is above it is made, too
                directory, _, name = directory.rpartition("/")
                if not name:
                    break
    return added


def _why_not(
    path: str,
    change: Change,
    entry: HostEntry | None,
    tree: HostTree,
    owner: int,
    becoming: Collection[str],
    reachable: set[str],
    links: Collection[str],
) -> str:
    """Return what makes a change unfit for a host, whoever wants it."""
    after = change.after
    for side in (after, change.before):
        if side is not None and side.kind not in _CARRIED:
            return f"it is a {side.kind}"
    if entry is not None and entry.type not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        return "it is no file, directory or link in the project"
    if after is not None and after.kind is FileKind.FILE and after.mode & 0o7000:
        return f"it has special bits (mode {after.mode:04o})"
    if after is not None and after.kind is FileKind.SYMLINK and (why := _why_not_link(path, after, tree, links)):
        return why
    if entry is not None and owner and entry.uid != owner and not entry.is_directory:
        return "in the project it belongs to another user"
    if path.split("/", 1)[0].startswith(".mcp-sandbox-apply-"):
        return "it belongs to an apply that did not finish"
    return _why_unreachable(path, tree, becoming, reachable) if after is not None else ""


def _why_unreachable(path: str, tree: HostTree, becoming: Collection[str], reachable: set[str]) -> str:
    above = path.split("/")[:-1]
    for depth in range(1, len(above) + 1):
        directory = "/".join(above[:depth])
        if directory in reachable:
            continue
        entry = tree.look(directory)
        if entry is None or directory in becoming:
            return ""
        if not entry.is_directory:
            kind = "a link" if entry.type == stat.S_IFLNK else "no directory"
            return f"{directory!r} is {kind} in the project"
        if not tree.is_within(directory):
            return f"{directory!r} lies on another file system"
        reachable.add(directory)
    return ""


def _why_not_link(path: str, side: Side, tree: HostTree, links: Collection[str]) -> str:
    """Return why a link could lead out of the project; empty if it cannot, also by way of other links."""
    if side.text is None:
        return "where the link leads is not known"
    target = side.text.decode("utf-8", "surrogateescape")
    if target.startswith("/"):
        return f"the link leads to {target[:80]!r}, outside of the project"
    if not target or len(side.text) > _LINK_BYTES:
        return "the link leads nowhere"
    names = [name for name in target.split("/") if name not in ("", ".")]
    up = len(names) - len([*_without_leading_ups(names)])
    at = path.split("/")[:-1]
    if up > len(at):
        return f"the link leads to {target[:80]!r}, outside of the project"
    here = at[: len(at) - up]
    for name in names[up:]:
        if name == "..":
            return f"the link leads to {target[:80]!r}, which goes up again behind a name"
        here.append(name)
        entry = tree.look("/".join(here))
        if entry is not None and entry.type == stat.S_IFLNK:
            return f"the link leads on to another link of the project, {'/'.join(here)!r}"
        if "/".join(here[:-1]) in links:
            return f"the link leads through another link, {'/'.join(here[:-1])!r}"
    return ""


def _without_leading_ups(names: Sequence[str]) -> Sequence[str]:
    count = 0
    while count < len(names) and names[count] == "..":
        count += 1
    return names[count:]


def _why_protected(path: str, change: Change, names: _Names) -> str:
    after = change.after or change.before
    is_directory = after is not None and after.kind is FileKind.DIRECTORY
    parts = path.split("/")
    for at, name in enumerate(parts, 1):
        is_last_piece = name.casefold() in ("objects", "refs") and names.tree.look("/".join(parts[:at])) is None
        if is_last_piece and (why := why_protected("/".join([*parts[: at - 1], "HEAD"]), names.of)):
            return why  # of a repository whose other pieces came before
        if name.casefold() != ".git":
            continue
        entry = names.tree.look("/".join(parts[:at]))
        if entry is None or not entry.is_directory:
            return "it belongs to a new repository, and git obeys that"
    return why_protected(path, names.of, is_directory=is_directory)


def _with_what_stays(
    ready: Sequence[Homebound], tree: HostTree, left: "list[Stopped]", conflicts: "list[Stopped]"
) -> "list[Homebound]":
    """Leave directories whose content does not all go with them; what the sandbox never saw is a conflict."""
    going = {one.path for one in ready if one.change.after is None or not _stays_directory(one)}
    staying = {one.path for one in (*left, *conflicts)}
    kept: list[Homebound] = []
    for one in sorted(ready, key=lambda one: one.path.count("/"), reverse=True):
        rest: list[str] = []
        if one.entry is not None and one.entry.is_directory and one.path in going:
            rest = [name for name in tree.names(one.path) if f"{one.path}/{name}" not in going]
        if not rest:
            kept.append(one)
            continue
        going.discard(one.path)
        if any(f"{one.path}/{name}" in staying for name in rest):
            left.append(Stopped(path=one.path, why="something in it stays"))
        else:
            conflicts.append(Stopped(path=one.path, why=f"it holds {rest[0]!r}, which the sandbox has not seen"))
        staying.add(one.path)
    return sorted(kept, key=lambda one: one.path)


def _stays_directory(one: Homebound) -> bool:
    return one.change.after is not None and one.change.after.kind is FileKind.DIRECTORY
