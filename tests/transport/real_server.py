"""The server without its preamble, run as a program by the tests: real_server.py PROFILE PREFIX."""

import sys

from mcp_sandbox.transport.claim import claim_wire

__all__: list[str] = []

if __name__ == "__main__":
    wire = claim_wire()
    from mcp_sandbox.cli.serving import serve
    from mcp_sandbox.settings.starting import Start

    serve(
        project="",
        provider="memory",
        image="",
        profile=sys.argv[1],
        prefix=sys.argv[2],
        lifetimes={},
        wanted=None,
        start=Start(),
        pool=0,
        allow_apply=False,
        wire=wire,
        handover=None,
    )
