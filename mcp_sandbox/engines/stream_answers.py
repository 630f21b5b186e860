"""What the answers of a byte-stream carrier say."""

import asyncio
from typing import Final

import anyio

from mcp_sandbox.engines.carrier import Reply, error_fields, no_answer, os_error
from mcp_sandbox.engines.kernels import Kernel
from mcp_sandbox.guest.wire import PROTOCOL_VERSION, Frame, GuestProtocolError, Type

__all__ = ["greeting", "reply", "seen", "verdict"]

WELCOME_S: Final = 10.0


async def greeting(welcome: "asyncio.Future[Frame]") -> Kernel:
    """Wait for an agent's greeting; return the kernel that it names.

    Raises:
        SandboxGoneError: It ended without a word.
        ProviderUnavailableError: It says nothing.
        GuestProtocolError: It speaks another version of the protocol.
    """
    try:
        with anyio.fail_after(WELCOME_S):
            frame = await welcome
    except TimeoutError:
        raise no_answer("the agent in the sandbox", WELCOME_S) from None
    if frame.number != PROTOCOL_VERSION:
        raise GuestProtocolError(f"version {frame.number}, and this side speaks {PROTOCOL_VERSION}")
    return Kernel.told(frame.payload[4:])


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
