"""The provider that keeps its sandboxes in this process."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.differences import Differences, DiffRequest
from mcp_sandbox.core.errors import NotFoundError
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import WORKSPACE, SandboxId, SandboxInfo, SandboxSpec, SandboxState
from mcp_sandbox.core.snapshot import NativeContent
from mcp_sandbox.providers.memory.differences import compare_trees
from mcp_sandbox.providers.memory.engine import CAPABILITIES, NAME, Record, engine_of, fresh_tree, project_tree
from mcp_sandbox.providers.memory.sandbox import MemorySandbox

__all__ = ["MemoryProvider"]


class MemoryProvider(Provider):
    """Sandboxes in the memory of this process, shared by every provider object with the same `root`."""

    def __init__(self, root: Path) -> None:
        self._engine = engine_of(root)
        self._opened: list[Sandbox] = []

    @property
    def name(self) -> str:
        """`memory`."""
        return NAME

    @property
    def capabilities(self) -> Capabilities:
        """The same everywhere."""
        return CAPABILITIES

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the commands started here; the sandboxes stay for other objects with the same root."""
        for sandbox in self._opened:
            await sandbox.aclose()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Create a sandbox, with a copy of the project if there is one."""
        self._engine.admit(spec)
        tree = fresh_tree()
        if (project := await project_tree(spec)) is not None:
            tree.directory(WORKSPACE).children = project
        return self._connect(self._engine.add(spec, tree, project=tree.copy()))

    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        """Connect to a sandbox that exists."""
        if (record := self._engine.sandboxes.get(sandbox_id)) is None:
            raise NotFoundError("No such sandbox", why=f"nothing is called {sandbox_id!r}", fix="Create it first")
        return self._connect(record)

    def _connect(self, record: Record) -> Sandbox:
        return MemorySandbox(self._engine, record, self._opened)

    async def list(self) -> Sequence[SandboxInfo]:
        """List the sandboxes."""
        return [
            SandboxInfo(
                id=sandbox_id,
                state=SandboxState.RUNNING if record.connections else SandboxState.STOPPED,
                created_at=record.created_at,
                labels=record.spec.labels,
            )
            for sandbox_id, record in self._engine.sandboxes.items()
        ]

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Forget a sandbox."""
        if (record := self._engine.sandboxes.pop(sandbox_id, None)) is not None:
            record.gone = True
            record.end_commands("the sandbox was destroyed")

    async def restore(self, content: NativeContent, spec: SandboxSpec) -> Sandbox:
        """Create a sandbox with a copy of captured files."""
        self._engine.admit(spec)
        return self._connect(self._engine.add(spec, self._engine.captured(content).copy()))

    async def verify(self, content: NativeContent) -> Sequence[str]:
        """Look whether the tree is there."""
        return () if content.ref in self._engine.snapshots else ("its content is not in this process",)

    async def discard(self, content: NativeContent) -> None:
        """Forget a snapshot."""
        self._engine.snapshots.pop(content.ref, None)

    async def diff(self, request: DiffRequest) -> Differences:
        """Compare two trees."""
        return compare_trees(self._engine.state(request.before), self._engine.state(request.after), request)
