"""One call of a tool, and what it answers: plain data, independent of the MCP library."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_sandbox.service.approval import Ask
from mcp_sandbox.service.services import Services

__all__ = ["Answer", "Call", "Handler", "Image"]


@dataclass(frozen=True, slots=True)
class Image:
    """A picture for the model."""

    data: bytes
    mime_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a tool says. A failing command is an answer; `is_error` is for "could not do it"."""

    text: str
    structured: Mapping[str, Any] | None = None
    """Small machine-readable facts, the same as in `text`; never file bodies or output (three of five clients drop
    `text` when this is there)."""
    images: tuple[Image, ...] = ()
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call, with its arguments already checked and coerced by the schema; absent ones have their default."""

    arguments: Mapping[str, Any]
    services: Services
    progress: Callable[[str], Awaitable[None]]
    """Show the person one line; no-op where the client did not ask for progress."""
    prefix: str = ""
    """What the names of tools begin with, where an answer names one."""
    window_s: float = 45.0
    """Seconds that this client surely waits for an answer."""
    ask: Ask | None = None
    """Asks the person."""


Handler = Callable[[Call], Awaitable[Answer]]
