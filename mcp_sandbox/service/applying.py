"""Changes of a sandbox come home into its project: all that were chosen or none, and the way back.

`service/bases.py` says what a conflict is, `service/coming_home.py` what may come home at all, `hostfs/transaction.py`
how everything happens or nothing does.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from anyio import to_thread

from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.differences import Change, DiffRequest, LiveState
from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, StateError, UnsupportedError
from mcp_sandbox.core.files import FileKind, StatRequest
from mcp_sandbox.core.provider import Provider, unsupported
from mcp_sandbox.core.sandbox import WORKSPACE
from mcp_sandbox.hostfs.host_tree import HostTree
from mcp_sandbox.hostfs.staging import Stage
from mcp_sandbox.hostfs.transaction import before_of, revert_all
from mcp_sandbox.service.bases import has_way_home, learned, look_again, note_put_back, origin, relative, seen_lock
from mcp_sandbox.service.carrying import Approve, Carrier, digest_of
from mcp_sandbox.service.coming_home import Plan, planned
from mcp_sandbox.service.paths import display, resolve
from mcp_sandbox.service.sandboxes import LiveSandbox, SandboxService
from mcp_sandbox.service.telling import using
from mcp_sandbox.service.undoing import undo_last
from mcp_sandbox.store.applied import AppliedStore
from mcp_sandbox.store.atomic import alocked, locked
from mcp_sandbox.store.record import SandboxRecord
from mcp_sandbox.store.seen import Home, Seen, load_seen, save_seen

__all__ = ["Applied", "ApplyService", "Undone"]

_MOST: Final = 20_000
"""Changes that come home at a time."""
_NAMED: Final = 10
_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What came home, or would."""

    plan: Plan
    done: bool
    sandbox: LiveSandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What an undo put back."""

    paths: tuple[str, ...]
    at: str
    """When it had been applied."""


class ApplyService:
    """Changes a project of the host. Nothing here is reached by a model unless the user said so.

    Args:
        sandboxes: Opened by whoever made this.
        directory: Where it is remembered what was applied, for the way back.
    """

    def __init__(self, sandboxes: SandboxService, directory: Path) -> None:
        self._sandboxes = sandboxes
        self._directory = directory

    async def apply(
        self,
        handle: str | None = None,
        paths: Sequence[str] = (),
        *,
        dry_run: bool = False,
        protected: bool = False,
        overwrite: bool = False,
        approve: Approve | None = None,
    ) -> Applied:
        """Bring changes home, all that can be or none.

        Args:
            handle: The sandbox; the project's default without one.
            paths: Only these, and what is below them; everything without any.
            dry_run: Say what would happen, conflicts too, and change nothing.
            protected: Bring protected names as well: a person said so.
            overwrite: Bring what the project changed, too: a person said so.
            approve: Asked when it is known what comes home, to the byte, and nothing has changed.

        Raises:
            StateError: Something changed in the project; names what, and how. Nothing was applied.
            InvalidRequestError: A path that was named cannot come home, or nothing is there that could.
            UnsupportedError: The provider cannot tell what changed.
        """
        asked = [resolve(path) for path in paths]
        async with using(self._sandboxes, await self._existing(handle)) as live:
            _require_way_home(live.record)
            store = await to_thread.run_sync(AppliedStore, self._directory, live.record.project)
            async with alocked(store.lock, wait_s=_WAIT_S, what="The project"):
                await to_thread.run_sync(_recover, store, live.record.project)
                provider = await self._sandboxes.provider(live.record.provider)
                plan = await self._plan(provider, live, asked, protected=protected, overwrite=overwrite)
                _require_named(plan, asked)
                if plan.conflicts and not dry_run:
                    raise _conflicting(plan)
                if dry_run or not plan.ready:
                    return Applied(plan=plan, done=False, sandbox=live)
                with _told("Nothing applied"):
                    brought = await Carrier(store, live, approve).carry(plan)
                await to_thread.run_sync(_note_home, live, brought)
        return Applied(plan=plan, done=True, sandbox=live)

    async def undo(self, project: str) -> Undone:
        """Put back what was there before the last apply, unless somebody changed it since.

        Raises:
            NotFoundError: Nothing was applied that is still known.
            StateError: It changed since; names what. Nothing was put back.
        """
        store = await to_thread.run_sync(AppliedStore, self._directory, project)
        async with alocked(store.lock, wait_s=_WAIT_S, what="The project"):
            killed = await to_thread.run_sync(store.newest)
            if await to_thread.run_sync(_recover, store, project) and killed is not None:  # that was the last one
                return Undone(paths=tuple(sorted(before_of(killed.operations))), at=killed.at)
            record = await to_thread.run_sync(store.newest)
            if record is None:
                raise NotFoundError(
                    "Nothing undone", why="nothing that came home to this project is remembered",
                    fix="Look at the project's version control",
                )  # fmt: skip
            with _told("Nothing undone"):
                paths = await to_thread.run_sync(undo_last, store, record, project)
            await to_thread.run_sync(note_put_back, Path(record.sandbox), project, paths, record.overwritten)
            return Undone(paths=paths, at=record.at)

    async def _existing(self, handle: str | None) -> str:
        record = await self._sandboxes.find(handle)
        if record is None:
            raise NotFoundError(
                "Nothing applied", why="this project has no sandbox yet", fix="Use a sandbox first, or name one"
            )
        return record.id

    async def _plan(
        self, provider: Provider, live: LiveSandbox, asked: Sequence[str], *, protected: bool, overwrite: bool
    ) -> Plan:
        record = live.record
        if not provider.capabilities.supports(Verb.DIFF):
            raise unsupported(record.provider, Verb.DIFF)
        await look_again(provider, record, live.directory)
        request = DiffRequest(
            before=origin(record), after=LiveState(sandbox=record.id),
            paths=tuple(asked) or (WORKSPACE,), limit=_MOST,
        )  # fmt: skip
        found = await provider.diff(request)
        if found.truncated or found.unseen:
            raise InvalidRequestError(
                "Nothing applied",
                why=f"there are more than {_MOST:,} changes" if found.truncated
                else f"{display(found.unseen[0])} could not be looked at",
                fix="Name paths, so that it is less",
            )  # fmt: skip
        changes = [await _with_target(live, change) for change in found.changes if _is_below(change.path, asked)]
        seen = await to_thread.run_sync(load_seen, live.directory)
        unchanged = [path for path in map(relative, _paths(changes)) if await _is_as_it_came_home(live, seen, path)]

        def plan() -> Plan:
            with HostTree(Path(record.project)) as tree:
                bases = learned(
                    seen, changes, tree, since_ns=record.project_since_ns, copied=provider.capabilities.workspace_copied
                )
                return planned(
                    changes, tree, seen, bases, unchanged_since_home=frozenset(unchanged), denied=record.denied,
                    protected=protected, overwrite=overwrite, owner=os.geteuid(),
                )  # fmt: skip

        return await to_thread.run_sync(plan)


@contextmanager
def _told(what: str) -> Generator[None]:
    """Say in words what a file system refused; what was done by then is put back."""
    try:
        yield
    except OSError as error:
        raise StateError(
            what, why=f"the file system says: {os.strerror(error.errno or 0).lower()}",
            fix="Look whether you may write there, and whether the disk is full; then try again",
        ) from error  # fmt: skip


def _require_way_home(record: SandboxRecord) -> None:
    """Return if changes of a sandbox can come home at all.

    Raises:
        UnsupportedError: It has no project, or works in it.
    """
    if record.project and record.workspace == "mount":
        raise UnsupportedError(
            "Nothing applied", why="the workspace is the project itself: what changes there is changed there",
            fix="Nothing needs to be done",
        )  # fmt: skip
    if not has_way_home(record):
        raise UnsupportedError(
            "Nothing applied", why="the workspace of this sandbox did not begin as a project",
            fix="Fetch what you need: `mcp-sandbox exec -- tar c .`",
        )  # fmt: skip


def _recover(store: AppliedStore, project: str) -> bool:
    """Put back what an apply that was killed had changed; return whether there was one. Hold the lock. Blocks."""
    record = store.newest()
    if record is None:
        return False
    with HostTree(Path(project)) as tree:
        entry = tree.look(record.stage)
        if entry is not None and entry.is_directory:
            with Stage(tree, record.stage, exists=True) as stage:
                if not record.finished and (left := revert_all(tree, stage.descriptor, record.operations)):
                    raise StateError(
                        "Nothing applied", why=f"an apply was killed, and {left[0]!r} cannot be put back",
                        fix=f"Look into {record.stage} in the project, put back what you need, and remove it",
                    )  # fmt: skip
                stage.remove()
    if not record.finished:
        store.remove(record)
        before = before_of(record.operations)
        note_put_back(Path(record.sandbox), project, before, record.overwritten, before=before)
    return not record.finished and not record.is_undo


def _paths(changes: Sequence[Change]) -> Sequence[str]:
    return [change.path for change in changes]


def _is_below(path: str, asked: Sequence[str]) -> bool:
    inside = path == WORKSPACE or path.startswith(f"{WORKSPACE}/")
    return inside and (not asked or any(f"{path}/".startswith(f"{each.rstrip('/')}/") for each in asked))


async def _with_target(live: LiveSandbox, change: Change) -> Change:
    """Return a change that says where its link leads."""
    if change.after is None or change.after.kind is not FileKind.SYMLINK:
        return change
    try:
        info = await live.sandbox.stat(StatRequest(path=change.path, follow=False))
    except OSError:
        return change
    target = os.fsencode(info.link_target) if info.link_target is not None else None
    return replace(change, after=replace(change.after, text=target))


async def _is_as_it_came_home(live: LiveSandbox, seen: Seen, path: str) -> bool:
    home = seen.homes.get(path)
    return home is not None and home.digest == await digest_of(live, path)


def _require_named(plan: Plan, asked: Sequence[str]) -> None:
    """Refuse what was named itself and does not come; what lies below, or was not named, is told."""
    named = {relative(path.rstrip("/")) for path in asked}
    stopped = [one for one in plan.left if one.path in named]
    if stopped:
        raise InvalidRequestError(
            "Nothing applied",
            why="; ".join(f"{display(one.path)} stays in the sandbox: {one.why}" for one in stopped[:_NAMED]),
            fix="Leave it out",
        )
    if asked and not (plan.ready or plan.left or plan.conflicts or plan.behind):
        raise InvalidRequestError(
            "Nothing applied", why=f"nothing changed at {', '.join(display(path) for path in asked[:_NAMED])}",
            fix="See what did with `changes`",
        )  # fmt: skip


def _conflicting(plan: Plan) -> StateError:
    shown = [f"{display(one.path)} ({one.why})" for one in plan.conflicts[:_NAMED]]
    if len(plan.conflicts) > _NAMED:
        shown.append(f"{len(plan.conflicts) - _NAMED} more")
    return StateError(
        "Nothing applied", why=f"the project changed where the sandbox did: {', '.join(shown)}",
        fix="Apply other paths, or let a person look at both: `mcp-sandbox apply --overwrite PATH` takes the sandbox's",
    )  # fmt: skip


def _note_home(live: LiveSandbox, brought: "dict[str, Home]") -> None:
    with locked(seen_lock(live.directory)):
        seen = load_seen(live.directory)
        bases = {path: base for path, base in seen.bases.items() if path not in brought}
        save_seen(live.directory, replace(seen, bases=bases, homes={**seen.homes, **brought}))
