"""`mcp-sandbox expose`: a server in a sandbox, reached from this machine for as long as the command runs."""

import argparse
import sys

from mcp_sandbox.cli.options import add_sandbox, add_scope, parser
from mcp_sandbox.cli.running import run, tell
from mcp_sandbox.service.ports import PortService
from mcp_sandbox.service.sandboxes import SandboxService

__all__ = ["main"]

_EXAMPLE = """\
  mcp-sandbox expose 8000

while in another terminal, or as a job of an agent:
  mcp-sandbox exec -- python3 -m http.server 8000"""


def main(arguments: list[str]) -> int:
    """Expose a port until the command is ended."""
    summary = "Make a TCP server in a sandbox reachable at a URL of this machine, until Ctrl-C."
    reader = parser("expose", summary, _EXAMPLE)
    reader.add_argument("port", type=int, help="the port inside, on any address, also 127.0.0.1")
    reader.add_argument("--host-port", type=int, default=0, metavar="N", help="the port here (default: a free one)")
    reader.add_argument(
        "--wait", type=float, default=5.0, metavar="S", help="seconds to wait for the server (default: 5)"
    )
    add_sandbox(reader)
    add_scope(reader)
    options = reader.parse_args(arguments)
    return run(options, lambda sandboxes: _expose(sandboxes, options))


async def _expose(sandboxes: SandboxService, options: argparse.Namespace) -> int:
    async with PortService(sandboxes) as ports:
        exposure = await ports.expose(
            options.port, sandbox=options.sandbox, host_port=options.host_port, wait_s=options.wait
        )
        tell(exposure.notices)
        print(exposure.exposed.url, flush=True)
        if not exposure.server:
            print(f"mcp-sandbox: nothing listens on port {options.port} inside yet", file=sys.stderr)
        await ports.wait_closed(exposure.exposed)
    print("mcp-sandbox: the sandbox was destroyed", file=sys.stderr)
    return 1
