"""Provider `local`: the embedded engine. Linux only; no daemon, no image, no privilege."""

from typing import Self

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
from mcp_sandbox.core.examination import Examination
from mcp_sandbox.core.leftovers import KEEPER
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.engines.diagnosis import explained
from mcp_sandbox.engines.embedded import EmbeddedEngine
from mcp_sandbox.engines.layer_directories import holds_attributes
from mcp_sandbox.engines.layer_store import EngineState, StoredSnapshot
from mcp_sandbox.engines.layered_provider import LayeredProvider
from mcp_sandbox.engines.layered_sandbox import new_state
from mcp_sandbox.engines.selftest import SelfTest
from mcp_sandbox.providers.local.sandbox import NAME, LocalSandbox

__all__ = ["LocalProvider"]


class LocalProvider(LayeredProvider[LocalSandbox]):
    """Sandboxes of the embedded engine."""

    @property
    def name(self) -> str:
        return NAME

    async def __aenter__(self) -> Self:
        with explained(self._root):
            self._engine = await self._stack.enter_async_context(EmbeddedEngine(self._root))
        self._selftest = SelfTest(self._engine, self._create, self.destroy)
        native = VerbSupport(Support.NATIVE)
        self._capabilities = Capabilities(
            isolation=Isolation.NAMESPACE,
            verbs={
                Verb.SNAPSHOT: VerbSupport(Support.NATIVE, "at once while no command runs, else by a short freeze"),
                Verb.RESTORE: VerbSupport(Support.NATIVE, "ends running commands"),
                Verb.CREATE_FROM_SNAPSHOT: native,
                Verb.FORK: native,
                Verb.ADOPT: native,
                Verb.DIFF: native,
                Verb.EXPOSE: native,
                Verb.IMAGES: VerbSupport(Support.NATIVE, "directories, tar and docker archives; built by debootstrap"),
            },
            snapshot_holds=frozenset({Facet.FILES}),
            network=frozenset({NetworkMode.NONE}),
            limits=self._engine.limiting.enforced,
            unenforced=self._engine.limiting.unenforced,
            max_concurrent=256,
            owners=self._engine.identity.is_range,
            denies=frozenset({WorkspaceMode.OVERLAY}),
            base=self._engine.bases.name(),
            extended_attributes=holds_attributes(self._root),
        )
        return self

    def _sandbox(self, state: EngineState) -> LocalSandbox:
        return LocalSandbox(self._engine, self._capabilities, state, self._open)

    async def _require_working(self) -> None:
        await self._selftest.require()

    async def examine(self) -> Examination:
        return await self._selftest.examine()

    async def _ready(self, spec: SandboxSpec, start: StoredSnapshot) -> LocalSandbox:
        """Return a sandbox that was started ahead, or a new one."""
        wanted = new_state(spec, start)
        ready = await self._engine.spares.take(wanted)
        if ready is None:
            sandbox = await self._new(spec, start)
        else:
            state, carrier = ready
            sandbox = self._sandbox(state).take(carrier)
        if KEEPER not in spec.labels:  # whoever keeps some ready needs no others
            self._engine.spares.refill(wanted)
        return sandbox
