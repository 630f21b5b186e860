"""`sandbox_create`, `sandbox_fork`, `sandbox_list`, `sandbox_destroy`."""

from mcp_sandbox.tools.tool import SANDBOX, Deferred, Tool

__all__ = ["TOOLS"]

_CALLS = "mcp_sandbox.tools.calls.sandboxes"

TOOLS = (
    Tool(
        name="sandbox_create",
        title="Create sandboxes",
        description=(
            "Create sandboxes beside the project's own, to try variants in parallel or to go on from a snapshot."
        ),
        handler=Deferred(_CALLS, "sandbox_create"),
        properties={
            "name": {"type": "string", "description": "With count > 1: name-1, name-2, ..."},
            "provider": {"type": "string", "description": "Default: the configured one"},
            "image": {"type": "string", "description": "Each provider has its own"},
            "from_snapshot": {"type": "string", "description": "Id or prefix"},
            "count": {"type": "integer", "description": "How many", "default": 1, "minimum": 1, "maximum": 100},
        },
    ),
    Tool(
        name="sandbox_fork",
        title="Fork a sandbox",
        description=(
            "Make new sandboxes that start as a live one is now, all or none: to try variants in parallel. Its running "
            "commands go on, and are not in the new ones."
        ),
        handler=Deferred(_CALLS, "sandbox_fork"),
        properties={
            "count": {"type": "integer", "description": "How many", "default": 1, "minimum": 1, "maximum": 100},
            "name": {"type": "string", "description": "With count > 1: name-1, name-2, ..."},
            "sandbox": SANDBOX,
        },
        profile="full",
    ),
    Tool(
        name="sandbox_list",
        title="List sandboxes",
        description="List this project's sandboxes.",
        handler=Deferred(_CALLS, "sandbox_list"),
        read_only=True,
        idempotent=True,
    ),
    Tool(
        name="sandbox_destroy",
        title="Destroy a sandbox",
        description="End a sandbox and delete its files for good. Its snapshots stay.",
        handler=Deferred(_CALLS, "sandbox_destroy"),
        properties={"sandbox": {"type": "string", "description": "Id or name"}},
        required=("sandbox",),
        destructive=True,
        idempotent=True,
    ),
)
