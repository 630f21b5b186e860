"""What the tools on files do: read, write, edit, list and search."""

from mcp_sandbox.core.sandbox import WORKSPACE
from mcp_sandbox.service.edit import Edit
from mcp_sandbox.service.files import FileReport
from mcp_sandbox.service.findings import OutputMode, SearchQuery
from mcp_sandbox.tools.call import Answer, Call, Image

__all__ = ["edit_file", "list_files", "read_file", "search_files", "write_file"]


def _answer(report: FileReport) -> Answer:
    picture = report.picture
    return Answer(
        text="\n".join([*report.notices, report.text]),
        images=() if picture is None else (Image(picture.data, picture.mime_type),),
    )


async def read_file(call: Call) -> Answer:
    """Read a file, or a part of it."""
    given = call.arguments
    return _answer(
        await call.services.files.read_file(
            given.get("sandbox"), given["file_path"], offset=given["offset"], limit=given["limit"]
        )
    )


async def write_file(call: Call) -> Answer:
    """Create or replace a file."""
    given = call.arguments
    return _answer(await call.services.files.write_file(given.get("sandbox"), given["file_path"], given["content"]))


async def edit_file(call: Call) -> Answer:
    """Replace a text in a file."""
    given = call.arguments
    edit = Edit(old=given["old_string"], new=given["new_string"], replace_all=given["replace_all"])
    return _answer(await call.services.files.edit_file(given.get("sandbox"), given["file_path"], edit))


async def list_files(call: Call) -> Answer:
    """Find paths."""
    given = call.arguments
    return _answer(await call.services.files.list_files(given.get("sandbox"), given["pattern"], given["path"]))


async def search_files(call: Call) -> Answer:
    """Search the contents of files."""
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
