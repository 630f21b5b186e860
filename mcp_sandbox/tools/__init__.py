"""The MCP edge: one file per noun. Beside `transport`, the only package that imports `mcp`."""

__all__: list[str] = []
