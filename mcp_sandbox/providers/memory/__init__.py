"""The in-memory provider: a faithful double for tests, without processes, disk or network."""

from mcp_sandbox.providers.memory.provider import MemoryProvider
from mcp_sandbox.providers.memory.sandbox import MemorySandbox

__all__ = ["MemoryProvider", "MemorySandbox"]
