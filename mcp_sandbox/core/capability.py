"""What one opened provider can do: facts found when it opened, never assumptions about its class."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

__all__ = [
    "Capabilities",
    "Facet",
    "Isolation",
    "LimitGap",
    "NetworkMode",
    "Support",
    "Verb",
    "VerbSupport",
    "WorkspaceMode",
]


class Isolation(IntEnum):
    """Strength of the boundary, weakest first, so that "at least" is `>=`."""

    NONE = 0
    NAMESPACE = 1
    CONTAINER = 2
    USER_KERNEL = 3
    MICROVM = 4


class NetworkMode(StrEnum):
    """What a sandbox may reach."""

    NONE = "none"
    ALLOWLIST = "allowlist"
    FULL = "full"


class WorkspaceMode(StrEnum):
    """What `/workspace` starts as."""

    EMPTY = "empty"
    OVERLAY = "overlay"
    """The project, copy-on-write: the host's files stay as they are."""
    COPY = "copy"
    """A copy of the project that was made when the sandbox was: what changes on the host later does not show."""
    MOUNT = "mount"
    """The project itself: what commands write is written on the host at once."""


class Facet(StrEnum):
    """What a snapshot or a pause holds."""

    FILES = "files"
    ENV = "env"
    MEMORY = "memory"


class Verb(StrEnum):
    """The optional verbs of the border; every other verb works on every provider."""

    SNAPSHOT = "snapshot"
    RESTORE = "restore"
    CREATE_FROM_SNAPSHOT = "create_from_snapshot"
    FORK = "fork"
    DIFF = "diff"
    IMAGES = "images"
    ADOPT = "adopt"
    EXPORT = "export"
    PAUSE = "pause"
    RESUME = "resume"
    EXPOSE = "expose"
    METRICS = "metrics"
    EXTEND = "extend"
    UPDATE_NETWORK = "update_network"


class Support(StrEnum):
    """How a verb is served."""

    NATIVE = "native"
    EMULATED = "emulated"
    NONE = "none"


class VerbSupport(NamedTuple):
    """How one verb is served, and what a user should know about it."""

    support: Support
    note: str = ""


class LimitGap(NamedTuple):
    """Why an engine does not enforce a limit here."""

    why: str
    fix: str
    instead: str = ""
    """What is done where best effort is good enough; empty: nothing."""


def _usual_workspaces() -> Mapping[WorkspaceMode, str]:
    return {WorkspaceMode.EMPTY: "", WorkspaceMode.OVERLAY: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Filled by a provider when it opens, after it has looked at its engine."""

    isolation: Isolation
    verbs: Mapping[Verb, VerbSupport] = field(default_factory=dict[Verb, VerbSupport])
    """Verbs that are not listed are refused."""
    runs_programs: bool = True
    """Whether `exec` runs real programs with a POSIX shell; only the in-memory double says no."""
    snapshot_holds: frozenset[Facet] = frozenset()
    snapshot_side_effect: str = ""
    """What taking a snapshot does to the live sandbox, for a reader; empty where it does nothing."""
    workspace_copied: bool = False
    """Whether a project that is a workspace is copied when a sandbox is made; else it is shown from then on."""
    pause_holds: frozenset[Facet] = frozenset()
    network: frozenset[NetworkMode] = frozenset({NetworkMode.NONE})
    """Modes the engine really enforces."""
    secrets: frozenset[str] = frozenset()
    """Ways a credential can be brokered without entering the sandbox."""
    limits: frozenset[str] = frozenset()
    """Names of the fields of `Limits` that the engine really enforces."""
    unenforced: Mapping[str, LimitGap] = field(default_factory=dict[str, LimitGap])
    """Fields of `Limits` that a sandbox with `best_effort` may ask for all the same."""
    ports_declared_at_create: bool = False
    max_lifetime_s: float | None = None
    writable_roots: tuple[str, ...] = ("/",)
    max_concurrent: int = 64
    """Commands that may run at once in one sandbox."""
    workspaces: Mapping[WorkspaceMode, str] = field(default_factory=_usual_workspaces)
    """What the workspace may start as, and what a user should know about each."""
    root_inside: bool = True
    """Whether the user inside is root, and can install system packages where the network allows."""
    runtimes: Mapping[str, Isolation] = field(default_factory=dict[str, Isolation])
    """Runtimes of the engine that a spec may name, and how strong a boundary each one is known for."""
    runtime: str = ""
    """Of a sandbox: what it runs on, as it was found after it had started. Of a provider: the engine's default."""
    keeps_fifos: bool = True
    """Whether snapshots hold FIFOs; a kernel of its own may have them in its memory only."""
    home: str = "/root"
    """Of the user of commands; what another provider's snapshot holds of its user's home goes here."""
    denies: frozenset[WorkspaceMode] = frozenset()
    """Modes of the workspace in which parts of its source can be kept away."""
    base: str = ""
    """What a sandbox without an image starts from, where that changes with the machine; for nobody to read."""
    extended_attributes: bool = False
    """Whether files keep attributes of programs (`user.*`), also on the way in and out; else they are left out."""
    owners: bool = False
    """Whether files can belong to several users; else every owner is one and the same."""

    def supports(self, verb: Verb) -> bool:
        """Whether `verb` is served at all."""
        return self.verbs.get(verb, VerbSupport(Support.NONE)).support is not Support.NONE
