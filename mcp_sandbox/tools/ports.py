"""`expose_port`."""

from mcp_sandbox.tools.tool import SANDBOX, Deferred, Tool

__all__ = ["TOOLS"]

TOOLS = (
    Tool(
        name="expose_port",
        title="Expose a port",
        description=(
            "Make a TCP server in the sandbox, also one on 127.0.0.1, reachable from the user's machine at a URL, and "
            "say whether one is there: start it first, in the background. Lasts until closed or the session ends, "
            "also when the server or the sandbox is started again."
        ),
        handler=Deferred("mcp_sandbox.tools.calls.ports", "expose_port"),
        properties={
            "port": {"type": "integer", "description": "Port inside", "minimum": 1, "maximum": 65535},
            "host_port": {
                "type": "integer",
                "description": "Port of the user's machine; default: a free one",
                "minimum": 1,
                "maximum": 65535,
            },
            "wait_s": {
                "type": "number",
                "description": "Seconds to wait for the server to answer",
                "default": 5,
                "minimum": 0,
            },
            "close": {"type": "boolean", "description": "Close it instead", "default": False},
            "sandbox": SANDBOX,
        },
        required=("port",),
        profile="full",
        idempotent=True,
    ),
)
