"""The use cases of one server, bundled for whoever calls them."""

from dataclasses import dataclass

from mcp_sandbox.service.applying import ApplyService
from mcp_sandbox.service.changes import ChangeService
from mcp_sandbox.service.execution import ExecutionService
from mcp_sandbox.service.files import FileService
from mcp_sandbox.service.ports import PortService
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.search import SearchService
from mcp_sandbox.service.snapshots import SnapshotService

__all__ = ["Services"]


@dataclass(frozen=True, slots=True)
class Services:
    """One object per group of use cases."""

    sandboxes: SandboxService
    execution: ExecutionService
    files: FileService
    search: SearchService
    snapshots: SnapshotService
    ports: PortService
    changes: ChangeService
    applying: ApplyService
    may_apply: bool = False
    """Whether the user lets models change the project without being asked."""
