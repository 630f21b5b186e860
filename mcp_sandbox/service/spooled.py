"""Reading the output of a job from its spool files, when nobody here has heard it."""

from datetime import UTC, datetime

import anyio

from mcp_sandbox.core.files import ReadRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.service.command import Outcome
from mcp_sandbox.service.output import HEAD_BYTES, NOTHING, TAIL_BYTES, Captured
from mcp_sandbox.store.jobs import JobRecord

__all__ = ["SpoolCursor"]


class SpoolCursor:
    """Reads both files of a job, every time from where it was the last time."""

    def __init__(self, sandbox: Sandbox, record: JobRecord) -> None:
        self._sandbox = sandbox
        self._offsets = {record.stdout_path: 0, record.stderr_path: 0}

    async def outcome(self, record: JobRecord, notices: tuple[str, ...] = ()) -> Outcome:
        """Return what is new, and how the job stands."""
        stdout = await self._stretch(record.stdout_path)
        stderr = await self._stretch(record.stderr_path)
        notes = list(notices)
        if record.output_bytes and not any(self._offsets.values()):
            notes.append(f"the output of {record.id} is gone: a restored snapshot does not hold what came after it")
        started = datetime.fromisoformat(record.started_at)
        return Outcome(
            cwd=record.cwd,
            elapsed_s=record.duration_s or (datetime.now(UTC) - started).total_seconds(),
            result=record.result,
            stdout=stdout,
            stderr=stderr,
            job_id=record.id,
            command=record.command,
            spool_path=record.stdout_path.removesuffix(".out"),
            notes=tuple(notes),
        )

    async def _stretch(self, path: str) -> Captured:
        offset = self._offsets[path]
        try:
            async with await self._sandbox.read(ReadRequest(path=path, offset=offset)) as reader:
                size = max(0, reader.info.size_bytes - offset)
        except FileNotFoundError:
            return NOTHING
        if size <= HEAD_BYTES + TAIL_BYTES:
            head, tail = await self._read(path, offset, size), b""
        else:
            head = await self._read(path, offset, HEAD_BYTES)
            tail = await self._read(path, offset + size - TAIL_BYTES, TAIL_BYTES)
        self._offsets[path] = offset + size
        return Captured(
            head=head, tail=tail, total_bytes=size, total_lines=None if tail else head.count(b"\n"), spool_path=path
        )

    async def _read(self, path: str, offset: int, size: int) -> bytes:
        found = bytearray()
        async with await self._sandbox.read(ReadRequest(path=path, offset=offset, length=size)) as reader:
            try:
                while len(found) < size:
                    found += await reader.receive()
            except anyio.EndOfStream:
                pass
        return bytes(found)
