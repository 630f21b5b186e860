"""Containers whose init is the guest agent."""

import contextlib
import io
import tarfile
from typing import Self

from guest_world import AGENT, Guest, ProcessStream, open_process_stream

from mcp_sandbox.engines.carrier import GuestCarrier
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.guest.binary import guest_binary
from tests.containers.engines import Engine, EngineError

__all__ = ["DockerGuest"]


class DockerGuest(Guest):
    """A container with the agent as its init. Use as a context manager."""

    def __init__(self, engine: Engine, image: str, *, grace_ms: int) -> None:
        self._engine, self._image, self._grace_ms = engine, image, grace_ms

    def __enter__(self) -> Self:
        """Create the container, bring the agent in, start it."""
        self.id = self._engine.run(
            "create", "--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
            "--entrypoint", f"{AGENT}/guest", self._image, "init", AGENT, str(self._grace_ms),
        )  # fmt: skip
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            directory = tarfile.TarInfo(AGENT[1:])
            directory.type, directory.mode = tarfile.DIRTYPE, 0o700
            tar.addfile(directory)
            program = tarfile.TarInfo(f"{AGENT[1:]}/guest")
            program.mode, program.size = 0o755, len(guest_binary())
            tar.addfile(program, io.BytesIO(guest_binary()))
            for name in ("area", "tmp"):
                directory.name, directory.mode = name, 0o777
                tar.addfile(directory)
        self._engine.run("cp", "-", f"{self.id}:/", stdin=archive.getvalue())
        self._engine.run("start", self.id)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the container."""
        with contextlib.suppress(EngineError):
            self._engine.run("rm", "--force", self.id)

    @property
    def running(self) -> bool:
        """Whether the container has processes."""
        return self._engine.run("inspect", "--format", "{{.State.Running}}", self.id) == "true"

    def start(self) -> None:
        """Start it again after its init ended."""
        self._engine.run("start", self.id)

    async def stream(self) -> ProcessStream:
        """Put a bridge into the container."""
        command = ["docker", "--host", self._engine.host, "exec", "--interactive", self.id, f"{AGENT}/guest"]
        return await open_process_stream([*command, "bridge", AGENT])

    async def connect(self) -> GuestCarrier:
        """Make another connection."""
        return await StreamCarrier.open(await self.stream())
