"""`python -m mcp_sandbox` is `mcp-sandbox`."""

from mcp_sandbox.cli import main

__all__: list[str] = []

raise SystemExit(main())
