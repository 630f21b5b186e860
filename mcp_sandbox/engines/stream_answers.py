"""What the answers of a byte-stream carrier say."""

import asyncio

from mcp_sandbox.engines.carrier import Reply, error_fields, os_error
from mcp_sandbox.guest.wire import Frame, Type

__all__ = ["reply", "seen", "verdict"]


async def verdict(answer: "asyncio.Future[Frame]") -> None:
    """Wait for an answer that others may wait for as well; raises as `reply`."""
    reply(await asyncio.shield(answer))


def seen(answer: "asyncio.Future[Frame]") -> None:
    """Mark an error as seen: its caller may have been cancelled."""
    if not answer.cancelled():
        answer.exception()


def reply(frame: Frame) -> Reply:
    """Return what an answer says.

    Raises:
        OSError: The agent refused.
    """
    if frame.type == Type.ERROR:
        raise os_error(error_fields(frame.payload)[0])
    return Reply(frame.payload)
