"""`mcp-sandbox demo`: a real MCP client uses a real server, in front of the reader."""

import argparse
import os
import sys
import textwrap
import time
from typing import cast

import anyio

from mcp_sandbox import __version__
from mcp_sandbox.cli.demo.agent import Agent, ToolFailedError, connected, load_sdk, server_command
from mcp_sandbox.cli.demo.display import Display, duration, is_lively
from mcp_sandbox.cli.demo.scenes import SCENES, SECRET, Show, UnexpectedError
from mcp_sandbox.cli.demo.stage import (
    Stage,
    alive,
    descendants,
    file_system,
    mounts_below,
    set_up,
    state_cannot_hold_sandboxes,
)
from mcp_sandbox.cli.demo.timings import Timing, as_json, measure, show_timings, start_timing
from mcp_sandbox.cli.event_loop import run_loop
from mcp_sandbox.cli.options import add_json, parser
from mcp_sandbox.cli.running import until_signal
from mcp_sandbox.cli.tables import print_json

__all__ = ["main"]

_EXAMPLE = "  mcp-sandbox demo"
_SCENES = len(SCENES) + 3
_DEATH_S = 5.0
_TOOLS_WIDTH = 72
_LAST_WORDS = 1000


def main(arguments: list[str]) -> int:
    """Show what a sandbox can do; 1 if something does not work here."""
    reader = parser("demo", "Start a server, use it as an agent would, and leave nothing behind.", _EXAMPLE)
    add_json(reader)
    options = reader.parse_args(arguments)
    return run_loop(until_signal(lambda: _perform(options)))


async def _perform(options: argparse.Namespace) -> int:
    stream = sys.stderr if options.json else sys.stdout
    display = Display(stream, lively=is_lively(stream, os.environ), scenes=_SCENES, quiet=options.json)
    display.title(f"mcp-sandbox {__version__}", "a real MCP client uses a real server, as your agent will")
    timings: list[Timing] = []
    failure = ""
    async with display.moving(), set_up() as stage:
        kind = file_system(stage.state)
        try:
            timings = await _play(display, stage)
        except Exception as error:  # noqa: BLE001 (whatever it is, the reader gets a sentence)
            failure = _explained(error, stage)
    if failure:
        display.failure(failure)
        display.note("`mcp-sandbox doctor` tries every step by itself.")
        return 1
    if options.json:
        print_json(as_json(timings, total_s=display.elapsed_s, file_system=kind))
    else:
        _say_goodbye(display)
    return 0


async def _play(display: Display, stage: Stage) -> list[Timing]:
    display.scene("A client starts a server")
    display.doing("loading the client")
    await load_sdk()
    arguments = ["serve", "--project", str(stage.project)]
    variables = {"MCP_SANDBOX_HOME": str(stage.state), "MCP_SANDBOX_PROVIDER": "local", **SECRET}
    display.command(f"mcp-sandbox {' '.join(arguments)}")
    display.doing("starting the server")
    began_s = time.perf_counter()
    with stage.log.open("w", encoding="utf-8") as log:
        async with connected(arguments, variables, log) as agent:
            tools = await agent.tools()
            started_s = time.perf_counter() - began_s
            _show_tools(display, agent, tools, started_s)
            show = Show(agent=agent, display=display, stage=stage)
            for scene in SCENES:
                await scene(show)
            display.scene("What it costs")
            timings = [await start_timing(started_s), *await measure(show)]
            show_timings(show, timings)
            processes = await _leave(show)
    await _check_nothing_is_left(display, stage, processes)
    return timings


def _show_tools(display: Display, agent: Agent, tools: list[str], started_s: float) -> None:
    display.call("tools/list", f"MCP {agent.protocol}, {len(tools)} tools", started_s)
    display.output("\n".join(textwrap.wrap("  ".join(tools), _TOOLS_WIDTH)))


async def _leave(show: Show) -> dict[int, str]:
    """Destroy the sandbox while something runs in it; return all processes that there were before."""
    show.display.scene("The end")
    await show.agent.call("exec", command="sleep 1000", run_in_background=True)
    processes = descendants()
    listed = await show.agent.call("sandbox_list")
    for sandbox in listed.facts["sandboxes"]:
        await show.call("sandbox_destroy", f"{sandbox['id'][:12]}, in which a job runs", sandbox=sandbox["id"])
    show.display.doing("ending the server")
    return processes


async def _check_nothing_is_left(display: Display, stage: Stage, processes: dict[int, str]) -> None:
    with anyio.move_on_after(_DEATH_S):
        while alive(processes):  # noqa: ASYNC110 (nobody tells when another program's child has ended)
            await anyio.sleep(0.01)
    left, mounts = alive(processes), mounts_below(stage.root)
    display.doing("removing every file")
    await stage.remove()
    if left or mounts or stage.root.exists():
        raise UnexpectedError(f"Expected that nothing is left, but found: processes {left}, {mounts} mounts")
    display.proof(f"nothing is left: {len(processes)} processes have ended, no mount, no file")


def _explained(error: BaseException, stage: Stage) -> str:
    """Return what a reader can do with an error, whatever task groups wrapped around it."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, ToolFailedError):
        return str(error)
    if isinstance(error, UnexpectedError):
        return f"{error}. Report this as a bug."
    words = stage.log.read_text("utf-8", "replace").strip() if stage.log.exists() else ""
    last = f" The server's last words: {words[-_LAST_WORDS:]}" if words else ""
    return f"The server does not answer as it should: {type(error).__name__}: {error}.{last}"


def _say_goodbye(display: Display) -> None:
    command = " ".join(server_command())
    display.line()
    display.line(f"All of this took {duration(display.elapsed_s)}. Give it to your agent, for example:")
    display.line(f"    claude mcp add --scope user sandbox -- {command} serve")
    if state_cannot_hold_sandboxes():
        display.line()
        display.note(
            "Here your home directory is on overlayfs, as in a container, where no sandbox can be: set "
            "MCP_SANDBOX_HOME to a directory on ext4, xfs, btrfs or tmpfs. This demo has used one in memory."
        )
