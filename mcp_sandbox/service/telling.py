"""What must be told once about a sandbox is told even where the call that opened it fails."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.service.sandboxes import LiveSandbox, SandboxService

__all__ = ["using"]


@asynccontextmanager
async def using(sandboxes: SandboxService, handle: str | None) -> AsyncGenerator[LiveSandbox]:
    """Open the sandbox that a handle means; an error raised with it says the notices first.

    Raises:
        NotFoundError, InvalidRequestError, ProviderError: As `SandboxService.open`.
    """
    live = await sandboxes.open(handle)
    try:
        with sandboxes.housekeeping.usage.of(live.record.id):
            yield live
    except SandboxError as error:
        if live.notices:
            error.args = ("\n".join([*live.notices, str(error)]),)
        raise
