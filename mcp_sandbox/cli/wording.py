"""What is written for models, for people at a terminal: tools are commands there."""

from typing import Final

__all__ = ["for_people"]

_COMMANDS: Final = {
    "snapshot_create": "mcp-sandbox snapshot create",
    "snapshot_list": "mcp-sandbox snapshot list",
    "changes": "mcp-sandbox diff",
    "apply_changes": "mcp-sandbox apply",
    "sandbox_list": "mcp-sandbox ls",
    "sandbox_destroy": "mcp-sandbox rm",
    "exec": "mcp-sandbox exec",
    "sandbox": "--sandbox",
}


def for_people(text: object) -> str:
    """Return an error or a notice in words that hold at the command line."""
    words = str(text)
    for name, command in _COMMANDS.items():
        words = words.replace(f"`{name}`", f"`{command}`")
    return words
