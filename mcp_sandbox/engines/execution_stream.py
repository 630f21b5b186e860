"""The standard streams of a command as one byte stream: what speaks through them is a carrier of its own."""

import anyio
from anyio.abc import ByteStream

from mcp_sandbox.core.exec import Execution, Exited, OutputChunk, StreamName

__all__ = ["ExecutionStream"]

ERRORS_BYTES = 4096


class ExecutionStream(ByteStream):
    """Closing it ends the command."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._errors = b""

    @property
    def errors(self) -> str:
        """The first that it wrote to its standard error."""
        return self._errors.decode("utf-8", "replace").strip()

    async def wait(self) -> int | None:
        """Wait until the command itself has ended; return its status."""
        return (await self._execution.wait()).exit_code

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return what it wrote.

        Raises:
            anyio.EndOfStream: Nobody holds its standard output any more.
        """
        while True:
            event = await self._execution.receive()
            if isinstance(event, Exited):
                continue  # what it started goes on
            assert isinstance(event, OutputChunk)
            if event.stream is StreamName.STDOUT:
                return event.data
            self._errors = (self._errors + event.data)[:ERRORS_BYTES]

    async def send(self, item: bytes) -> None:
        """Write all of `item`."""
        try:
            await self._execution.write_stdin(item)
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """Close its standard input."""
        await self._execution.close_stdin()

    async def aclose(self) -> None:
        """End it."""
        await self._execution.aclose()
