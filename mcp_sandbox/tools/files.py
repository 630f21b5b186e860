"""The tools on files: read, write, edit, list and search."""

from mcp_sandbox.tools.tool import SANDBOX, Deferred, Tool

__all__ = ["TOOLS"]

_CALLS = "mcp_sandbox.tools.calls.files"
_FILE_PATH = {"type": "string", "description": "From /workspace, or absolute"}

TOOLS = (
    Tool(
        name="read_file",
        title="Read file",
        description="Read a file: text with line numbers, pictures as pictures, others as a hex summary.",
        handler=Deferred(_CALLS, "read_file"),
        properties={
            "file_path": _FILE_PATH,
            "offset": {"type": "integer", "description": "First line, from 1", "default": 1},
            "limit": {"type": "integer", "description": "Lines at most", "default": 2000},
            "sandbox": SANDBOX,
        },
        required=("file_path",),
        profile="minimal",
        read_only=True,
        idempotent=True,
    ),
    Tool(
        name="write_file",
        title="Write file",
        description="Create or replace a file, with the directories above it. Answers size and SHA-256.",
        handler=Deferred(_CALLS, "write_file"),
        properties={
            "file_path": _FILE_PATH,
            "content": {"type": "string", "description": "UTF-8"},
            "sandbox": SANDBOX,
        },
        required=("file_path", "content"),
        profile="minimal",
        destructive=True,
        idempotent=True,
    ),
    Tool(
        name="edit_file",
        title="Edit file",
        description="Replace an exact text in a file, keeping its line ends and encoding.",
        handler=Deferred(_CALLS, "edit_file"),
        properties={
            "file_path": _FILE_PATH,
            "old_string": {"type": "string", "description": "Exact and unique; empty makes a new file"},
            "new_string": {"type": "string", "description": "Taken literally"},
            "replace_all": {"type": "boolean", "description": "Every match", "default": False},
            "sandbox": SANDBOX,
        },
        required=("file_path", "old_string", "new_string"),
        destructive=True,
    ),
    Tool(
        name="list_files",
        title="List files",
        description="Find paths by glob, newest first; `**` does not enter .git, node_modules etc.",
        handler=Deferred(_CALLS, "list_files"),
        properties={
            "pattern": {"type": "string", "description": "Such as **/*.py", "default": "*"},
            "path": {"type": "string", "description": "Where to start", "default": "/workspace"},
            "sandbox": SANDBOX,
        },
        read_only=True,
        idempotent=True,
    ),
    Tool(
        name="search_files",
        title="Search files",
        description="Search contents by regular expression, as ripgrep does.",
        handler=Deferred(_CALLS, "search_files"),
        properties={
            "pattern": {"type": "string", "description": "Regular expression"},
            "path": {"type": "string", "description": "Directory or file", "default": "/workspace"},
            "glob": {"type": "string", "description": "*.{ts,tsx}; !x leaves x out"},
            "output_mode": {
                "type": "string",
                "description": "What to show",
                "enum": ["content", "files_with_matches", "count"],
                "default": "content",
            },
            "before": {"type": "integer", "description": "Lines before (-B)"},
            "after": {"type": "integer", "description": "Lines after (-A)"},
            "context": {"type": "integer", "description": "Lines around (-C)", "default": 0},
            "case_insensitive": {"type": "boolean", "description": "-i", "default": False},
            "multiline": {"type": "boolean", "description": "Across lines", "default": False},
            "head_limit": {"type": "integer", "description": "At most"},
            "sandbox": SANDBOX,
        },
        required=("pattern",),
        read_only=True,
        idempotent=True,
    ),
)
