"""What is asked for when a sandbox is created, and what is observed of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from mcp_sandbox.core.capability import NetworkMode, WorkspaceMode

__all__ = [
    "WORKSPACE",
    "Limits",
    "SandboxId",
    "SandboxInfo",
    "SandboxSpec",
    "SandboxState",
    "Workspace",
    "WorkspaceMode",
]

SandboxId = NewType("SandboxId", str)
"""`sb_` and 26 characters of base32 (128 bits)."""

WORKSPACE = "/workspace"
"""The directory the model works in, in every sandbox."""


class SandboxState(StrEnum):
    """Whether a sandbox has processes."""

    RUNNING = "running"
    STOPPED = "stopped"
    """Its files are there; the next use starts it."""
    GONE = "gone"
    """The engine does not know it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """What `/workspace` starts as, and from which directory of the host."""

    mode: WorkspaceMode = WorkspaceMode.EMPTY
    source: str | None = None
    """Absolute real path on the host; `None` for `EMPTY`."""

    @property
    def is_own(self) -> bool:
        """Whether nothing that happens inside changes the host."""
        return self.mode is not WorkspaceMode.MOUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Ceilings that the engine enforces; `None` asks for none."""

    memory_bytes: int | None = None
    cpu_count: float | None = None
    pids: int | None = 512
    open_files: int | None = 65_536
    disk_bytes: int | None = None
    """What the sandbox itself wrote; what it started from does not count."""
    inodes: int | None = None
    """Files, directories and links that it made."""
    command_s: float | None = None
    """Wall-clock seconds of any one command, in the background too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """A sandbox to create. A field that the provider cannot honour makes `create` fail before anything is made."""

    id: SandboxId
    """Chosen by the caller, so that a repeated `create` can be recognised."""
    image: str | None = None
    """What it boots from; `None` is the provider's default."""
    fetch_image: bool = True
    """Get an image that the engine does not have from where it comes from: only if the operator named it. A name that a
    model chose would tell the registry whatever the model was told to put into it."""
    runtime: str | None = None
    """Which of the engine's runtimes it runs on, such as `runsc`; `None` is the engine's default."""
    workspace: Workspace = Workspace()
    denied: tuple[str, ...] = ()
    """Globs relative to the workspace, of what of its source is not to be there; for `MOUNT` not to be reached."""
    network: NetworkMode = NetworkMode.NONE
    limits: Limits = Limits()
    best_effort: bool = False
    """Take limits that cannot be enforced as well as they can be; `Capabilities.unenforced` says how well that is."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of every command; the provider adds its fixed ones below them."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """`mcp-sandbox.owner`, `mcp-sandbox.expires` and the like, for whoever looks for orphans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """A sandbox as the engine sees it."""

    id: SandboxId
    state: SandboxState
    created_at: str
    """UTC, ISO 8601."""
    runtime: str = ""
    """What it was found to run on, where the engine has several."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
