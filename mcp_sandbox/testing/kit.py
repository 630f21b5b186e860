"""The whole contract as one class: subclass it, override `provider`, and every promise is checked."""

from mcp_sandbox.testing.archives import ArchiveContract
from mcp_sandbox.testing.directories import DirectoryContract
from mcp_sandbox.testing.execution import ExecutionContract
from mcp_sandbox.testing.files import FileContract
from mcp_sandbox.testing.lifecycle import LifecycleContract

__all__ = ["ProviderContract"]


class ProviderContract(
    LifecycleContract,
    ExecutionContract,
    FileContract,
    DirectoryContract,
    ArchiveContract,
):
    """Everything."""
