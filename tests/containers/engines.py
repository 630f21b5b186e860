"""Real container engines, started for tests and ended with them: dockerd, and Podman's service on the same API.

Everything of one is below one temporary directory: images, containers, state, socket. No bridge, no firewall rule.
"""

import abc
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import ClassVar, Final, Self

from tests.containers.base_image import base_archive, empty_archive

__all__ = ["BASE", "NOTHING", "Dockerd", "Engine", "EngineError", "Podman"]

BASE: Final = "mcp-sandbox-test/debian:bookworm"
NOTHING: Final = "mcp-sandbox-test/nothing:latest"
START_S: Final = 30
END_S: Final = 20
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _processes_of(directory: Path) -> list[int]:
    """Return what still runs for an engine: Podman's watchers of commands stay for minutes."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.fsencode(directory) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


class EngineError(Exception):
    """The docker client said no."""


class Engine(abc.ABC):
    """An engine of our own, with the images `NOTHING` and, once asked for, `BASE`. Use as a context manager."""

    programs: ClassVar[tuple[str, ...]] = ()
    """What must be installed."""

    def __enter__(self) -> Self:
        """Start it."""
        self.directory = Path(tempfile.mkdtemp(prefix="mcp-sandbox-engine-", dir="/var/tmp"))
        self.socket = self.directory / "engine.sock"
        self.host = f"unix://{self.socket}"
        self._log = (self.directory / "log").open("wb")
        self._has_base = False
        try:
            self.start()
            self.run("import", "-", NOTHING, stdin=empty_archive())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and remove everything that it has."""
        with contextlib.suppress(EngineError, subprocess.TimeoutExpired):
            self.remove_containers()
        self.stop()
        self._log.close()
        for process in _processes_of(self.directory):
            _kill(process)
        self._delete()

    @classmethod
    def why_not(cls) -> str:
        """Return why it cannot be started here; empty if it can."""
        missing = [name for name in ("docker", *cls.programs) if shutil.which(name, path=PATH) is None]
        return f"no {missing[0]} here: apt-get install docker.io podman" if missing else ""

    @abc.abstractmethod
    def command(self) -> list[str]:
        """Return what starts it in the foreground."""

    def environment(self) -> dict[str, str]:
        """Return its variables."""
        return {"PATH": PATH}

    def start(self) -> None:
        """Start it; also again, after it ended."""
        self.process = subprocess.Popen(
            self.command(), env=self.environment(), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            start_new_session=True, cwd=self.directory,  # where Podman notes that memory ran out
        )  # fmt: skip
        end = time.monotonic() + START_S
        while True:
            try:
                self.run("version")
                return
            except EngineError:
                if self.process.poll() is not None or time.monotonic() > end:
                    said = (self.directory / "log").read_text("utf-8", "replace")[-2000:]
                    raise RuntimeError(f"{self.command()[0]} does not start: {said}") from None
                time.sleep(0.05)

    def stop(self) -> None:
        """End it as a machine that shuts down does."""
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def run(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run the docker client to its end."""
        environment = {"PATH": PATH, "DOCKER_HOST": self.host, "DOCKER_CONFIG": str(self.directory / "config")}
        done = subprocess.run(
            ["docker", *arguments], env=environment, input=stdin, capture_output=True, check=False, timeout=120
        )
        if done.returncode:
            raise EngineError(f"docker {' '.join(arguments[:2])}: {done.stderr.decode('utf-8', 'replace').strip()}")
        return done.stdout.decode().strip()

    @property
    def base(self) -> str:
        """The name of a Debian with python3, imported when somebody first asks for it."""
        if not self._has_base:
            self.run("import", str(base_archive()), BASE)
            self._has_base = True
        return BASE

    def remove_containers(self) -> None:
        """Kill and remove every container that it has."""
        if containers := self.run("ps", "--all", "--quiet").split():
            self.run("rm", "--force", *containers)

    def _delete(self) -> None:
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{self.directory}/"):
                subprocess.run(["umount", "--lazy", line.split()[1]], capture_output=True, check=False)
        subprocess.run(["rm", "-rf", str(self.directory)], check=True)  # trees may be deeper than Python goes


class Dockerd(Engine):
    """A docker daemon with its own containerd, and with gVisor as runtime `runsc` where that is installed."""

    programs = ("dockerd", "containerd", "runc", "setpriv")

    @classmethod
    def why_not(cls) -> str:
        """Only root can start one."""
        return super().why_not() or ("only root can start dockerd" if os.geteuid() else "")

    @property
    def runtimes(self) -> dict[str, dict[str, object]]:
        """The runtimes beside runc.

        `--network=none` is what `docker run --network none` gives anyway; without it runsc of 2024 takes every network
        namespace for the host's on new kernels, and refuses. `--overlay2=none` lets the engine see what programs write,
        so that commit, diff and cp work; without it they see nothing (`runsc-default`).
        """
        if (runsc := shutil.which("runsc", path=PATH)) is None:
            return {}
        return {
            "runsc": {"path": runsc, "runtimeArgs": ["--network=none", "--overlay2=none"]},
            "runsc-default": {"path": runsc, "runtimeArgs": ["--network=none"]},
        }

    def command(self) -> list[str]:
        """Return what starts it: it ends with us, so that tests that are killed leave no daemon behind."""
        settings = self.directory / "daemon.json"
        settings.write_text(json.dumps({"runtimes": self.runtimes}))
        own = self.directory
        return [
            "setpriv", "--pdeathsig", "TERM", "dockerd", f"--config-file={settings}", f"--data-root={own}/data",
            f"--exec-root={own}/exec", f"--host={self.host}", f"--pidfile={own}/pid", "--iptables=false",
            "--ip6tables=false", "--bridge=none", "--ip-forward=false",
        ]  # fmt: skip

    def kill(self) -> None:
        """End it with SIGKILL, and its containerd with it; a new one cannot start beside the old containerd."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        super().kill()
        for child in children:
            _kill(int(child))
        for child in children:
            while Path(f"/proc/{child}/exe").exists():
                time.sleep(0.01)
        # A process that nobody has reaped yet counts as alive, and would be waited for.
        for name in ("pid", "exec/containerd/containerd.pid"):
            (self.directory / name).unlink(missing_ok=True)


class Podman(Engine):
    """Podman's service, as whoever runs the tests."""

    programs = ("podman", "runc", "conmon", "setpriv")

    def environment(self) -> dict[str, str]:
        """Return its variables: settings of its own, and a place for what it keeps while it runs."""
        settings = self.directory / "containers.conf"
        settings.write_text('[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n')
        running = self.directory / "running"
        running.mkdir(mode=0o700, exist_ok=True)
        home = str(self.directory) if os.geteuid() else "/root"
        return {
            "PATH": PATH, "HOME": home, "XDG_RUNTIME_DIR": str(running), "CONTAINERS_CONF": str(settings),
            "TMPDIR": str(running),
        }  # fmt: skip

    def command(self) -> list[str]:
        """Return what starts it."""
        return [
            "setpriv", "--pdeathsig", "TERM", "podman", f"--root={self.directory}/data",
            f"--runroot={self.directory}/running/run", f"--tmpdir={self.directory}/running/tmp",
            "--storage-driver=overlay", "system", "service", "--time=0", self.host,
        ]  # fmt: skip

    def _delete(self) -> None:
        if os.geteuid():  # files of its subordinate users can only be removed as these
            remove = ["podman", "unshare", "rm", "-rf", str(self.directory / "data")]
            subprocess.run(remove, env=self.environment(), capture_output=True, check=False)
            for file in self.directory.glob("running/**/pause.pid"):  # it holds the user namespace
                _kill(int(file.read_text()))
        super()._delete()
