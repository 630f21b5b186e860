"""What a sandbox is known to have seen of its project: one file beside its record, which it goes with."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from mcp_sandbox.hostfs.host_tree import HostEntry
from mcp_sandbox.store.atomic import write_atomically
from mcp_sandbox.store.encoding import decode, encode

__all__ = ["Base", "Home", "Seen", "forget_seen", "load_seen", "save_seen"]

_NAME = "seen.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What the project had at a path when the sandbox's own version came about."""

    entry: HostEntry | None
    """As it was; `None` is nothing."""
    since_ns: int = 0
    """The last moment at which the sandbox was known to have no version of its own, if the project's changed after it:
    then nobody knows what it was. Else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """What came home from the sandbox to a path."""

    entry: HostEntry | None
    """As it was left in the project; `None` is that it was removed there."""
    digest: str = ""
    """Of the content that came home, with its kind and mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that is known; paths are relative to the project."""

    looked_ns: int = 0
    """When the whole workspace was last compared with the project; 0 is never."""
    bases: Mapping[str, Base] = field(default_factory=dict[str, Base])
    """Of each path that differs, but for what lies below a directory that is new."""
    homes: Mapping[str, Home] = field(default_factory=dict[str, Home])


def load_seen(directory: Path) -> Seen:
    """Return what is known of the sandbox whose directory this is; nothing, if it cannot be read."""
    try:
        fields = decode((directory / _NAME).read_bytes())
        return Seen(
            looked_ns=int(fields["looked_ns"]),
            bases={path: Base(**_with_entry(base)) for path, base in fields["bases"].items()},
            homes={path: Home(**_with_entry(home)) for path, home in fields["homes"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Seen()


def save_seen(directory: Path, seen: Seen) -> None:
    """Remember it."""
    write_atomically(directory / _NAME, encode(asdict(seen)), durable=False)


def forget_seen(directory: Path) -> None:
    """Forget what was seen, for the files are others now; what came home did so all the same."""
    seen = load_seen(directory)
    if seen != Seen():
        save_seen(directory, Seen(homes=seen.homes))


def _with_entry(fields: object) -> "dict[str, Any]":
    known: dict[str, Any] = {**cast("dict[str, Any]", fields)}
    if known["entry"] is not None:
        known["entry"] = HostEntry(**known["entry"])
    return known
