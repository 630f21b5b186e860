"""The tools on files: read, write, edit, list and search."""

from collections.abc import Mapping
from typing import Any

from mcp_sandbox.core.sandbox import WORKSPACE
from mcp_sandbox.service.edit import Edit
from mcp_sandbox.service.files import FileReport
from mcp_sandbox.service.findings import OutputMode, SearchQuery
from mcp_sandbox.tools.tool import Answer, Call, Image, Profile, Tool

__all__ = ["TOOLS"]

_SANDBOX: Mapping[str, Any] = {
    "type": "string",
    "description": "Id, id prefix or name; default: this project's sandbox",
}
_FILE_PATH: Mapping[str, Any] = {"type": "string", "description": "Absolute, or relative to /workspace"}


def _answer(report: FileReport) -> Answer:
    picture = report.picture
    return Answer(
        text="\n".join([*report.notices, report.text]),
        images=() if picture is None else (Image(picture.data, picture.mime_type),),
    )


async def _read_file(call: Call) -> Answer:
    given = call.arguments
    return _answer(
        await call.services.files.read_file(
            given.get("sandbox"), given["file_path"], offset=given["offset"], limit=given["limit"]
        )
    )


async def _write_file(call: Call) -> Answer:
    given = call.arguments
    return _answer(await call.services.files.write_file(given.get("sandbox"), given["file_path"], given["content"]))


async def _edit_file(call: Call) -> Answer:
    given = call.arguments
    edit = Edit(old=given["old_string"], new=given["new_string"], replace_all=given["replace_all"])
    return _answer(await call.services.files.edit_file(given.get("sandbox"), given["file_path"], edit))


async def _list_files(call: Call) -> Answer:
    given = call.arguments
    return _answer(await call.services.files.list_files(given.get("sandbox"), given["pattern"], given["path"]))


async def _search_files(call: Call) -> Answer:
    given = call.arguments
    query = SearchQuery(
        pattern=given["pattern"],
        path=given["path"] or WORKSPACE,
        glob=given.get("glob", ""),
        mode=OutputMode(given["output_mode"]),
        before=given.get("before", given["context"]),
        after=given.get("after", given["context"]),
        case_insensitive=given["case_insensitive"],
        multiline=given["multiline"],
        head_limit=given.get("head_limit") or None,
    )
    return _answer(await call.services.search.search(given.get("sandbox"), query))


TOOLS: tuple[Tool, ...] = (
    Tool(
        name="read_file",
        title="Read file",
        description="Read a file: text with line numbers, pictures as pictures, others as a hex summary.",
        handler=_read_file,
        properties={
            "file_path": _FILE_PATH,
            "offset": {"type": "integer", "description": "First line, from 1", "default": 1},
            "limit": {"type": "integer", "description": "Lines at most", "default": 2000},
            "sandbox": _SANDBOX,
        },
        required=("file_path",),
        profile=Profile.MINIMAL,
        read_only=True,
        idempotent=True,
    ),
    Tool(
        name="write_file",
        title="Write file",
        description="Create or replace a whole file, and the directories above it. Answers size and SHA-256.",
        handler=_write_file,
        properties={
            "file_path": _FILE_PATH,
            "content": {"type": "string", "description": "UTF-8"},
            "sandbox": _SANDBOX,
        },
        required=("file_path", "content"),
        profile=Profile.MINIMAL,
        destructive=True,
        idempotent=True,
    ),
    Tool(
        name="edit_file",
        title="Edit file",
        description="Replace an exact text in a file, keeping its line ends and encoding.",
        handler=_edit_file,
        properties={
            "file_path": _FILE_PATH,
            "old_string": {"type": "string", "description": "Exact and unique; empty makes a new file"},
            "new_string": {"type": "string", "description": "Taken literally"},
            "replace_all": {"type": "boolean", "description": "Replace every match", "default": False},
            "sandbox": _SANDBOX,
        },
        required=("file_path", "old_string", "new_string"),
        destructive=True,
    ),
    Tool(
        name="list_files",
        title="List files",
        description="Find paths by glob, newest first. `**` does not enter .git, node_modules and the like.",
        handler=_list_files,
        properties={
            "pattern": {"type": "string", "description": "Such as **/*.py", "default": "*"},
            "path": {"type": "string", "description": "Directory to start in", "default": WORKSPACE},
            "sandbox": _SANDBOX,
        },
        read_only=True,
        idempotent=True,
    ),
    Tool(
        name="search_files",
        title="Search files",
        description="Search file contents by regular expression, as ripgrep does.",
        handler=_search_files,
        properties={
            "pattern": {"type": "string", "description": "Regular expression"},
            "path": {"type": "string", "description": "Directory or file", "default": WORKSPACE},
            "glob": {"type": "string", "description": "Only these files, such as *.{ts,tsx}; !x leaves x out"},
            "output_mode": {
                "type": "string",
                "description": "What to show",
                "enum": [mode.value for mode in OutputMode],
                "default": OutputMode.CONTENT.value,
            },
            "before": {"type": "integer", "description": "Lines before a match (-B)"},
            "after": {"type": "integer", "description": "Lines after a match (-A)"},
            "context": {"type": "integer", "description": "Lines around a match (-C)", "default": 0},
            "case_insensitive": {"type": "boolean", "description": "-i", "default": False},
            "multiline": {"type": "boolean", "description": "Match across lines", "default": False},
            "head_limit": {"type": "integer", "description": "Matches (or files) at most"},
            "sandbox": _SANDBOX,
        },
        required=("pattern",),
        read_only=True,
        idempotent=True,
    ),
)
