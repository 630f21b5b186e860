"""Sandboxes that are ready before somebody asks for them, by a provider that keeps some."""

import logging

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.service.sandboxes import SandboxService

__all__ = ["expect_more"]

_LOG = logging.getLogger(__name__)


async def expect_more(sandboxes: SandboxService, provider: str) -> None:
    """Let a provider know what further sandboxes of this project will be like; a failure is only logged."""
    try:
        await (await sandboxes.provider(provider)).prepare(sandboxes.contents.spec(provider))
    except SandboxError as error:
        _LOG.warning("no sandboxes kept ready: %s", error)
