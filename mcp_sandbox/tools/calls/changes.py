"""What `changes` and `apply_changes` do."""

from collections.abc import Sequence

from mcp_sandbox.core.errors import PolicyDeniedError
from mcp_sandbox.service.applied_lines import applied_lines
from mcp_sandbox.service.changes import ChangePage
from mcp_sandbox.tools.call import Answer, Call

__all__ = ["apply_changes", "changes"]


async def changes(call: Call) -> Answer:
    """Show what changed."""
    given = call.arguments
    page = await call.services.changes.show(
        given.get("sandbox"), since=given.get("since") or "start", paths=given.get("paths", []),
        summary=given["summary"], offset=given["offset"],
    )  # fmt: skip
    return Answer(text="\n".join(_paged(page, f"{call.prefix}changes")))


def _paged(page: ChangePage, tool: str) -> Sequence[str]:
    last = page.first + len(page.lines) - 1
    shown = f" lines={page.first}-{last}" if page.lines else ""
    lines = [f"changes={page.count} ({page.totals}){shown}"]
    if page.truncated:
        lines.append("(there are more paths than are looked at: name `paths` to see others)")
    if page.unseen:
        lines.append(f"(could not be looked at, so what changed there is not known: {', '.join(page.unseen)})")
    lines += page.lines
    if page.more:
        lines.append(f"(there is more: call `{tool}` again with offset={last + 1})")
    elif not page.lines and page.first > 1:
        lines.append("(there is no such line)")
    return lines


async def apply_changes(call: Call) -> Answer:
    """Bring changes home, if the user lets models do that."""
    applying = call.services.applying
    given = call.arguments
    if applying is None:
        raise PolicyDeniedError(
            "Nothing applied",
            why="only the user brings changes home, unless the server was started with `--allow-apply`",
            fix="Tell the user to look at `mcp-sandbox diff` and run `mcp-sandbox apply` in the project",
        )
    applied = await applying.apply(given.get("sandbox"), given.get("paths", []))
    return Answer(text="\n".join([*applied.sandbox.notices, *applied_lines(applied)]))
