"""What in-memory sandboxes of one state directory have in common, for every provider object of this process."""

import os
import secrets
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from anyio import to_thread

from mcp_sandbox.core.admission import require_enforceable
from mcp_sandbox.core.capability import Capabilities, Facet, Isolation, Support, Verb, VerbSupport
from mcp_sandbox.core.differences import LiveState, ProjectState, State
from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, StateError, UnsupportedError
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent
from mcp_sandbox.providers.memory.execution import MemoryExecution
from mcp_sandbox.providers.memory.programs import PROGRAMS, marker
from mcp_sandbox.providers.memory.tree import Node, Tree

__all__ = ["CAPABILITIES", "NAME", "Engine", "Record", "engine_of", "fresh_tree", "load_directory", "project_tree"]

NAME = "memory"
_VERBS = (Verb.SNAPSHOT, Verb.RESTORE, Verb.CREATE_FROM_SNAPSHOT, Verb.FORK, Verb.DIFF, Verb.ADOPT)
CAPABILITIES = Capabilities(
    isolation=Isolation.NONE,
    verbs={verb: VerbSupport(Support.NATIVE, "a copy in memory") for verb in _VERBS},
    runs_programs=False,
    snapshot_holds=frozenset({Facet.FILES}),
    workspace_copied=True,
    # Its programs are coroutines: they cannot fork and open no descriptors, so these two always hold.
    limits=frozenset({"pids", "open_files"}),
)


@dataclass(slots=True, eq=False)
class Record:
    """One sandbox: its files and whoever is connected to it."""

    spec: SandboxSpec
    tree: Tree
    start: Tree
    """What it is compared with."""
    project: Tree | None
    """With the project as it was copied; `None` if the sandbox was made from a snapshot."""
    created_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    connections: int = 0
    executions: set[MemoryExecution] = field(default_factory=set[MemoryExecution])
    gone: bool = False

    def end_commands(self, detail: str) -> None:
        """End every command, saying why."""
        for execution in tuple(self.executions):
            execution.lose(detail)


@dataclass(slots=True)
class Engine:
    """The sandboxes and snapshots of one state directory."""

    sandboxes: dict[SandboxId, Record] = field(default_factory=dict[SandboxId, Record])
    snapshots: dict[str, Tree] = field(default_factory=dict[str, Tree])

    def admit(self, *specs: SandboxSpec) -> None:
        """Refuse what cannot be created, before anything is made."""
        for spec in specs:
            if spec.id in self.sandboxes:
                raise StateError("Sandbox not created", why=f"{spec.id} exists already", fix="Attach to it")
            if spec.image is not None:
                raise UnsupportedError(
                    f"Image {spec.image!r} refused", why=f"provider {NAME!r} has no images", fix="Leave 'image' out"
                )
            require_enforceable(NAME, CAPABILITIES, spec)

    def add(self, spec: SandboxSpec, tree: Tree, start: Tree | None = None, *, project: Tree | None = None) -> Record:
        """Enter a new sandbox, which starts as another one did or as its own tree is now."""
        record = self.sandboxes[spec.id] = Record(spec, tree, start or tree.copy(), project)
        return record

    def state(self, state: State) -> Tree:
        """Return the tree of a state."""
        if isinstance(state, NativeContent):
            return self.captured(state)
        if (record := self.sandboxes.get(state.sandbox)) is None:
            raise NotFoundError(
                "Nothing compared", why=f"there is no sandbox {state.sandbox}", fix="List the sandboxes"
            )
        if isinstance(state, ProjectState):
            if record.project is None:
                raise UnsupportedError(
                    "Nothing compared", why="it started from a snapshot, and the project is not known here",
                    fix="Compare it with what it started as",
                )  # fmt: skip
            return record.project
        return record.tree if isinstance(state, LiveState) else record.start

    def capture(self, tree: Tree) -> NativeContent:
        """Keep a copy of a tree."""
        ref = secrets.token_hex(16)
        self.snapshots[ref] = tree.copy()
        return NativeContent(
            provider=NAME, ref=ref, holds=CAPABILITIES.snapshot_holds, size_bytes=tree.size_bytes(), method="copy"
        )

    def captured(self, content: NativeContent) -> Tree:
        """Return the tree of a snapshot."""
        if content.provider != NAME:
            raise InvalidRequestError(
                "Snapshot not restored",
                why=f"its content belongs to provider {content.provider!r}",
                fix=f"Restore it there, or take one on {NAME!r}",
            )
        if (tree := self.snapshots.get(content.ref)) is None:
            raise NotFoundError(
                "Snapshot not restored", why="its content is not there any more", fix="Choose another snapshot"
            )
        return tree


_ENGINES: dict[Path, Engine] = {}


def engine_of(root: Path) -> Engine:
    """Return the engine of a state directory, the same one every time."""
    return _ENGINES.setdefault(root.absolute(), Engine())


def fresh_tree() -> Tree:
    """Return what a new sandbox starts with: the usual directories, and the programs in `/bin`."""
    tree = Tree()
    for path, mode in (("/workspace", 0o755), ("/tmp", 0o1777), ("/root", 0o700), ("/bin", 0o755)):  # noqa: S108
        tree.make_directory(path, mode)
    programs = tree.directory("/bin")
    for name in PROGRAMS:
        programs.put(name, Node(FileKind.FILE, 0o755, data=marker(name)))
    return tree


async def project_tree(spec: SandboxSpec) -> dict[str, Node] | None:
    """Return a copy of the project that a spec names, if it names one."""
    source = spec.workspace.source
    return None if source is None else await to_thread.run_sync(load_directory, Path(source))


def load_directory(source: Path) -> dict[str, Node]:
    """Return copies of the files, directories and links in a directory of the host."""
    nodes: dict[str, Node] = {}
    with os.scandir(source) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            node = Node(FileKind.FILE, stat.S_IMODE(status.st_mode), status.st_mtime_ns, links=1)
            if entry.is_symlink():
                node.kind, node.target = FileKind.SYMLINK, str(Path(entry.path).readlink())
            elif entry.is_dir(follow_symlinks=False):
                node.kind, node.children = FileKind.DIRECTORY, load_directory(Path(entry.path))
            elif stat.S_ISREG(status.st_mode):
                node.data = Path(entry.path).read_bytes()
            else:
                continue
            nodes[entry.name] = node
    return nodes
