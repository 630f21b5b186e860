"""What calls of tools do: one file per noun, beside what declares them. Loaded with the server, never to list tools."""

from mcp_sandbox.tools.calls import changes, exec, files, ports, sandboxes, snapshots

__all__ = ["changes", "exec", "files", "ports", "sandboxes", "snapshots"]
