"""New sandboxes that a manifest wants prepared: done once in a passing sandbox, kept as a snapshot, started from there.

What is kept is found again by the digest of all that it depends on, by every server and command of the user.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.errors import CapacityError, NotFoundError, StateError, UnsupportedError
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec, WorkspaceMode
from mcp_sandbox.core.snapshot import NativeContent, Snapshot, SnapshotId, SnapshotRequest
from mcp_sandbox.service.demands import Demands
from mcp_sandbox.service.passing import PassingSandbox
from mcp_sandbox.service.preparation import file_contents, inputs_digest
from mcp_sandbox.service.setup_steps import prepare
from mcp_sandbox.store.atomic import alocked
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.store.record import Owner, now
from mcp_sandbox.store.snapshots import SnapshotStore, StoredSnapshot

__all__ = ["Preparer"]

PATIENCE_S: Final = 35.0
"""How long a call of a client waits; the work goes on behind it."""
_LOCK_S: Final = 7200.0
_DISCARD_S: Final = 30.0
_KEPT: Final = 3
"""Results that are kept of a project on a provider: for as many states of what they depend on."""
_NOTHING: Final = SnapshotId("")
"""What is noted where a look was all that there was to do."""


@dataclass(slots=True, eq=False)
class _Attempt:
    done: anyio.Event = field(default_factory=anyio.Event)
    began: float = field(default_factory=time.monotonic)
    doing: str = "starting"
    error: Exception | None = None


class Preparer:
    """Use as a context manager: leaving it ends what is being prepared, and nothing of it stays.

    Args:
        snapshots: Where results are kept.
        owner: Whose they are, and for which project.
        patience_s: How long somebody waits; `None` is as long as it takes.
    """

    def __init__(self, snapshots: SnapshotStore, owner: Owner, *, patience_s: float | None) -> None:
        self._snapshots = snapshots
        self._owner = owner
        self._patience_s = patience_s
        self._attempts: dict[str, _Attempt] = {}
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        """Return itself."""
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what is under way."""
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    async def make(self, provider: Provider, spec: SandboxSpec, demands: Demands) -> tuple[Sandbox, str]:
        """Return a new sandbox that is prepared as it is demanded, and what to tell about it.

        Raises:
            ConfigError: The preparation failed; names the key.
            UnsupportedError: The provider cannot keep its result.
            CapacityError: It takes longer than somebody waits, and goes on meanwhile.
        """
        preparation = demands.preparation
        if preparation.is_empty:
            return await provider.create(spec), ""
        if preparation.changes_files:
            _require_kept(provider, spec)
        copied = provider.capabilities.workspace_copied and spec.workspace.source is not None
        facts = {
            "provider": provider.name, "image": await _image(provider, spec), "env": dict(demands.env),
            "workspace": spec.workspace.mode.value, "project": self._owner.project, "runtime": spec.runtime,
            "denied": list(spec.denied),
        }  # fmt: skip
        key = await to_thread.run_sync(
            lambda: inputs_digest(preparation, self._owner.project, facts, whole=copied and preparation.changes_files)
        )
        told = ""
        for _ in range(3):
            kept = self._snapshots.setup(key)
            if kept == _NOTHING:
                return await provider.create(spec), told
            if kept is not None and (content := self._content(kept)) is not None:
                try:
                    return await provider.restore(content, spec), told
                except NotFoundError:
                    self._snapshots.forget_setup(key)
            told = await self._prepared(key, provider, spec, demands)
        raise StateError("No sandbox", why="what was prepared for it is deleted again and again", fix="Stop that first")

    def _content(self, snapshot: SnapshotId) -> NativeContent | None:
        try:
            return self._snapshots.load(snapshot).snapshot.native
        except NotFoundError:
            return None

    async def _prepared(self, key: str, provider: Provider, spec: SandboxSpec, demands: Demands) -> str:
        """Return once the work is done, begun now or by somebody before."""
        if (attempt := self._attempts.get(key)) is None:
            attempt = self._attempts[key] = _Attempt()
            self._tasks.start_soon(self._work, attempt, key, provider, spec, demands)
        with anyio.move_on_after(self._patience_s):
            await attempt.done.wait()
        took_s = time.monotonic() - attempt.began
        if not attempt.done.is_set():
            raise CapacityError(
                "The sandbox is being prepared", why=f"{attempt.doing}, for {took_s:.0f} s in all",
                fix="Call again; the work goes on meanwhile",
            )  # fmt: skip
        if attempt.error is not None:
            raise attempt.error
        return f"the sandbox was prepared as the manifest says ({took_s:.1f} s); the result is kept for the next one"

    async def _work(self, attempt: _Attempt, key: str, provider: Provider, spec: SandboxSpec, demands: Demands) -> None:
        try:
            lock = self._snapshots.setup_lock()
            async with alocked(lock, wait_s=_LOCK_S, what="Setup"):
                kept = self._snapshots.setup(key)
                if kept is None or (kept != _NOTHING and self._content(kept) is None):
                    await self._carry_out(key, provider, spec, demands, lambda doing: setattr(attempt, "doing", doing))
        except Exception as error:  # noqa: BLE001 (told to whoever waits)
            attempt.error = error
        finally:
            del self._attempts[key]
            attempt.done.set()

    async def _carry_out(
        self, key: str, provider: Provider, spec: SandboxSpec, demands: Demands, tell: Callable[[str], None]
    ) -> None:
        preparation = demands.preparation
        files = await to_thread.run_sync(file_contents, preparation, self._owner.project)
        passing = SandboxSpec(
            id=new_sandbox_id(), image=spec.image, fetch_image=spec.fetch_image, runtime=spec.runtime,
            workspace=spec.workspace, denied=spec.denied, network=spec.network, limits=spec.limits,
            best_effort=spec.best_effort, labels=spec.labels,
        )  # fmt: skip
        async with PassingSandbox(provider, passing) as sandbox:
            await prepare(sandbox, preparation, files, demands.env, tell)
            if not preparation.changes_files:
                self._snapshots.note_setup(key, _NOTHING)
                return
            tell("keeping the result")
            native = await sandbox.snapshot(SnapshotRequest())
        try:
            note = f"setup {key[:12]}: what new sandboxes start from"
            snapshot = Snapshot(
                sandbox=passing.id,
                parent=None,
                created_at=now(),
                note=note,
                native=native,
                image=spec.image or "",
                denied=spec.denied,
            )
            self._snapshots.save(StoredSnapshot(snapshot=snapshot, owner=self._owner))
            self._snapshots.note_setup(key, snapshot.id)
        except BaseException:
            with anyio.move_on_after(_DISCARD_S, shield=True):
                await provider.discard(native)
            raise
        await self._drop_old(provider)

    async def _drop_old(self, provider: Provider) -> None:
        """Delete the results that newer ones took the place of; what stands on them keeps all it needs."""
        keys = {snapshot: key for key, snapshot in self._snapshots.setups().items()}
        stored = await to_thread.run_sync(
            lambda: self._snapshots.list(principal=self._owner.principal, project=self._owner.project)
        )
        own = [each for each in stored if each.id in keys and each.snapshot.native.provider == provider.name]
        for old in own[:-_KEPT]:
            if len(self._snapshots.natives(old)) > 1:  # somebody took it to another provider
                continue
            with anyio.CancelScope(shield=True):
                self._snapshots.forget_setup(keys[old.id])
                self._snapshots.retire(old.id)  # from then on whoever cleans up goes on, if we are killed
                await provider.discard(old.snapshot.native)
                await to_thread.run_sync(self._snapshots.delete, old.id)


def _require_kept(provider: Provider, spec: SandboxSpec) -> None:
    what = "`setup`, `files` and `environment.dependencies` cannot be carried out"
    if not (
        provider.capabilities.supports(Verb.SNAPSHOT) and provider.capabilities.supports(Verb.CREATE_FROM_SNAPSHOT)
    ):
        raise UnsupportedError(
            what, why=f"provider {provider.name!r} keeps no snapshots", fix="Leave them out, or use another provider"
        )
    if spec.workspace.mode is WorkspaceMode.MOUNT:
        raise UnsupportedError(
            what, why="the workspace is the project itself, which no snapshot holds", fix="Use `workspace: overlay`"
        )


async def _image(provider: Provider, spec: SandboxSpec) -> str:
    """Return what tells one content of an image from another, as far as the provider says."""
    if spec.image is None or not provider.capabilities.supports(Verb.IMAGES):
        return f"{spec.image or ''} {provider.capabilities.base}"
    return next((f"{each.name} {each.content}" for each in await provider.images() if each.name == spec.image), "")
