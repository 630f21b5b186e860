"""What came of trying a provider's boundary for real."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Examination", "Fence", "Shortcoming"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One thing that keeps a sandbox apart from its host."""

    name: str
    holds: bool
    detail: str = ""
    """What was found, if it does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortcoming:
    """Something that this machine lacks; sandboxes work without it."""

    what: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The result of a self-test."""

    fences: Sequence[Fence] = ()
    """Every one that was tried."""
    shortcomings: Sequence[Shortcoming] = ()
    milliseconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """What each step of it took."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the provider stands on, for a reader."""

    @property
    def broken(self) -> Sequence[Fence]:
        """The fences that do not hold."""
        return [fence for fence in self.fences if not fence.holds]
