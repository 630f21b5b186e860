"""What calls of tools do: one file per noun, beside what declares them. Loaded with the server, never to list tools."""

from mcp_sandbox.tools.calls import exec, files, ports, sandboxes, snapshots

__all__ = ["exec", "files", "ports", "sandboxes", "snapshots"]
