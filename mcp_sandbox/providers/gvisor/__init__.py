"""Provider `gvisor`: a kernel of its own for every sandbox. Linux only; needs runsc, and neither Docker nor root."""

from mcp_sandbox.providers.gvisor.provider import GvisorProvider
from mcp_sandbox.providers.gvisor.sandbox import GvisorSandbox

__all__ = ["GvisorProvider", "GvisorSandbox"]
