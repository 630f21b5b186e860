"""Puts the peers into a directory of their own, from PyPI and npm, once; nothing of them is in this repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["PYTHON_PACKAGES", "PeersHome"]

PYTHON_PACKAGES = ("openai-agents", "hares", "execkit-mcp")
NODE_PACKAGES = ("@modelcontextprotocol/server-filesystem", "@wonderwhy-er/desktop-commander")


class PeersHome:
    """A directory with peers. What cannot be installed is missing, and the reason is kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self._node = self._directory / "node"
        self.failures: dict[str, str] = {}

    def install(self) -> None:
        """Install what is not there yet."""
        self._node.mkdir(parents=True, exist_ok=True)
        if not self.python.exists():
            self._run("venv", [sys.executable, "-m", "venv", str(self._directory / "venv")])
        for package in PYTHON_PACKAGES:
            if not self._stamp(package).exists():
                pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
                self._run(package, pip)
        for package in NODE_PACKAGES:
            if not self._stamp(package).exists():
                self._run(package, ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", package])
        if not shutil.which("bwrap") and not self._stamp("bubblewrap").exists():
            self._run("bubblewrap", ["sh", "-c", "apt-get download bubblewrap && dpkg -x bubblewrap_*.deb ."])

    @property
    def python(self) -> Path:
        """The interpreter that has the Python peers."""
        return self._directory / "venv" / "bin" / "python"

    def program(self, name: str) -> str | None:
        """Return the path of a peer's program, if it is there."""
        places = [self._directory / "venv" / "bin", self._node / "node_modules" / ".bin", self._node / "usr" / "bin"]
        return shutil.which(name, path=os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)]))

    def has(self, package: str) -> bool:
        """Whether a package is installed."""
        return self._stamp(package).exists()

    def _stamp(self, package: str) -> Path:
        return self._directory / f"installed-{package.replace('/', '-')}"

    def _run(self, package: str, command: list[str]) -> None:
        try:
            done = subprocess.run(command, cwd=self._node, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            self.failures[package] = f"no {error.filename}"
            return
        if done.returncode == 0:
            self._stamp(package).touch()
        else:
            self.failures[package] = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
