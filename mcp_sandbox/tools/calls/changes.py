"""What `changes` and `apply_changes` do."""

from collections.abc import Sequence

from mcp_sandbox.core.errors import PolicyDeniedError
from mcp_sandbox.service.applied_lines import applied_lines
from mcp_sandbox.service.approval import ApplyQuestion, Approval
from mcp_sandbox.service.change_lines import summary_line
from mcp_sandbox.service.changes import ChangePage
from mcp_sandbox.service.coming_home import Plan
from mcp_sandbox.service.renames import Entry
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
    """Bring changes home, if the user says so, or lets models do that."""
    given = call.arguments
    sandbox: str | None = given.get("sandbox")

    async def approve(plan: Plan, content: str) -> None:
        lines = [summary_line(Entry(change=one.change), name=one.path).strip() for one in plan.ready]
        project = call.services.sandboxes.owner.project.rpartition("/")[2]
        question = ApplyQuestion(project=project, sandbox=sandbox or "default", changes=tuple(lines), content=content)
        approval = await call.ask(question) if call.ask is not None and question.is_readable else Approval.CANNOT_ASK
        if approval is not Approval.ONCE:
            raise _not_applied(approval, is_readable=question.is_readable)

    applied = await call.services.applying.apply(
        sandbox, given.get("paths", []), approve=None if call.services.may_apply else approve
    )
    return Answer(text="\n".join([*applied.sandbox.notices, *applied_lines(applied)]))


def _not_applied(approval: Approval, *, is_readable: bool) -> PolicyDeniedError:
    why = {
        Approval.NO: "the user said no",
        Approval.NO_ANSWER: "the user gave no answer",
        Approval.TOO_OFTEN: "the user was asked too often just now",
    }.get(approval, "only the user brings changes home, and cannot be asked through this client")
    if not is_readable:
        why = "there are more changes than the user can be shown in one question"
    return PolicyDeniedError(
        "Nothing applied", why=why,
        fix="Apply fewer `paths`, or tell the user to look at `mcp-sandbox diff` and run `mcp-sandbox apply` in the "
        "project; a server started with `--allow-apply` asks nobody",
    )  # fmt: skip
