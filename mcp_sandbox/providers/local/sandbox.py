"""One sandbox of the embedded engine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Self

import anyio.to_thread

from mcp_sandbox.core.admission import require_enforceable
from mcp_sandbox.core.provider import Forked, Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.engines.carrier import gone
from mcp_sandbox.engines.diagnosis import explained
from mcp_sandbox.engines.layer_store import destroyed
from mcp_sandbox.engines.layered_sandbox import LayeredSandbox, timestamp
from mcp_sandbox.engines.layering import capture, freeze, restore_layers
from mcp_sandbox.engines.local_carrier import LocalCarrier
from mcp_sandbox.hostfs.atomic import alocked

__all__ = ["NAME", "LocalSandbox"]

NAME: Final = "local"


class LocalSandbox(LayeredSandbox[LocalCarrier]):
    """Its init is an agent that passes descriptors."""

    @property
    def provider_name(self) -> str:
        return NAME

    async def connect(self) -> LocalCarrier:
        """Return the live connection, making one and starting init if need be."""
        carrier = self._carrier
        if carrier is not None and not carrier.closed:
            return carrier
        async with self._connecting:
            if self._closed:
                raise gone()
            if self._carrier is not None and not self._carrier.closed:
                return self._carrier
            with explained(self._engine.store.root):
                self._carrier = await self._engine.connect(self.id)
                if self._carrier is None:
                    try:
                        async with alocked(self._engine.store.lock(self.id), what="Sandbox"):
                            self._carrier = await self._engine.connect(self.id) or await self._engine.start(
                                self._loaded()
                            )
                    except FileNotFoundError:
                        raise destroyed(self.id) from None
            if self._closed:  # meanwhile
                await self._carrier.aclose()
                raise gone()
            return self._limited(self._carrier)

    async def begin(self) -> None:
        with explained(self._engine.store.root):
            async with alocked(self._engine.store.lock(self.id), what="Sandbox"):
                self._carrier = self._limited(await self._engine.start(self._state))

    def take(self, carrier: LocalCarrier) -> Self:
        """Use a connection that was made already."""
        self._carrier = self._limited(carrier)
        return self

    def _limited(self, carrier: LocalCarrier) -> LocalCarrier:
        carrier.limits = self._watched()
        return carrier

    async def snapshot(self, request: SnapshotRequest) -> NativeContent:
        self._require_held(request)
        await self._shallow()
        async with self._held(), alocked(self._engine.store.structure_lock(), shared=True):
            frozen = await freeze(self._engine, self.id)
        self._start_again()
        return NativeContent(
            provider=NAME, ref=frozen.ref, holds=self._capabilities.snapshot_holds, size_bytes=frozen.size_bytes,
            paused_s=frozen.paused_s, method=frozen.method,
        )  # fmt: skip

    async def restore(self, content: NativeContent) -> None:
        async with self._held():
            await restore_layers(self._engine, self.id, content.ref)
        self._start_again()

    async def fork(self, specs: Sequence[SandboxSpec]) -> Forked:
        for spec in specs:
            require_enforceable(NAME, self._capabilities, spec)
        await self._shallow()
        async with self._held(), alocked(self._engine.store.structure_lock(), shared=True):
            return await self._copies(specs, await capture(self._engine, self.id))

    async def adopt(self, spec: SandboxSpec) -> Sandbox:
        require_enforceable(NAME, self._capabilities, spec)
        state = replace(self._state, id=spec.id, env=dict(spec.env), labels=dict(spec.labels), created_at=timestamp())
        if spec.image is None:
            base = await self._engine.bases.current()
        else:
            base = await anyio.to_thread.run_sync(self._engine.images.base_of, spec.image)
        carrier = self._carrier
        if carrier is None or carrier.closed or base != self._state.base:
            raise gone()
        async with alocked(self._engine.store.structure_lock(), shared=True):  # nobody looks for unused layers
            self._engine.store.adopt(self.id, state)
        self._carrier = None
        await self.aclose()
        return self._sibling(state).take(carrier)
