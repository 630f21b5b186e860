"""What the registry remembers of one sandbox."""

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, cast

from mcp_sandbox.core.errors import StateError
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.core.snapshot import SnapshotId
from mcp_sandbox.store.encoding import decode

__all__ = ["Owner", "SandboxRecord", "file_time_ns", "now", "timestamp"]


def now() -> str:
    """Return the present time as `timestamp` writes it."""
    return timestamp(datetime.now(UTC))


_FILE_CLOCK: Final = getattr(time, "CLOCK_REALTIME_COARSE", 5 if sys.platform == "linux" else time.CLOCK_REALTIME)
"""What the kernel takes the times of files from; the `time` module does not name it."""


def file_time_ns() -> int:
    """Return the time that the kernel gives to a file that changes now, or a little earlier: never a later one."""
    return time.clock_gettime_ns(_FILE_CLOCK)


def timestamp(at: datetime) -> str:
    """Return a time in UTC, ISO 8601 with milliseconds, so that text sorts by time."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose a sandbox is, and for which project."""

    principal: str
    """The OS user over stdio, the subject of the token over HTTP."""
    project: str
    """Real path of the project on the host; empty without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """One sandbox as the registry remembers it, whatever the engine says.

    Fields may be added at will: old versions keep what they do not know. `SCHEMA` rises when an old version would
    misread the record.
    """

    SCHEMA: ClassVar[int] = 1

    id: SandboxId
    provider: str
    principal: str
    project: str
    created_at: str
    """UTC, ISO 8601."""
    last_used_at: str
    """UTC, ISO 8601; at most a minute late."""
    name: str = ""
    is_default: bool = False
    """Whether calls without a handle, from the project it belongs to, mean this one."""
    parent: SnapshotId | None = None
    """The snapshot that it last took, was restored to, or was made from."""
    image: str | None = None
    network: str = "none"
    workspace: str = "empty"
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    """By name of the field of `Limits`; empty if an old version did not note them."""
    best_effort: bool = False
    """Whether limits that cannot be enforced were accepted."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of every command, besides the provider's own; empty if an old version did not note them."""
    denied: tuple[str, ...] = ()
    """What of the project it cannot see: globs relative to it."""
    project_since_ns: int = 0
    """Since when its files may rest on what the project held, by the kernel's clock for files; 0 is not known."""
    from_snapshot: bool = False
    """Whether it, or what it was forked from, was made from a snapshot, which differs from the project as well."""

    @property
    def owner(self) -> Owner:
        """Whose it is."""
        return Owner(principal=self.principal, project=self.project)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return {"schema": self.SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "SandboxRecord":
        """Read a record, passing over fields that this version does not know.

        Raises:
            StateError: A newer version wrote it in a way that this one would misread, or it is not a record.
        """
        schema = data.get("schema")
        if isinstance(schema, int) and schema > cls.SCHEMA:
            raise StateError(
                "Sandbox record not read",
                why=f"a newer mcp-sandbox wrote it (schema {schema}, this version knows {cls.SCHEMA})",
                fix="Upgrade mcp-sandbox",
            )
        names = [each.name for each in fields(cls) if each.name in data]
        try:
            return cls(**{name: _checked(name, data[name]) for name in names})
        except TypeError as error:
            raise _damaged(str(error)) from error

    @classmethod
    def parse(cls, text: bytes) -> "SandboxRecord":
        """Read a record from the bytes of its file; `StateError` as for `from_json`."""
        try:
            return cls.from_json(decode(text))
        except ValueError as error:
            raise _damaged(str(error)) from error


_TYPES: Final = {"is_default": bool, "best_effort": bool, "from_snapshot": bool, "project_since_ns": int}


def _checked(name: str, value: object) -> Any:
    if name == "limits":
        return _checked_limits(value)
    if name == "denied":
        return _checked_names(value)
    if name == "env":
        return _checked_env(value)
    expected = _TYPES.get(name, str)
    if isinstance(value, expected) or (value is None and name in ("parent", "image")):
        return value
    raise TypeError(f"{name} is {value!r}")


def _checked_limits(value: object) -> dict[str, float]:
    numbers = cast("dict[str, object]", value) if isinstance(value, dict) else {"": None}
    checked: dict[str, float] = {name: number for name, number in numbers.items() if isinstance(number, int | float)}
    if len(checked) != len(numbers) or any(number <= 0 for number in checked.values()):
        raise TypeError(f"limits is {value!r}")
    return checked


def _checked_env(value: object) -> dict[str, str]:
    texts = cast("dict[str, object]", value) if isinstance(value, dict) else {"": None}
    checked = {name: text for name, text in texts.items() if isinstance(text, str)}
    if len(checked) != len(texts):
        raise TypeError("env holds something else than texts")
    return checked


def _checked_names(value: object) -> tuple[str, ...]:
    names = cast("list[object]", value) if isinstance(value, list | tuple) else [None]
    checked = tuple(name for name in names if isinstance(name, str))
    if len(checked) != len(names):
        raise TypeError(f"denied is {value!r}")
    return checked


def _damaged(why: str) -> StateError:
    return StateError(
        "Sandbox record not read", why=f"it is damaged ({why})", fix="Remove its directory from the registry"
    )
