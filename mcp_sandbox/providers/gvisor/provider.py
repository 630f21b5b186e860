"""Provider `gvisor`: runsc on the embedded engine's layers, started by its launcher."""

import secrets
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Final, Self

from mcp_sandbox.core.capability import (
    Capabilities,
    Facet,
    Isolation,
    NetworkMode,
    Support,
    Verb,
    VerbSupport,
    WorkspaceMode,
)
from mcp_sandbox.core.differences import Differences, DiffRequest
from mcp_sandbox.core.examination import Examination, Fence
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.leftovers import EXPIRES
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.engines.diagnosis import explained
from mcp_sandbox.engines.layer_store import EngineState, StoredSnapshot
from mcp_sandbox.engines.layered_provider import LayeredProvider
from mcp_sandbox.engines.runsc import find_runsc
from mcp_sandbox.engines.runsc_engine import RunscEngine
from mcp_sandbox.engines.runsc_memory import require_readable
from mcp_sandbox.engines.runsc_plan import AGENT
from mcp_sandbox.providers.gvisor.sandbox import NAME, GvisorSandbox

__all__ = ["GvisorProvider"]

EXAMINED_S = 20.0
_MADE_BY_RUNSC: Final[Collection[str]] = (AGENT, "/sys")
"""Where it mounts something: nobody's change."""
_LONG_AGO = "1970-01-01T00:00:00.000Z"


class GvisorProvider(LayeredProvider[GvisorSandbox]):
    """Sandboxes of gVisor."""

    @property
    def name(self) -> str:
        return NAME

    async def __aenter__(self) -> Self:
        with explained(self._root):
            self._runsc = await self._stack.enter_async_context(RunscEngine(self._root, await find_runsc()))
            self._engine = self._runsc
        native = VerbSupport(Support.NATIVE)
        self._capabilities = Capabilities(
            isolation=Isolation.USER_KERNEL,
            verbs={
                Verb.SNAPSHOT: VerbSupport(Support.NATIVE, "with memory and processes, which stand still meanwhile"),
                Verb.RESTORE: VerbSupport(Support.NATIVE, "ends what runs, and goes on with what ran at the snapshot"),
                Verb.CREATE_FROM_SNAPSHOT: native,
                Verb.FORK: native,
                Verb.DIFF: native,
                Verb.EXPOSE: native,
                Verb.IMAGES: VerbSupport(Support.NATIVE, "directories, tar and docker archives; built by debootstrap"),
            },
            snapshot_holds=frozenset({Facet.FILES, Facet.MEMORY}),
            network=frozenset({NetworkMode.NONE}),
            limits=self._engine.limiting.enforced,
            max_concurrent=256,
            keeps_fifos=False,
            owners=self._engine.identity.is_range,
            denies=frozenset({WorkspaceMode.OVERLAY}),
            base=self._engine.bases.name(),
        )
        return self

    def _sandbox(self, state: EngineState) -> GvisorSandbox:
        return GvisorSandbox(self._runsc, self._capabilities, state, self._open)

    async def _ready(self, spec: SandboxSpec, start: StoredSnapshot) -> GvisorSandbox:
        require_readable(self._runsc, start)
        return await self._new(spec, start)

    async def diff(self, request: DiffRequest) -> Differences:
        found = await super().diff(request)
        changes = tuple(change for change in found.changes if change.path not in _MADE_BY_RUNSC)
        return replace(found, changes=changes)

    async def examine(self) -> Examination:
        """Start a throw-away sandbox, and see that its kernel is gVisor's."""
        began = time.perf_counter()
        spec = SandboxSpec(id=SandboxId(f"sb_examined{secrets.token_hex(8)}"), labels={EXPIRES: _LONG_AGO})
        try:
            async with await self._create(spec) as sandbox:
                kernel = sandbox.kernel
                started = time.perf_counter()
                async with await sandbox.exec(ExecRequest(argv=("true",), cwd="/", timeout_s=EXAMINED_S)) as execution:
                    await execution.wait()
        finally:
            await self.destroy(spec.id)
        ended = time.perf_counter()
        fence = Fence(name="kernel", holds=kernel.is_gvisor, detail="" if kernel.is_gvisor else f"it is {kernel}")
        return Examination(
            fences=[fence], shortcomings=self._engine.limiting.shortcomings,
            milliseconds={
                "start": round((started - began) * 1e3, 1), "exec and destroy": round((ended - started) * 1e3, 1),
            },
        )  # fmt: skip
