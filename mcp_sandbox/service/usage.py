"""When each sandbox was last used by this server, and whether a call is under way in it."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from mcp_sandbox.core.sandbox import SandboxId

__all__ = ["Usage"]


class Usage:
    """Knows nothing of other servers.

    Args:
        clock: Seconds, from anywhere on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[SandboxId, int] = {}
        self._used_at: dict[SandboxId, float] = {}

    @contextmanager
    def of(self, sandbox: SandboxId) -> Generator[None]:
        """Count a call as use, from its beginning to its end."""
        self._calls[sandbox] = self._calls.get(sandbox, 0) + 1
        try:
            yield
        finally:
            self._used_at[sandbox] = self._clock()
            self._calls[sandbox] -= 1
            if not self._calls[sandbox]:
                del self._calls[sandbox]

    def take_idle(self, idle_s: float) -> Sequence[SandboxId]:
        """Return the sandboxes that no call has used for so long, each one once."""
        before = self._clock() - idle_s
        idle = [one for one, used_at in self._used_at.items() if used_at <= before and one not in self._calls]
        for sandbox in idle:
            del self._used_at[sandbox]
        return idle
