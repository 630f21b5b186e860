"""`mcp-sandbox serve`: the tools over standard input and output.

A client waits for the first answer, so this reads its options by hand and answers before it loads the real server.
"""

import os
import sys

from mcp_sandbox import __version__
from mcp_sandbox.settings.lifetimes import lifetimes
from mcp_sandbox.settings.limits import BEST_EFFORT, LIMIT_OPTIONS, WantedLimits, find_limits
from mcp_sandbox.settings.pool import find_pool
from mcp_sandbox.settings.project import find_project
from mcp_sandbox.settings.starting import Start, find_start
from mcp_sandbox.tools.catalog import tools_for
from mcp_sandbox.tools.listing import LIST_TTL_MS, SERVER_NAME, SERVER_TITLE, instructions, listed
from mcp_sandbox.tools.tool import PROFILES
from mcp_sandbox.transport.claim import Wire, claim_wire
from mcp_sandbox.transport.opening import Announcement
from mcp_sandbox.transport.preamble import Handover, Preparation, answer_at_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Options", "main"]

_EXAMPLE = "  mcp-sandbox serve --project ~/src/app --tools full"
_ALLOW_APPLY = "--allow-apply"
_NAMES = {
    "--project": "project",
    "--provider": "provider",
    "--image": "image",
    "--tools": "tools",
    "--tool-prefix": "tool_prefix",
    "--idle-time": "idle_time",
    "--max-age": "max_age",
    "--max-sandboxes": "max_sandboxes",
    "--pool": "pool",
    "--workspace": "workspace",
    "--runtime": "runtime",
    "--network": "network",
}


class Options:
    """What can be said to a server."""

    __slots__ = (
        "allow_apply", "image", "lifetimes", "limits", "network", "pool", "project", "provider", "runtime",
        "tool_prefix", "tools", "workspace",
    )  # fmt: skip

    def __init__(
        self,
        *,
        project: str | None = None,
        provider: str | None = None,
        image: str = "",
        tools: str = "default",
        tool_prefix: str = "",
        idle_time: str | None = None,
        max_age: str | None = None,
        max_sandboxes: str | None = None,
        pool: str | None = None,
        workspace: str | None = None,
        runtime: str | None = None,
        network: str | None = None,
        allow_apply: bool = False,
        limits: "Mapping[str, str | bool | None] | None" = None,
    ) -> None:
        self.project = project
        self.provider = provider
        self.image = image
        self.tools = tools
        self.tool_prefix = tool_prefix
        self.lifetimes = lifetimes(idle_time=idle_time, max_age=max_age, max_sandboxes=max_sandboxes)
        self.pool = pool
        self.workspace = workspace
        self.runtime = runtime
        self.network = network
        self.allow_apply = allow_apply
        self.limits = limits or {}


def main(arguments: list[str]) -> int:
    """Serve one client until it goes away."""
    options = _parsed(arguments)
    project = find_project(options.project)
    wanted = find_limits(options.limits)
    pool = find_pool(options.pool)
    start = find_start(options.workspace, options.runtime, options.network)
    if sys.platform == "win32":
        return _serve(options, project, wanted, start, pool, None, None)
    wire = claim_wire()
    preparation = Preparation(_load)
    handover = answer_at_once(wire, _announcement(options), preparation)
    if handover is None:
        os._exit(0)
    preparation.finish()
    return _serve(options, project, wanted, start, pool, wire, handover)


def _load() -> None:
    from mcp_sandbox.cli.loading import load_real_server

    load_real_server()


def _serve(
    options: Options,
    project: str,
    wanted: WantedLimits | None,
    start: Start,
    pool: int,
    wire: Wire | None,
    handover: Handover | None,
) -> int:
    from mcp_sandbox.cli.serving import serve

    serve(
        project=project,
        provider=options.provider or "",
        image=options.image,
        profile=options.tools,
        prefix=options.tool_prefix,
        lifetimes=options.lifetimes,
        wanted=wanted,
        start=start,
        pool=pool,
        allow_apply=options.allow_apply,
        wire=wire,
        handover=handover,
    )
    return 0


def _announcement(options: Options) -> Announcement:
    tools = tools_for(options.tools, options.tool_prefix)
    return Announcement(
        name=SERVER_NAME,
        title=SERVER_TITLE,
        version=__version__,
        instructions=instructions(tools, options.tool_prefix),
        tools=listed(tools, options.tool_prefix),
        ttl_ms=LIST_TTL_MS,
    )


def _parsed(arguments: list[str]) -> Options:
    given: dict[str, str] = {}
    limits: dict[str, str | bool | None] = {}
    allow_apply = False
    rest = iter(arguments)
    for argument in rest:
        option, equals, value = argument.partition("=")
        field, limit = _NAMES.get(option), option.removeprefix("--")
        if argument == f"--{BEST_EFFORT}":
            limits[BEST_EFFORT] = True
            continue
        if argument == _ALLOW_APPLY:
            allow_apply = True
            continue
        text = value if equals else next(rest, None)
        if text is None or (field is None and (limit == option or limit not in LIMIT_OPTIONS)):
            return _explained(arguments)
        if field is None:
            limits[limit] = text
        else:
            given[field] = text
    try:
        options = Options(**given, allow_apply=allow_apply, limits=limits)
    except ValueError:
        return _explained(arguments)
    return options if options.tools in PROFILES and _is_prefix(options.tool_prefix) else _explained(arguments)


def _is_prefix(text: str) -> bool:
    return len(text) <= 32 and all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in text)


def _explained(arguments: list[str]) -> Options:
    """Let argparse print the help, or what is wrong, and end the process."""
    import argparse

    from mcp_sandbox.cli.options import add_image, add_limits, add_scope, add_start, parser

    def prefix(text: str) -> str:
        if not _is_prefix(text):
            raise argparse.ArgumentTypeError("up to 32 letters, digits, '_' and '-' are allowed")
        return text

    reader = parser("serve", "Serve the tools over standard input and output.", _EXAMPLE)
    add_scope(reader)
    add_image(reader)
    add_start(reader)
    reader.add_argument("--tools", choices=PROFILES, default="default", help="which tools to list (default: default)")
    reader.add_argument(
        "--tool-prefix", metavar="P", type=prefix, default="", help="what every tool's name begins with"
    )
    reader.add_argument(
        "--idle-time",
        metavar="T",
        help="end the processes of a sandbox after so long without a call, 60s or more (default: never)",
    )
    reader.add_argument(
        "--max-age",
        metavar="T",
        help="keep a sandbox that is not a project's own as a snapshot only after so long without use (default: 30d)",
    )
    reader.add_argument("--max-sandboxes", metavar="N", help="how many a project may have (default: 256)")
    reader.add_argument(
        "--pool",
        metavar="N",
        help="keep N further sandboxes started, so that the next ones are there at once (default: 0)",
    )
    reader.add_argument(
        _ALLOW_APPLY,
        action="store_true",
        help="let models bring changes home into the project, without asking anybody; `mcp-sandbox apply --undo` takes "
        "the last ones back (default: only `mcp-sandbox apply` does)",
    )
    add_limits(reader)
    parsed = vars(reader.parse_args(arguments))
    limits = {name: parsed.pop(name.replace("-", "_")) for name in (*LIMIT_OPTIONS, BEST_EFFORT)}
    try:
        return Options(**parsed, limits=limits)
    except ValueError as error:
        reader.error(str(error))
