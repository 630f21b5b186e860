"""`snapshot_create`, `snapshot_list`, `snapshot_restore`, `snapshot_delete`."""

from mcp_sandbox.tools.tool import SANDBOX, Deferred, Tool

__all__ = ["TOOLS"]

_CALLS = "mcp_sandbox.tools.calls.snapshots"
_SNAPSHOT = {"type": "string", "description": "Id or unique prefix"}

TOOLS = (
    Tool(
        name="snapshot_create",
        title="Take a snapshot",
        description=("Keep the state of every file, within milliseconds. Returns its id."),
        handler=Deferred(_CALLS, "snapshot_create"),
        properties={
            "note": {"type": "string", "description": "What this state is"},
            "sandbox": SANDBOX,
        },
    ),
    Tool(
        name="snapshot_list",
        title="List snapshots",
        description="List snapshots; (here) marks where the sandbox goes on from.",
        handler=Deferred(_CALLS, "snapshot_list"),
        properties={"sandbox": {"type": "string", "description": "Only its own; default: the whole project"}},
        read_only=True,
        idempotent=True,
    ),
    Tool(
        name="snapshot_restore",
        title="Restore a snapshot",
        description=(
            "Put the sandbox back into a snapshot's state, or only some paths. What is newer is kept as a snapshot "
            "first, so it can be undone. Without paths, running commands end."
        ),
        handler=Deferred(_CALLS, "snapshot_restore"),
        properties={
            "snapshot": _SNAPSHOT,
            "paths": {
                "type": "array",
                "items": {"type": "string"},
                "description": "What to put back; default: everything",
            },
            "sandbox": SANDBOX,
        },
        required=("snapshot",),
        destructive=True,
    ),
    Tool(
        name="snapshot_delete",
        title="Delete a snapshot",
        description="Delete a snapshot for good. Later ones stay whole.",
        handler=Deferred(_CALLS, "snapshot_delete"),
        properties={"snapshot": _SNAPSHOT},
        required=("snapshot",),
        profile="full",
        destructive=True,
        idempotent=True,
    ),
)
