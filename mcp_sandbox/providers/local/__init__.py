"""Provider `local`: the embedded engine. Linux only; no daemon, no image, no privilege."""

from mcp_sandbox.providers.local.provider import LocalProvider
from mcp_sandbox.providers.local.sandbox import LocalSandbox

__all__ = ["LocalProvider", "LocalSandbox"]
