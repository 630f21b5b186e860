"""What new sandboxes start as: `--workspace copy --runtime runsc`, or `MCP_SANDBOX_WORKSPACE`, `MCP_SANDBOX_RUNTIME`.

Imports next to nothing: a server reads its options before it answers for the first time.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NETWORKS", "WORKSPACES", "Start", "find_start"]

WORKSPACES = ("overlay", "copy", "mount", "empty")
NETWORKS = ("none",)


class Start:
    """As it was asked for."""

    __slots__ = ("asked_workspace", "network", "runtime")

    def __init__(self, workspace: str = "", runtime: str | None = None, network: str = "") -> None:
        self.asked_workspace = workspace
        """Empty if nobody asked for a mode."""
        self.runtime = runtime
        self.network = network
        """Empty if nobody asked for less than the manifest does."""

    @property
    def workspace(self) -> str:
        """The mode of the workspace."""
        return self.asked_workspace or "overlay"


def find_start(
    workspace: str | None, runtime: str | None, network: str | None = None, environ: "Mapping[str, str]" = os.environ
) -> Start:
    """Return what the options, else the variables say.

    Raises:
        ConfigError: There is no such mode of the workspace or of the network.
    """
    return Start(
        _chosen("workspace", workspace, WORKSPACES, environ),
        (runtime if runtime is not None else environ.get("MCP_SANDBOX_RUNTIME")) or None,
        _chosen("network", network, NETWORKS, environ),
    )


def _chosen(option: str, given: str | None, known: "tuple[str, ...]", environ: "Mapping[str, str]") -> str:
    variable = f"MCP_SANDBOX_{option.upper()}"
    name, mode = (f"--{option}", given) if given is not None else (variable, environ.get(variable))
    if mode and mode not in known:
        from mcp_sandbox.core.errors import ConfigError

        raise ConfigError(
            f"{name}={mode!r} cannot be used", why=f"there is only {', '.join(known)}", fix="Use one of them"
        )
    return mode or ""
