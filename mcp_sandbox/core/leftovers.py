"""What an engine holds that nobody remembers any more."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mcp_sandbox.core.sandbox import SandboxId

__all__ = ["EXPIRES", "KEEPER", "Leftover", "Remembered"]

EXPIRES: Final = "mcp-sandbox.expires"
"""Label of a sandbox that was made for a passing purpose: until when, in UTC."""

KEEPER: Final = "mcp-sandbox.kept-ready-by"
"""Label of a blank sandbox that was started ahead: the process that keeps it ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What must stay. Asked for each thing just before it goes: somebody may have entered it meanwhile."""

    sandbox: Callable[[SandboxId], bool]
    snapshot: Callable[[str], bool]
    """By the provider's reference. Blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something that nobody needs."""

    kind: str
    """`sandbox`, `snapshot`, `record`, `layer` or `file`."""
    name: str
    why: str
