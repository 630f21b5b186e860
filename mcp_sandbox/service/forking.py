"""Forks: new sandboxes from a live one, which goes on meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.provider import unsupported
from mcp_sandbox.service.sandboxes import LiveSandbox, SandboxService
from mcp_sandbox.service.telling import using
from mcp_sandbox.service.templates import records_like

__all__ = ["Forks", "fork"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forks:
    """What a fork made."""

    source: LiveSandbox
    made: Sequence[LiveSandbox]
    paused_s: float
    """How long commands of the source stood still; 0 when none ran."""


async def fork(sandboxes: SandboxService, handle: str | None = None, *, count: int = 1, name: str = "") -> Forks:
    """Make new sandboxes that start as a live one is now, all or none.

    Their parent is the source's: forking takes no snapshot that anybody sees.

    Args:
        sandboxes: Where the source is, and where the new ones are entered.
        handle: The source; the project's default sandbox without one.
        count: How many.
        name: A name in the project; with several sandboxes, its beginning (`name-1`, `name-2`, ...).

    Raises:
        InvalidRequestError: The name or the count cannot be used.
        StateError: The name is taken.
        UnsupportedError: The provider cannot do it.
    """
    async with using(sandboxes, handle) as live:
        records = records_like(live.record, name, count)
        sandboxes.require_room(count)
        if not live.sandbox.capabilities.supports(Verb.FORK):
            raise unsupported(live.record.provider, Verb.FORK)
        async with sandboxes.exclusively(live.record):
            source = await sandboxes.find(live.record.id) or live.record
            records = [
                replace(
                    record,
                    parent=source.parent,
                    limits=source.limits,
                    best_effort=source.best_effort,
                    project_since_ns=source.project_since_ns,
                    from_snapshot=source.from_snapshot,
                )
                for record in records
            ]
            forked = await live.sandbox.fork([sandboxes.spec_of(record) for record in records])
            # Entered only now: a record without its sandbox would be taken for one that is still to be created.
            made = await sandboxes.adopt(records, forked.sandboxes)
        return Forks(source=live, made=made, paused_s=forked.paused_s)
