"""Several sandboxes at once: all of them are made, or none is there."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from mcp_sandbox.service.connections import LiveSandbox
from mcp_sandbox.store.record import SandboxRecord

__all__ = ["all_or_none"]

_IN_PARALLEL: Final = 8


async def all_or_none(
    records: Sequence[SandboxRecord],
    create: Callable[[SandboxRecord], Awaitable[LiveSandbox]],
    undo: Callable[[SandboxRecord], Awaitable[None]],
) -> "list[LiveSandbox]":
    """Create a sandbox for each record, and undo all that if one cannot be created; raises its error then."""
    try:
        if len(records) == 1:  # nearly always; tasks take as long as entering it
            return [await create(records[0])]
        return await _in_parallel(records, create)
    except BaseException:
        with anyio.CancelScope(shield=True):
            for record in records:
                await undo(record)
        raise


async def _in_parallel(
    records: Sequence[SandboxRecord], create: Callable[[SandboxRecord], Awaitable[LiveSandbox]]
) -> "list[LiveSandbox]":
    made: dict[str, LiveSandbox] = {}
    failures: list[Exception] = []
    limiter = anyio.CapacityLimiter(_IN_PARALLEL)

    async def create_one(record: SandboxRecord, stop: Callable[[], None]) -> None:
        try:
            async with limiter:
                made[record.id] = await create(record)
        except Exception as error:  # noqa: BLE001 (raised below, outside of the task group)
            failures.append(error)
            stop()

    async with anyio.create_task_group() as tasks:
        for record in records:
            tasks.start_soon(create_one, record, tasks.cancel_scope.cancel)
    if failures:
        raise failures[0]
    return [made[record.id] for record in records]
