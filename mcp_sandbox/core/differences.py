"""What changed between two states of sandboxes: a snapshot, a live one, what one started as, its project."""

from dataclasses import dataclass
from enum import StrEnum

from mcp_sandbox.core.files import FileKind
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.core.snapshot import NativeContent

__all__ = ["Action", "Change", "DiffRequest", "Differences", "LiveState", "ProjectState", "Side", "StartState", "State"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """A sandbox as it is now, while its commands run."""

    sandbox: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """What a sandbox started as: the project, or a snapshot; for a fork, what its source started as."""

    sandbox: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectState:
    """The project that a sandbox's workspace shows or copied, without anything that was ever changed inside.

    As it is now where it is shown (`Capabilities.workspace_copied` tells), else as it was copied.
    """

    sandbox: SandboxId


State = NativeContent | LiveState | StartState | ProjectState


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRequest:
    """Compare two states of one provider."""

    before: State
    after: State
    paths: tuple[str, ...] = ()
    """Only these, and what is below them; everything without any."""
    limit: int = 10_000
    """Changes at most."""
    text_bytes: int = 0
    """Both contents of files up to this size come along, within a bound for all together; 0 is none."""
    exact: bool = False
    """Whether times and extended attributes are compared as well. Not every provider can; its answer says so."""


class Action(StrEnum):
    """What became of a path."""

    ADDED = "added"
    DELETED = "deleted"
    MODIFIED = "modified"
    TYPE_CHANGED = "type_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A path in one of the two states."""

    kind: FileKind
    mode: int
    size_bytes: int
    text: bytes | None = None
    """The content of a small file, or what a symbolic link says; `None` where it was not asked for or is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One path that is not in both states alike. Times alone are no change, unless that was asked for."""

    path: str
    before: Side | None
    after: Side | None
    content_differs: bool = True
    """Whether more than mode and owner changed."""
    owner_differs: bool = False

    @property
    def action(self) -> Action:
        """What became of it."""
        if self.before is None:
            return Action.ADDED
        if self.after is None:
            return Action.DELETED
        return Action.MODIFIED if self.before.kind is self.after.kind else Action.TYPE_CHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Everything that changed, by path; also what is inside of directories that are new or gone."""

    changes: tuple[Change, ...]
    truncated: bool = False
    """Whether there is more than was asked for or can be carried."""
    exact: bool = False
    """Whether times and extended attributes were compared."""
    unseen: tuple[str, ...] = ()
    """Paths that could not be looked at: what changed there, and below, is not known."""
