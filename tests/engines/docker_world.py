"""A docker daemon of our own, and containers whose init is the guest agent."""

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Final, Self

from guest_world import AGENT, Guest, ProcessStream, open_process_stream

from mcp_sandbox.engines.carrier import GuestCarrier
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.guest.binary import guest_binary

__all__ = ["DockerGuest", "DockerWorld", "docker_works"]

START_S: Final = 30
PROGRAMS: Final = (
    "sh bash cat chmod echo env false head id kill ln ls mkdir mkfifo mv nohup printf ps readlink rm seq setsid "
    "sha256sum sleep sort stat tail touch tr true wc yes dd"
).split()


def docker_works() -> str:
    """Return why no daemon can be started here; empty if one can."""
    missing = [name for name in ("setpriv", "dockerd", "containerd", "runc", "docker") if shutil.which(name) is None]
    if missing:
        return f"no {missing[0]} here: apt-get install docker.io"
    return "only root can start dockerd" if os.geteuid() else ""


def _libraries(program: str) -> set[str]:
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return {word for line in done.stdout.splitlines() for word in line.split() if word.startswith("/")}


def _image_of_programs() -> bytes:
    """Return a tar archive of a few programs of this machine with their libraries, and nothing else."""
    files = {f"/usr/bin/{name}": found for name in PROGRAMS if (found := shutil.which(name))}
    for found in list(files.values()):
        files |= {library: library for library in _libraries(found)}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar:
        for name, found in files.items():
            tar.add(os.path.realpath(found), arcname=name.removeprefix("/"))
        link = tarfile.TarInfo("bin")
        link.type, link.linkname = tarfile.SYMTYPE, "usr/bin"
        tar.addfile(link)
        for name in ("area", "root"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
    return archive.getvalue()


class DockerWorld:
    """Use as a context manager."""

    def __enter__(self) -> Self:
        """Start the daemon, and import the images."""
        self._directory = Path(tempfile.mkdtemp(prefix="guest-docker-"))
        self.host = f"unix://{self._directory}/docker.sock"
        self._log = (self._directory / "log").open("wb")
        command = [
            "setpriv", "--pdeathsig", "TERM",  # tests that are killed leave no daemon behind
            "dockerd", "--data-root", f"{self._directory}/data", "--exec-root", f"{self._directory}/exec",
            "--host", self.host, "--pidfile", f"{self._directory}/pid", "--iptables=false", "--ip6tables=false",
            "--bridge=none", "--ip-forward=false",
        ]  # fmt: skip
        self._daemon = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self._wait_ready()
            self.programs = self.run("import", "-", "programs", stdin=_image_of_programs())
            with io.BytesIO() as empty:
                tarfile.open(fileobj=empty, mode="w").close()
                self.nothing = self.run("import", "-", "nothing", stdin=empty.getvalue())
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_ready(self) -> None:
        end = time.monotonic() + START_S
        while True:
            try:
                self.run("version")
                return
            except subprocess.CalledProcessError:
                if self._daemon.poll() is not None or time.monotonic() > end:
                    log = (self._directory / "log").read_text("utf-8", "replace")[-2000:]
                    raise RuntimeError(f"dockerd does not start: {log}") from None
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        """End the daemon; it ends its containerd."""
        self._daemon.terminate()
        try:
            self._daemon.wait(20)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
        self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def run(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run the docker client to its end."""
        done = subprocess.run(["docker", "--host", self.host, *arguments], input=stdin, capture_output=True, check=True)
        return done.stdout.decode().strip()


class DockerGuest(Guest):
    """A container with the agent as its init. Use as a context manager."""

    def __init__(self, world: DockerWorld, image: str, *, grace_ms: int) -> None:
        self._world, self._image, self._grace_ms = world, image, grace_ms

    def __enter__(self) -> Self:
        """Create the container, bring the agent in, start it."""
        self.id = self._world.run(
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
        self._world.run("cp", "-", f"{self.id}:/", stdin=archive.getvalue())
        self._world.run("start", self.id)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the container."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self._world.run("rm", "--force", self.id)

    @property
    def running(self) -> bool:
        """Whether the container has processes."""
        return self._world.run("inspect", "--format", "{{.State.Running}}", self.id) == "true"

    def start(self) -> None:
        """Start it again after its init ended."""
        self._world.run("start", self.id)

    async def stream(self) -> ProcessStream:
        """Put a bridge into the container."""
        command = ["docker", "--host", self._world.host, "exec", "--interactive", self.id, f"{AGENT}/guest"]
        return await open_process_stream([*command, "bridge", AGENT])

    async def connect(self) -> GuestCarrier:
        """Make another connection."""
        return await StreamCarrier.open(await self.stream())
