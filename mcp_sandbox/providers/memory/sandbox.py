"""One connection to an in-memory sandbox: the verbs of the border on a tree."""

import errno
import hashlib
import time
from collections.abc import Sequence

import anyio
from anyio import lowlevel
from anyio.abc import ByteReceiveStream

from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.errors import (
    SandboxGoneError,
    StateError,
    UnsupportedError,
)
from mcp_sandbox.core.exec import ExecRequest, Execution
from mcp_sandbox.core.files import (
    DownloadRequest,
    FileInfo,
    FileKind,
    FileReader,
    Listing,
    ListRequest,
    MkdirRequest,
    ReadRequest,
    RemoveRequest,
    RenameRequest,
    StatRequest,
    UploadRequest,
    WriteRequest,
    WriteResult,
)
from mcp_sandbox.core.provider import Forked, Sandbox
from mcp_sandbox.core.sandbox import WORKSPACE, SandboxId, SandboxSpec
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.core.streams import BytesStream
from mcp_sandbox.providers.memory.archive import pack, unpack
from mcp_sandbox.providers.memory.engine import CAPABILITIES, NAME, Engine, Record, project_tree
from mcp_sandbox.providers.memory.execution import MemoryExecution, Process, Program
from mcp_sandbox.providers.memory.programs import program_of
from mcp_sandbox.providers.memory.tree import Node, Tree, fail, info

__all__ = ["MemorySandbox"]

_CHUNK_BYTES = 65_536
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}


class _Reader(FileReader):
    """The bytes of a file as they were when it was opened."""

    def __init__(self, found: FileInfo, data: bytes) -> None:
        self._info = found
        self._left = memoryview(data)
        self._closed = False

    @property
    def info(self) -> FileInfo:
        """The file as it was when it was opened."""
        return self._info

    async def receive(self, max_bytes: int = _CHUNK_BYTES) -> bytes:
        """Return the next bytes."""
        await lowlevel.checkpoint()
        if self._closed:
            raise anyio.ClosedResourceError
        if not self._left:
            raise anyio.EndOfStream
        data, self._left = bytes(self._left[:max_bytes]), self._left[max_bytes:]
        return data

    async def aclose(self) -> None:
        """Let go of the bytes."""
        self._closed = True


