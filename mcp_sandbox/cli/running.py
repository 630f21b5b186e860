"""Running a command so that signals end it cleanly."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import anyio

from mcp_sandbox.app import open_sandboxes
from mcp_sandbox.cli.event_loop import run_loop
from mcp_sandbox.cli.wording import for_people
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.settings.limits import WantedLimits
from mcp_sandbox.settings.project import find_project
from mcp_sandbox.settings.starting import Start

__all__ = ["run", "tell", "until_signal"]


def run(
    options: argparse.Namespace,
    command: Callable[[SandboxService], Awaitable[int]],
    wanted: WantedLimits | None = None,
    start: Start | None = None,
    *,
    only_looks: bool = False,
) -> int:
    """Run a command on the sandboxes that its options ask for, and return its exit status.

    One that `only_looks` at what there is, or removes it, may be run where no sandbox can be made.

    SIGINT, SIGTERM and SIGHUP cancel it, so that it cleans up; a second one ends the process at once.
    """
    project = find_project(options.project)

    async def whole() -> int:
        async with open_sandboxes(
            project=project,
            provider=options.provider or "",
            image=getattr(options, "image", ""),
            everywhere=True,
            only_looks=only_looks,
            wanted=wanted,
            start=start,
        ) as sandboxes:
            return await command(sandboxes)

    return run_loop(until_signal(whole))


def tell(notices: tuple[str, ...]) -> None:
    """Print what must be told once."""
    for notice in notices:
        print(f"mcp-sandbox: {for_people(notice)}", file=sys.stderr)


async def until_signal(command: Callable[[], Awaitable[int]]) -> int:
    """Return the exit status of a command, or end the process with that of a signal."""
    received: list[int] = []
    loop = asyncio.get_running_loop()
    with anyio.CancelScope() as scope:

        def stop(number: int) -> None:
            if received:
                os._exit(128 + number)
            received.append(number)
            scope.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                loop.add_signal_handler(number, stop, number)
        status = await command()
        if not received:
            return status
    # A thread may still wait for a stream that nobody reads or writes; an orderly exit would wait for it.
    os._exit(128 + received[0])
