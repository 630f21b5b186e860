"""Blank sandboxes that were started ahead: `create` hands one out where it fits, and another is started behind it.

A blank one is a sandbox of the engine like any other, made from the same spec, with a label that says which process
keeps it ready. What a killed process kept, the next one that looks for leftovers removes.
"""

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio

from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.delegation import DelegatingProvider
from mcp_sandbox.core.errors import SandboxError, SandboxGoneError, StateError
from mcp_sandbox.core.files import StatRequest
from mcp_sandbox.core.image import Image, ImageRequest
from mcp_sandbox.core.leftovers import KEEPER, Leftover, Remembered
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxInfo, SandboxSpec, Workspace, WorkspaceMode

__all__ = ["PooledProvider"]

_LOG = logging.getLogger(__name__)
_ALIVE_S: Final = 2.0
"""How long a blank one may take to show that it lives."""
_CLOSE_S: Final = 4.0
_NOBODY: Final = SandboxId("blank")


@dataclass(frozen=True, slots=True)
class _Blank:
    spec: SandboxSpec
    """What it fits: id, env and labels left out."""
    sandbox: Sandbox


class PooledProvider(DelegatingProvider):
    """Hands out what was started ahead, as long as it lives and was made from the same spec.

    Args:
        inner: The provider that makes them; without `Verb.ADOPT` none are kept, and the log says so.
        size: How many are kept ready; with none it still clears away what others left.
    """

    def __init__(self, inner: Provider, *, size: int = 0) -> None:
        super().__init__(inner)
        self._size = size
        self._blanks: list[_Blank] = []
        self._wanted: SandboxSpec | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._filling: asyncio.Task[None] | None = None
        self._keeper = _this_process()

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        """Return the sandbox itself: what it is does not depend on where it came from."""
        return sandbox

    async def __aenter__(self) -> Self:
        """Reach the engine."""
        await super().__aenter__()
        if self._size and not self.capabilities.supports(Verb.ADOPT):
            self._size = 0
            _LOG.warning(
                "no sandboxes kept ready: provider %r cannot hand out what was started ahead; "
                "--pool (MCP_SANDBOX_POOL) does nothing for it",
                self.name,
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Destroy what was not handed out, and let go of the engine."""
        self._size = 0
        with anyio.move_on_after(_CLOSE_S, shield=True):
            if self._filling is not None:
                self._filling.cancel()
            self._discard_all()
            while self._tasks:
                await asyncio.wait(self._tasks)
        await super().__aexit__(kind, error, trace)

    async def prepare(self, spec: SandboxSpec) -> None:
        """Start some for a spec, behind the answer."""
        await super().prepare(spec)
        self._refill(self._fitting(spec))

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Hand one out, or make one; then see to it that enough are ready for the next."""
        fitting = self._fitting(spec)
        try:
            return await self._taken(fitting, spec) or await self._inner.create(spec)
        finally:
            self._refill(fitting)

    async def list(self) -> Sequence[SandboxInfo]:
        """List the sandboxes that were handed out."""
        return [info for info in await self._inner.list() if KEEPER not in info.labels]

    async def add_image(self, request: ImageRequest) -> Image:
        """Add an image; what was started from another one of this name is not handed out any more."""
        image = await super().add_image(request)
        self._discard_all()
        return image

    async def collect(
        self, remembered: Remembered, *, kept_s: float, now: float, dry_run: bool = False
    ) -> Sequence[Leftover]:
        """Remove what killed processes kept ready, then what the engine finds; what live ones keep stays."""
        found: list[Leftover] = []
        ready: set[SandboxId] = set()
        for info in await self._inner.list():
            keeper = info.labels.get(KEEPER)
            if keeper is None:
                continue
            if _is_alive(keeper):
                ready.add(info.id)
                continue
            found.append(Leftover(kind="sandbox", name=info.id, why="whoever kept it ready is dead"))
            if not dry_run:
                await self._inner.destroy(info.id)

        def known(sandbox: SandboxId) -> bool:
            return sandbox in ready or remembered.sandbox(sandbox)

        remembered_all = replace(remembered, sandbox=known)
        return [*found, *await self._inner.collect(remembered_all, kept_s=kept_s, now=now, dry_run=dry_run)]

    # ------------------------------------------------------------------------------------------ handing out

    def _fitting(self, spec: SandboxSpec) -> SandboxSpec:
        """Return what blank sandboxes are made from that can become this one."""
        copied = self.capabilities.workspace_copied and spec.workspace.mode is not WorkspaceMode.MOUNT
        workspace = Workspace() if copied else spec.workspace
        return replace(spec, id=_NOBODY, env={}, labels={}, workspace=workspace)

    async def _taken(self, fitting: SandboxSpec, spec: SandboxSpec) -> Sandbox | None:
        while (blank := next((each for each in self._blanks if each.spec == fitting), None)) is not None:
            self._blanks.remove(blank)
            try:
                with anyio.fail_after(_ALIVE_S):
                    await blank.sandbox.stat(StatRequest(path="/"))
                return await blank.sandbox.adopt(spec)
            except (SandboxError, OSError) as error:
                if isinstance(error, StateError) and not isinstance(error, SandboxGoneError):  # the id is taken
                    self._blanks.append(blank)
                    raise
                _LOG.info("a sandbox that was kept ready cannot be used: %s", error)
                self._discard(blank)
            except BaseException:
                self._discard(blank)
                raise
        return None

    # ------------------------------------------------------------------------------------------ keeping ready

    def _refill(self, fitting: SandboxSpec) -> None:
        self._wanted = fitting
        if self._size and (self._filling is None or self._filling.done()):
            self._filling = self._behind(self._fill())

    def _behind(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _fill(self) -> None:
        try:
            while (wanted := self._wanted) is not None:
                for other in [each for each in self._blanks if each.spec != wanted]:
                    self._blanks.remove(other)
                    self._discard(other)
                if len(self._blanks) >= self._size:
                    return
                spec = replace(wanted, id=SandboxId(f"ready-{secrets.token_hex(12)}"), labels={KEEPER: self._keeper})
                made = await self._inner.create(spec)
                self._blanks.append(_Blank(wanted, made))
        except (SandboxError, OSError) as error:  # whoever asks for the next sandbox is told why there is none
            _LOG.info("no sandbox kept ready: %s", error)

    def _discard_all(self) -> None:
        while self._blanks:
            self._discard(self._blanks.pop())

    def _discard(self, blank: _Blank) -> None:
        self._behind(self._destroyed(blank.sandbox))

    async def _destroyed(self, sandbox: Sandbox) -> None:
        with suppress(SandboxError, OSError):
            await sandbox.aclose()
            await self._inner.destroy(sandbox.id)


def _this_process() -> str:
    return f"{os.getpid()}/{_started(os.getpid())}"


def _is_alive(keeper: str) -> bool:
    """Whether a process lives that is called so; where nobody can say, it does."""
    number, _, started = keeper.partition("/")
    if sys.platform != "linux" or not number.isdecimal():
        return True
    return _started(int(number)) == started


def _started(process: int) -> str:
    """Return when a process was started, and since which boot that is counted; empty if there is none."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{fields[19]}/{boot}"
