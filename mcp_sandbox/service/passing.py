"""Sandboxes that live for one purpose and end with it; those of killed servers are cleared away by the next one."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final

import anyio

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.leftovers import EXPIRES
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxSpec, SandboxState
from mcp_sandbox.core.snapshot import NativeContent
from mcp_sandbox.store.record import now, timestamp

__all__ = ["PassingSandbox"]

_CLEANUP_S: Final = 30.0
_EXPIRES_AFTER: Final = timedelta(hours=1)
_OWNER: Final = "mcp-sandbox.owner"


class PassingSandbox:
    """Use as a context manager, which gives the sandbox out and destroys it on every path.

    Args:
        provider: Makes it.
        spec: What it is made from.
        content: The snapshot that it starts as; a fresh one without.
    """

    def __init__(self, provider: Provider, spec: SandboxSpec, content: NativeContent | None = None) -> None:
        expires = timestamp(datetime.now(UTC) + _EXPIRES_AFTER)
        self._provider = provider
        self._content = content
        self._spec = replace(spec, labels={**spec.labels, EXPIRES: expires})
        self._sandbox: Sandbox | None = None

    async def __aenter__(self) -> Sandbox:
        """Make it, after clearing away those that killed processes left."""
        await self._sweep()
        try:
            if self._content is None:
                self._sandbox = await self._provider.create(self._spec)
            else:
                self._sandbox = await self._provider.restore(self._content, self._spec)
        except BaseException:
            await self._clean()
            raise
        return self._sandbox

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Destroy it."""
        await self._clean()

    async def _sweep(self) -> None:
        with suppress(SandboxError):
            for info in await self._provider.list():
                if info.state is SandboxState.RUNNING:
                    continue  # somebody still uses it, however long that takes
                expires = info.labels.get(EXPIRES, "")
                if expires and expires < now() and info.labels.get(_OWNER) == self._spec.labels.get(_OWNER):
                    await self._provider.destroy(info.id)

    async def _clean(self) -> None:
        with anyio.move_on_after(_CLEANUP_S, shield=True):
            if self._sandbox is not None:
                with suppress(SandboxError):
                    await self._sandbox.aclose()
            await self._provider.destroy(self._spec.id)
