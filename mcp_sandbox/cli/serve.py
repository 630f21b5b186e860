"""`mcp-sandbox serve`: the tools over standard input and output.

Options are read by hand and everything else is imported late: a client waits for the first answer.
"""

import os
import sys
from typing import NamedTuple

from mcp_sandbox.settings.project import find_project
from mcp_sandbox.tools.tool import PROFILES

__all__ = ["Options", "main"]

_EXAMPLE = "  mcp-sandbox serve --project ~/src/app --tools full"
_NAMES = {"--project": "project", "--provider": "provider", "--tools": "tools", "--tool-prefix": "tool_prefix"}


class Options(NamedTuple):
    """What can be said to a server."""

    project: str | None = None
    provider: str | None = None
    tools: str = "default"
    tool_prefix: str = ""


def main(arguments: list[str]) -> int:
    """Serve one client until it goes away."""
    options = _parsed(arguments)
    project = find_project(options.project)
    from mcp_sandbox.transport.wire import claim_wire

    wire = claim_wire()

    import asyncio

    import anyio

    from mcp_sandbox.app import open_services
    from mcp_sandbox.core.errors import SandboxError
    from mcp_sandbox.service.kept import Kept
    from mcp_sandbox.service.services import Services
    from mcp_sandbox.tools.server import build_server
    from mcp_sandbox.transport.stdio import serve_stdio

    async def complain(services: Kept[Services]) -> None:
        """Say at once what every tool would answer, for the person who reads the client's log."""
        try:
            await services.get()
        except SandboxError as error:
            print(f"mcp-sandbox: {error}", file=sys.stderr)

    async def serve() -> None:
        async with anyio.create_task_group() as tasks:
            services = Kept(tasks, lambda: open_services(project=project, provider=options.provider or ""))
            server = build_server(services.get, profile=options.tools, prefix=options.tool_prefix)
            tasks.start_soon(complain, services)
            try:
                await serve_stdio(server, wire=wire)
            finally:
                services.release()

    asyncio.run(serve())
    sys.stderr.flush()
    # Everything is closed; a thread that hangs in a system call must not keep the process alive.
    os._exit(0)


def _parsed(arguments: list[str]) -> Options:
    given: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        option, equals, value = argument.partition("=")
        field = _NAMES.get(option)
        text = value if equals else next(rest, None)
        if field is None or text is None:
            return _explained(arguments)
        given[field] = text
    options = Options(**given)
    return options if options.tools in PROFILES and _is_prefix(options.tool_prefix) else _explained(arguments)


def _is_prefix(text: str) -> bool:
    return len(text) <= 32 and all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in text)


def _explained(arguments: list[str]) -> Options:
    """Let argparse print the help, or what is wrong, and end the process."""
    import argparse

    from mcp_sandbox.cli.options import add_scope, parser

    def prefix(text: str) -> str:
        if not _is_prefix(text):
            raise argparse.ArgumentTypeError("up to 32 letters, digits, '_' and '-' are allowed")
        return text

    reader = parser("serve", "Serve the tools over standard input and output.", _EXAMPLE)
    add_scope(reader)
    reader.add_argument("--tools", choices=PROFILES, default="default", help="which tools to list (default: default)")
    reader.add_argument(
        "--tool-prefix", metavar="P", type=prefix, default="", help="what every tool's name begins with"
    )
    return Options(**vars(reader.parse_args(arguments)))
