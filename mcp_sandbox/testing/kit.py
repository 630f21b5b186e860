"""The whole contract as one class: subclass it, override `provider`, and every promise is checked."""

from mcp_sandbox.testing.adoption import AdoptionContract
from mcp_sandbox.testing.archives import ArchiveContract
from mcp_sandbox.testing.confinement import ConfinementContract
from mcp_sandbox.testing.denials import DenialContract
from mcp_sandbox.testing.differences import DifferenceContract
from mcp_sandbox.testing.directories import DirectoryContract
from mcp_sandbox.testing.execution import ExecutionContract
from mcp_sandbox.testing.files import FileContract
from mcp_sandbox.testing.kernel import KernelContract
from mcp_sandbox.testing.lifecycle import LifecycleContract
from mcp_sandbox.testing.limits import LimitContract
from mcp_sandbox.testing.memory import MemoryContract
from mcp_sandbox.testing.ports import PortContract
from mcp_sandbox.testing.snapshots import SnapshotContract
from mcp_sandbox.testing.trees import ProcessTreeContract
from mcp_sandbox.testing.workspaces import WorkspaceContract

__all__ = ["ProviderContract"]


class ProviderContract(
    LifecycleContract,
    ExecutionContract,
    ProcessTreeContract,
    FileContract,
    DirectoryContract,
    ArchiveContract,
    SnapshotContract,
    MemoryContract,
    DifferenceContract,
    WorkspaceContract,
    DenialContract,
    AdoptionContract,
    ConfinementContract,
    KernelContract,
    LimitContract,
    PortContract,
):
    """Everything."""
