"""Every tool there is, in the one order that clients see.

What is listed depends on the profile alone, never on a provider or a manifest: it is answered before either is looked
at, and it must not change while a client is connected.
"""

from mcp_sandbox.tools import changes, files, ports, sandboxes, snapshots
from mcp_sandbox.tools import exec as exec_tools
from mcp_sandbox.tools.tool import PROFILES, Tool

__all__ = ["ALL_TOOLS", "tools_for"]

_ORDER = (
    "exec",
    "job",
    "read_file",
    "write_file",
    "edit_file",
    "list_files",
    "search_files",
    "snapshot_create",
    "snapshot_list",
    "snapshot_restore",
    "snapshot_delete",
    "sandbox_create",
    "sandbox_fork",
    "sandbox_list",
    "sandbox_destroy",
    "changes",
    "apply_changes",
    "expose_port",
)


def _collected() -> tuple[Tool, ...]:
    tools = (*exec_tools.TOOLS, *files.TOOLS, *snapshots.TOOLS, *sandboxes.TOOLS, *changes.TOOLS, *ports.TOOLS)
    if sorted(tool.name for tool in tools) != sorted(_ORDER):
        raise RuntimeError(f"the catalog's order does not fit the tools: {[tool.name for tool in tools]}")
    return tuple(sorted(tools, key=lambda tool: _ORDER.index(tool.name)))


ALL_TOOLS = _collected()
"""Every tool, whatever the profile."""


def tools_for(profile: str, prefix: str = "") -> tuple[Tool, ...]:
    """Return the tools of a profile, their names and what they say about each other under `prefix`."""
    shown = PROFILES.index(profile)
    chosen = tuple(tool for tool in ALL_TOOLS if PROFILES.index(tool.profile) <= shown)
    if not prefix:
        return chosen
    names = {tool.name: f"{prefix}{tool.name}" for tool in chosen}
    return tuple(tool.renamed(names) for tool in chosen)