class MemorySandbox(Sandbox):
    """A connection to one in-memory sandbox."""

    def __init__(self, engine: Engine, record: Record, opened: list[Sandbox]) -> None:
        self._engine = engine
        self._record = record
        self._id = record.spec.id
        self._opened = opened
        opened.append(self)
        self._executions: set[MemoryExecution] = set()
        self._closed = False
        record.connections += 1

    @property
    def id(self) -> SandboxId:
        """Its id."""
        return self._id

    @property
    def provider_name(self) -> str:
        """`memory`."""
        return NAME

    @property
    def capabilities(self) -> Capabilities:
        """The same for every one."""
        return CAPABILITIES

    @property
    def _tree(self) -> Tree:
        if self._record.gone:
            raise SandboxGoneError("Sandbox is gone", why=f"{self.id} was destroyed", fix="Create another sandbox")
        if self._closed:
            raise StateError("Sandbox is closed", why=f"this connection to {self.id} has ended", fix="Attach again")
        return self._record.tree

    async def exec(self, request: ExecRequest) -> Execution:
        """Start one of the built-in programs."""
        tree = self._tree
        env = {**_ENV, **self._record.spec.env, **request.env}
        process = Process(request.argv, env, request.cwd, tree, stdin=request.stdin)
        program, detail = _program(tree, request, env["PATH"])
        execution = MemoryExecution(program, process, request.timeout_s, stdin=request.stdin, detail=detail)
        for known in (self._executions, self._record.executions):
            known.difference_update({ended for ended in known if ended.ended})
            known.add(execution)
        return execution

    async def read(self, request: ReadRequest) -> FileReader:
        """Open a regular file for reading."""
        node = self._tree.node(request.path)
        if node.kind is not FileKind.FILE:
            fail(errno.EISDIR if node.kind is FileKind.DIRECTORY else errno.EINVAL, request.path)
        end = None if request.length is None else request.offset + request.length
        return _Reader(info(request.path, node), node.data[request.offset : end])

    async def write(self, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
        """Write a file: collected first and put in place in one step, or appended chunk by chunk."""
        if request.append:
            return await self._append(request, data)
        content = data if isinstance(data, bytes) else await _collect(data)
        spot = self._tree.writable(request.path, make_parents=request.make_parents, create_only=request.create_only)
        mode = request.mode if request.mode is not None else spot.node.mode if spot.node else 0o644
        spot.parent.put(spot.name, Node(FileKind.FILE, mode & 0o7777, data=content))
        digest = hashlib.sha256(content).hexdigest()
        return WriteResult(size_bytes=len(content), sha256=digest, created=spot.node is None)

    async def _append(self, request: WriteRequest, data: bytes | ByteReceiveStream) -> WriteResult:
        spot = self._tree.writable(request.path, make_parents=request.make_parents, create_only=request.create_only)
        node = spot.node
        if node is None:
            node = Node(FileKind.FILE, 0o644 if request.mode is None else request.mode & 0o7777)
            spot.parent.put(spot.name, node)
        size, digest = 0, hashlib.sha256()
        async with BytesStream(data) if isinstance(data, bytes) else data as stream:
            async for chunk in stream:
                node.data += chunk
                node.modified_ns = time.time_ns()
                size += len(chunk)
                digest.update(chunk)
        return WriteResult(size_bytes=size, sha256=digest.hexdigest(), created=spot.node is None)

    async def stat(self, request: StatRequest) -> FileInfo:
        """Look at one path."""
        return info(request.path, self._tree.node(request.path, follow=request.follow))

    async def list(self, request: ListRequest) -> Listing:
        """List a directory or a tree."""
        entries: list[FileInfo] = []
        for path, node in self._tree.walk(request.path, request.depth, request.prune):
            if len(entries) == request.limit:
                return Listing(entries=tuple(entries), truncated=True)
            entries.append(info(path, node))
        return Listing(entries=tuple(entries))

    async def remove(self, request: RemoveRequest) -> None:
        """Remove a path."""
        self._tree.remove(request.path, recursive=request.recursive, missing_ok=request.missing_ok)

    async def rename(self, request: RenameRequest) -> None:
        """Rename a path."""
        self._tree.rename(request.source, request.target, replace=request.replace)

    async def mkdir(self, request: MkdirRequest) -> None:
        """Make a directory."""
        self._tree.make_directory(request.path, request.mode, parents=request.parents, exist_ok=request.exist_ok)

    async def upload(self, request: UploadRequest, tar: ByteReceiveStream) -> None:
        """Unpack a tar, whole or not at all."""
        unpack(self._tree, request.path, await _collect(tar))

    async def download(self, request: DownloadRequest) -> ByteReceiveStream:
        """Pack a tree as it is now."""
        tree = self._tree
        return _Reader(info(request.path, tree.node(request.path)), pack(tree, request.path))

    async def aclose(self) -> None:
        """Let go, ending the commands started here."""
        if not self._closed:
            self._closed = True
            self._record.connections -= 1
        for execution in tuple(self._executions):
            execution.lose("the connection to the sandbox was closed")
            await execution.wait()

    async def snapshot(self, request: SnapshotRequest) -> NativeContent:
        """Copy the files."""
        tree = self._tree
        if missing := request.holds - CAPABILITIES.snapshot_holds:
            raise UnsupportedError(
                "No snapshot taken",
                why=f"provider {NAME!r} cannot hold {', '.join(sorted(missing))}",
                fix="Ask for files only, or use another provider",
            )
        return self._engine.capture(tree)

    async def restore(self, content: NativeContent) -> None:
        """Put a copy of captured files in place."""
        _, tree = self._tree, self._engine.captured(content).copy()
        self._record.end_commands("the sandbox was restored to a snapshot")
        self._record.tree = tree

    async def fork(self, specs: Sequence[SandboxSpec]) -> Forked:
        """Make copies."""
        tree = self._tree
        self._engine.admit(*specs)
        start = self._record.start
        records = [self._engine.add(spec, tree.copy(), start, project=self._record.project) for spec in specs]
        return Forked(sandboxes=[MemorySandbox(self._engine, record, self._opened) for record in records])

    async def adopt(self, spec: SandboxSpec) -> Sandbox:
        """Take another id, and the project's files."""
        tree = self._tree
        project = await project_tree(spec)
        self._engine.admit(spec)
        del self._engine.sandboxes[self.id]
        if project:
            tree.directory(WORKSPACE).children = project
        self._engine.sandboxes[spec.id], self._record.spec = self._record, spec
        self._record.start = tree.copy()
        await self.aclose()
        return MemorySandbox(self._engine, self._record, self._opened)


def _program(tree: Tree, request: ExecRequest, search: str) -> tuple[Program, str]:
    """Return what to run, and a sentence where that is only an exit status."""
    try:
        tree.directory(request.cwd)
    except OSError as error:
        return _exit_with(126), f"the directory {request.cwd!r} cannot be entered: {error.strerror}"
    name = request.argv[0]
    places = [name] if "/" in name else [f"{place}/{name}" for place in search.split(":")]
    for place in places:
        try:
            node = tree.node(place if place.startswith("/") else f"{request.cwd}/{place}")
        except OSError:
            continue
        program = program_of(node.data)
        if program is None or not node.mode & 0o111:
            return _exit_with(126), f"{name!r} cannot be executed"
        return program, ""
    return _exit_with(127), f"{name!r} was not found in {search}" if "/" not in name else f"{name!r} does not exist"


def _exit_with(status: int) -> Program:
    async def run(_: Process) -> int:
        return status

    return run


async def _collect(stream: ByteReceiveStream) -> bytes:
    async with stream:
        return b"".join([chunk async for chunk in stream])
