"""A sandbox for any MCP-capable agent: tools to run commands and code, to edit files, to snapshot and restore."""

__all__ = ["__version__"]

__version__ = "0.1.0"
