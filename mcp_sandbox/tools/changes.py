"""`changes`, `apply_changes`."""

from mcp_sandbox.tools.tool import SANDBOX, Deferred, Tool

__all__ = ["TOOLS"]

_CALLS = "mcp_sandbox.tools.calls.changes"

TOOLS = (
    Tool(
        name="changes",
        title="Changes",
        description=("What changed in the sandbox since it started, as a unified diff."),
        handler=Deferred(_CALLS, "changes"),
        properties={
            "since": {"type": "string", "description": "Snapshot; default: the start"},
            "paths": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Default: /workspace",
            },
            "summary": {"type": "boolean", "description": "A line for each path", "default": False},
            "offset": {"type": "integer", "description": "First line", "default": 1},
            "sandbox": SANDBOX,
        },
        read_only=True,
        idempotent=True,
    ),
    Tool(
        name="apply_changes",
        title="Apply changes",
        description=("Bring changes home into the user's project, all or none. Needs the user's leave."),
        handler=Deferred(_CALLS, "apply_changes"),
        properties={
            "paths": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Default: all",
            },
            "sandbox": SANDBOX,
        },
        destructive=True,
        open_world=True,
    ),
)
