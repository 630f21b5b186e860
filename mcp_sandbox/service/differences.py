"""What changed between a snapshot, a sandbox as it is and what it started as."""

from collections.abc import Sequence
from typing import Final

from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.differences import Differences, DiffRequest, LiveState, StartState, State
from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError
from mcp_sandbox.core.provider import unsupported
from mcp_sandbox.service.denials import require_denied, require_denied_in
from mcp_sandbox.service.paths import resolve
from mcp_sandbox.service.sandboxes import SandboxService

__all__ = ["LIVE", "START", "compare"]

LIVE: Final = "live"
START: Final = "start"
"""Words that no id of a snapshot begins with."""


async def compare(
    sandboxes: SandboxService,
    before: str = START,
    after: str = LIVE,
    *,
    handle: str | None = None,
    paths: Sequence[str] = (),
    limit: int = 10_000,
    text_bytes: int = 0,
) -> Differences:
    """Say what changed from one state to another.

    Args:
        sandboxes: Where sandboxes and snapshots are found.
        before: `live`, `start`, or a unique prefix of a snapshot's id.
        after: The same.
        handle: The sandbox that `live` and `start` speak of; the project's default without one.
        paths: Only these, and what is below them; relative ones start in the workspace.
        limit: Changes at most.
        text_bytes: Contents of files up to this size come along; 0 is none.

    Raises:
        NotFoundError: There is no such snapshot or sandbox.
        InvalidRequestError: They belong to two providers.
        UnsupportedError: The provider cannot compare.
    """
    absolute = tuple(resolve(path) for path in paths)
    (name, old), (other, new) = [await _state(sandboxes, state, handle) for state in (before, after)]
    if name != other:
        raise InvalidRequestError(
            "Nothing compared",
            why=f"one of them belongs to provider {name!r}, the other to {other!r}",
            fix="Compare two of one provider",
        )
    provider = await sandboxes.provider(name)
    if not provider.capabilities.supports(Verb.DIFF):
        raise unsupported(name, Verb.DIFF)
    return await provider.diff(DiffRequest(before=old, after=new, paths=absolute, limit=limit, text_bytes=text_bytes))


async def _state(sandboxes: SandboxService, name: str, handle: str | None) -> tuple[str, State]:
    if name not in (LIVE, START):
        stored = await sandboxes.snapshot(name)
        require_denied_in(stored, sandboxes.denied)
        provider = sandboxes.contents.provider_of(stored)
        return provider, await sandboxes.contents.of(stored, provider)
    record = await sandboxes.find(handle)
    if record is None:
        raise NotFoundError(
            "Nothing compared", why="this project has no sandbox yet", fix="Name two snapshots, or use a sandbox first"
        )
    if record.owner == sandboxes.owner:
        require_denied(record, sandboxes.denied)
    return record.provider, LiveState(sandbox=record.id) if name == LIVE else StartState(sandbox=record.id)
