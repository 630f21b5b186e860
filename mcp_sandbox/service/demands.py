"""What a manifest demands of a project's sandboxes beside what they are created from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.service.preparation import Preparation

if TYPE_CHECKING:
    from mcp_sandbox.policy.command_rules import CommandPolicy

__all__ = ["Demands"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """Without any, nothing is demanded."""

    refusal: SandboxError | None = None
    """Why no sandbox may be used: what is demanded cannot be, or may not."""
    fallback: tuple[str, ...] = ()
    """Providers to take, in this order, where the one that is asked for cannot be used."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of every command."""
    unvouched_env: tuple[str, ...] = ()
    """Those of them that a project's file set: rules weigh them as if they came with the command."""
    asked_workspace: bool = False
    """Whether somebody asked for a mode of the workspace, and not only got the usual one."""
    idle_s: float | None = None
    """After how long without a call processes end; `None` is never."""
    preparation: Preparation = field(default_factory=Preparation)
    """What is done in a new sandbox before anybody uses it."""
    commands: "tuple[CommandPolicy, ...]" = ()
    """What each layer says about commands."""
    notices: tuple[str, ...] = ()
    """What must be told once."""

    def require(self) -> None:
        """Return if sandboxes may be used; raise what keeps them from it otherwise."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
