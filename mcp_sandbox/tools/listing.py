"""What a server says of itself and of its tools, as it goes over the wire.

The one source for both who tell it: the preamble, before anything else is loaded, and the SDK's server. Fields stand in
the order in which the SDK writes them, so that the two answer with the same bytes, which models' caches may rely on.
"""

from mcp_sandbox.tools.tool import Tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["LIST_TTL_MS", "SERVER_NAME", "SERVER_TITLE", "input_schema", "instructions", "listed"]

SERVER_NAME = "mcp-sandbox"
SERVER_TITLE = "Sandbox"

LIST_TTL_MS = 300_000
"""How long clients may keep lists. Whoever asks gets the same ones."""

_ALWAYS_LOADED = frozenset({"exec", "read_file", "write_file", "edit_file"})
"""Claude Code shows only the names of tools until it has searched for them, except for these."""

_INSTRUCTIONS = """\
These tools give you a computer of your own: an isolated Linux sandbox. Nothing of the user's machine can be seen or \
harmed from inside, except a copy of what was put in, so prefer it for running code, builds, tests and experiments.
- It exists as soon as you use it. Leave `sandbox` out to use the project's own; its files, snapshots and job output \
stay between sessions, its processes do not.
- Work in /workspace; relative paths start there.
- `exec` runs one shell command in a fresh shell: cd and export do not last, files do. A command that takes long \
becomes a job: go on with `job`. Start servers and watchers with run_in_background.
- Long output is shown as head and tail; the whole text is in a file that the answer names: page it with `read_file`.
- Prefer `read_file`, `write_file`, `edit_file`, `list_files` and `search_files` to cat, sed, find and grep.
- Before anything risky call `snapshot_create`; `snapshot_restore` brings every file back.
- A failing command is a normal answer (see exit=); an error says what to do next.
"""


def instructions(tools: tuple[Tool, ...], prefix: str = "") -> str:
    """Return what a model is told about all tools together; their names begin with `prefix`."""
    text = _INSTRUCTIONS
    for tool in tools:
        text = text.replace(f"`{tool.name.removeprefix(prefix)}`", f"`{tool.name}`")
    return text


def listed(tools: tuple[Tool, ...], prefix: str = "") -> "list[dict[str, Any]]":
    """Return the list of tools; their names begin with `prefix`."""
    return [_described(tool, prefix) for tool in tools]


def input_schema(tool: Tool) -> "dict[str, Any]":
    """Return the JSON Schema of a tool's arguments."""
    schema: dict[str, Any] = {"properties": {name: _fragment(fragment) for name, fragment in tool.properties.items()}}
    if tool.required:
        schema["required"] = list(tool.required)
    return {**schema, "type": "object", "additionalProperties": False}


def _fragment(fragment: "Mapping[str, Any]") -> "dict[str, Any]":
    """Return what is said of an argument; that a switch is off where nobody turns it on goes without saying."""
    return {key: value for key, value in fragment.items() if key != "default" or value is not False}


def _described(tool: Tool, prefix: str) -> "dict[str, Any]":
    meta = {"_meta": {"anthropic/alwaysLoad": True}} if tool.name.removeprefix(prefix) in _ALWAYS_LOADED else {}
    return {
        **meta,
        "annotations": {
            "destructiveHint": tool.destructive,
            "idempotentHint": tool.idempotent,
            "openWorldHint": tool.open_world,
            "readOnlyHint": tool.read_only,
        },
        "description": tool.description,
        "inputSchema": input_schema(tool),
        "name": tool.name,
        **({} if _is_its_name(tool, prefix) else {"title": tool.title}),
    }


def _is_its_name(tool: Tool, prefix: str) -> bool:
    """Whether clients show the same without a title."""
    return tool.title.casefold() == tool.name.removeprefix(prefix).replace("_", " ")
