"""Servers inside a sandbox, as a guest agent reaches them."""

from typing import Final

import anyio

from mcp_sandbox.core.ports import Connection, DialRequest
from mcp_sandbox.engines.carrier import GuestCarrier
from mcp_sandbox.guest.wire import GuestProtocolError, Type, fields

__all__ = ["dial"]

_LOOPBACK: Final = {4: "127.0.0.1", 6: "[::1]"}


async def dial(carrier: GuestCarrier, request: DialRequest) -> Connection:
    """Connect to a server on the loopback inside.

    Raises:
        ConnectionRefusedError: Nothing listens there.
        TimeoutError: It does not accept.
    """
    with anyio.fail_after(request.within_s):
        duplex = await carrier.duplex(Type.CONNECT, fields(request.port))
    loopback = _LOOPBACK.get(int.from_bytes(duplex.reply.payload[:4], "little"))
    if loopback is None:
        await duplex.stream.aclose()
        raise GuestProtocolError("a connection of an unknown family")
    return Connection(address=f"{loopback}:{request.port}", stream=duplex.stream)
