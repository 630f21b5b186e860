"""At most as many commands at once in one sandbox as its engine declares; the others wait, but not for ever."""

from weakref import WeakValueDictionary

import anyio

from mcp_sandbox.core.delegation import DelegatingExecution, DelegatingProvider, DelegatingSandbox
from mcp_sandbox.core.errors import CapacityError
from mcp_sandbox.core.exec import ExecEvent, ExecRequest, Execution, Exited
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId

__all__ = ["LimitedProvider"]

DEFAULT_MAX_WAIT_S = 30.0


class _Slots:
    """The places of one sandbox, shared by every connection to it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._semaphore = anyio.Semaphore(count, fast_acquire=True)

    async def take(self, max_wait_s: float) -> None:
        try:
            self._semaphore.acquire_nowait()
        except anyio.WouldBlock:
            try:
                with anyio.fail_after(max_wait_s):
                    await self._semaphore.acquire()
            except TimeoutError:
                raise CapacityError(
                    "Command not started",
                    why=f"{self.count} commands run in this sandbox, and none ended within {max_wait_s:g} s",
                    fix="Wait for one of them or kill it, then try again",
                ) from None

    def give_back(self) -> None:
        self._semaphore.release()


class _LimitedExecution(DelegatingExecution):
    def __init__(self, inner: Execution, slots: _Slots) -> None:
        super().__init__(inner)
        self._slots: _Slots | None = slots

    async def receive(self) -> ExecEvent:
        event = await self._inner.receive()
        if isinstance(event, Exited):
            self._give_back()  # children that hold the pipes are no command any more
        return event

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._give_back()

    def _give_back(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.give_back()


class _LimitedSandbox(DelegatingSandbox):
    def __init__(self, inner: Sandbox, provider: "LimitedProvider") -> None:
        super().__init__(inner)
        self._provider = provider
        self._slots = provider.slots(inner)

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        return self._provider.wrap(sandbox)

    async def exec(self, request: ExecRequest) -> Execution:
        longest = self._provider.max_wait_s
        await self._slots.take(longest if request.timeout_s is None else min(longest, request.timeout_s))
        try:
            return _LimitedExecution(await self._inner.exec(request), self._slots)
        except BaseException:
            self._slots.give_back()
            raise


class LimitedProvider(DelegatingProvider):
    """Holds one of `Capabilities.max_concurrent` places per command, from its start until it ended or is closed.

    Args:
        inner: The provider to protect.
        max_wait_s: Seconds that a command waits for a place; a shorter deadline of its own counts instead. Then it
            is refused with a `CapacityError`.
    """

    def __init__(self, inner: Provider, *, max_wait_s: float = DEFAULT_MAX_WAIT_S) -> None:
        super().__init__(inner)
        self.max_wait_s = max_wait_s
        self._known: WeakValueDictionary[SandboxId, _Slots] = WeakValueDictionary()

    def slots(self, sandbox: Sandbox) -> _Slots:
        """Return the places of a sandbox, the same object for every connection."""
        known = self._known.get(sandbox.id)
        if known is None:
            known = self._known[sandbox.id] = _Slots(sandbox.capabilities.max_concurrent)
        return known

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        """Put the limit around a sandbox."""
        return _LimitedSandbox(sandbox, self)
