"""The event loop where the kernel runs out of watches. Run out of for real, that would stop the programs of others."""

import asyncio
import errno
import os
import selectors
import socket
from typing import Any

import pytest

from mcp_sandbox.cli.event_loop import EnduringSelector, run_loop


class ScarceSelector(selectors.SelectSelector):
    """Takes eight descriptors."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if len(self.get_map()) >= 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().register(fileobj, events, data)


async def converse(pairs: int) -> int:
    """Let every one of some socket pairs answer; return how many did."""
    loop = asyncio.get_running_loop()
    ends = [socket.socketpair() for _ in range(pairs)]
    answered = [loop.create_future() for _ in ends]
    for (near, far), answer in zip(ends, answered, strict=True):
        loop.add_reader(near, lambda answer=answer: answer.done() or answer.set_result(None))
        far.setblocking(False)
        await loop.sock_sendall(far, b"x")
    async with asyncio.timeout(10):
        await asyncio.gather(*answered)
    for near, far in ends:
        loop.remove_reader(near)
        near.close()
        far.close()
    return pairs


@pytest.mark.parametrize("scarce", [False, True])
def test_everything_is_heard_whether_or_not_there_are_watches(monkeypatch: pytest.MonkeyPatch, scarce: bool) -> None:
    if scarce:
        monkeypatch.setattr(selectors, "DefaultSelector", ScarceSelector)
    assert run_loop(converse(40)) == 40


def test_other_errors_are_told() -> None:
    selector = EnduringSelector()
    with pytest.raises((ValueError, OSError)):
        selector.register(-1, selectors.EVENT_READ)
    selector.close()


def test_children_are_waited_for() -> None:
    async def child() -> int:
        return await (await asyncio.create_subprocess_exec("true")).wait()

    assert run_loop(child()) == 0
