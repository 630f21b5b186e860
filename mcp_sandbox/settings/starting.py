"""What new sandboxes start as: `--workspace copy --runtime runsc`, or `MCP_SANDBOX_WORKSPACE`, `MCP_SANDBOX_RUNTIME`.

Imports next to nothing: a server reads its options before it answers for the first time.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["WORKSPACES", "Start", "find_start"]

WORKSPACES = ("overlay", "copy", "mount", "empty")


class Start:
    """As it was asked for."""

    __slots__ = ("runtime", "workspace")

    def __init__(self, workspace: str = "overlay", runtime: str | None = None) -> None:
        self.workspace = workspace
        self.runtime = runtime


def find_start(workspace: str | None, runtime: str | None, environ: "Mapping[str, str]" = os.environ) -> Start:
    """Return what the options, else the variables say.

    Raises:
        ConfigError: There is no such mode of the workspace.
    """
    name = "--workspace" if workspace is not None else "MCP_SANDBOX_WORKSPACE"
    mode = (workspace if workspace is not None else environ.get("MCP_SANDBOX_WORKSPACE")) or "overlay"
    if mode not in WORKSPACES:
        from mcp_sandbox.core.errors import ConfigError

        raise ConfigError(
            f"{name}={mode!r} cannot be used", why=f"there is only {', '.join(WORKSPACES)}", fix="Use one of them"
        )
    return Start(mode, (runtime if runtime is not None else environ.get("MCP_SANDBOX_RUNTIME")) or None)
