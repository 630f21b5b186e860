"""The host under attack: its canaries, the spellings they could come out in, and probes run where there is no fence."""

import base64
import os
import secrets
import subprocess
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.provider import Provider
from tests.interaction.wire_client import WireClient

__all__ = [
    "Attacked",
    "Host",
    "finds",
    "leaks",
    "on_host",
    "plant_host",
    "python_on_host",
    "server_memory_mib",
]


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """A provider under attack."""

    name: str
    open: Callable[[Path], Provider]
    """Takes the directory for its state."""
    capabilities: Capabilities
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that lead a server to its engine."""
    arguments: Sequence[str] = ()
    """More options of a server."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """What the host keeps to itself."""

    token: str
    """In every secret below."""
    directory: Path
    """Holds `secret.txt`; outside of everything that a sandbox may see."""
    home: Path
    """A home with credential files."""
    environment: Mapping[str, str]
    """Variables of the server's own."""

    @property
    def secret(self) -> Path:
        """A file that anybody on the host may read."""
        return self.directory / "secret.txt"

    def untouched(self) -> bool:
        """Whether the directory holds what it held at first."""
        return [path.name for path in self.directory.iterdir()] == ["secret.txt"] and self.token in (
            self.secret.read_text()
        )


def plant_host(directory: Path) -> Host:
    """Make a host's secrets below a directory."""
    token = f"CANARY{secrets.token_hex(12)}"
    outside, home = directory / "outside", directory / "home"
    for path in (".aws/credentials", ".ssh/id_ed25519", ".netrc", ".git-credentials", ".npmrc", ".docker/config.json"):
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{token}\n")
    outside.mkdir()
    (outside / "secret.txt").write_text(f"{token}\n")
    environment = {
        "CANARY_ENV": token, "AWS_SECRET_ACCESS_KEY": token, "AWS_SESSION_TOKEN": token, "HOME": str(home),
        "SSH_AUTH_SOCK": f"/tmp/ssh-{token}/agent.1", "DBUS_SESSION_BUS_ADDRESS": f"unix:path=/run/{token}",
        "DISPLAY": ":7", "XDG_RUNTIME_DIR": f"/run/user/{token}",
    }  # fmt: skip
    return Host(token=token, directory=outside, home=home, environment=environment)


def _spellings(token: str) -> Iterable[bytes]:
    """Yield the token as it is, and as it would look behind common encodings."""
    raw = token.encode()
    yield raw
    yield raw.hex().encode()
    yield urllib.parse.quote(token).encode()
    for shift in range(3):  # base64 looks different at each alignment; the ends depend on what is around
        yield base64.b64encode(b" " * shift + raw)[4 : -4 - shift]


def finds(token: str, text: bytes) -> bool:
    """Whether a text holds the token in any spelling."""
    return any(spelling in text for spelling in _spellings(token))


def leaks(host: Host, server: WireClient) -> bool:
    """Whether anything that the server ever said, to the client or into its log, holds the token."""
    return finds(host.token, b"".join(server.lines) + b"".join(server.errors))


def on_host(script: str, *arguments: str, host: Host | None = None, cwd: Path | None = None) -> bytes:
    """Run a probe's shell script outside of any sandbox, and return what it says."""
    environment = {"PATH": os.environ["PATH"], **(host.environment if host else {})}
    command = ["sh", "-c", script, "sh", *arguments]
    done = subprocess.run(command, capture_output=True, check=False, env=environment, cwd=cwd, timeout=30)
    return done.stdout + done.stderr


def python_on_host(program: str, *arguments: str) -> bytes:
    """Run a probe that is a Python program outside of any sandbox."""
    done = subprocess.run(["python3", "-c", program, *arguments], capture_output=True, check=False, timeout=30)
    return done.stdout + done.stderr


def server_memory_mib(server: WireClient) -> float:
    """Return what the server has in memory."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
