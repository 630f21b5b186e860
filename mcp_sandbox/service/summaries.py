"""What is said of sandboxes in a list, without connecting to any of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.sandbox import SandboxId, SandboxInfo, SandboxState
from mcp_sandbox.service.opened import OpenProviders
from mcp_sandbox.store.record import Owner, SandboxRecord

__all__ = ["SandboxSummary", "summaries"]


_Seen = dict[SandboxId, SandboxInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSummary:
    """One line of the list."""

    record: SandboxRecord
    state: SandboxState | None
    """`None` if the engine could not be asked; `detail` says why."""
    is_current: bool
    """Whether calls without a handle mean it."""
    detail: str = ""
    runtime: str = ""
    """What it runs on, where its engine has several."""


async def summaries(
    records: Sequence[SandboxRecord], providers: OpenProviders, owner: Owner, *, patience_s: float
) -> Sequence[SandboxSummary]:
    """Return one summary per record, in the same order. An engine that does not answer in time holds nothing up."""
    seen: dict[str, _Seen | str] = {}

    async def look(name: str) -> None:
        seen[name] = f"provider {name!r} did not answer within {patience_s:g} s"
        with anyio.move_on_after(patience_s):
            try:
                provider = await providers.get(name)
                seen[name] = {info.id: info for info in await provider.list()}
            except SandboxError as error:
                seen[name] = str(error)

    async with anyio.create_task_group() as tasks:
        for name in {record.provider for record in records}:
            tasks.start_soon(look, name)
    return [_summary(record, seen[record.provider], owner) for record in records]


def _summary(record: SandboxRecord, seen: _Seen | str, owner: Owner) -> SandboxSummary:
    info = None if isinstance(seen, str) else seen.get(record.id)
    state = None if isinstance(seen, str) else info.state if info else SandboxState.GONE
    return SandboxSummary(
        record=record,
        state=state,
        is_current=record.is_default and record.owner == owner,
        detail=seen if isinstance(seen, str) else "",
        runtime=info.runtime if info else "",
    )
