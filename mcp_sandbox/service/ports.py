"""Exposed ports: servers inside a sandbox, reached from this machine's loopback, and from nowhere else."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Self

import anyio
from anyio.abc import ByteStream, TaskGroup

from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.errors import (
    CapacityError,
    InvalidRequestError,
    NotFoundError,
    SandboxError,
    SandboxGoneError,
    StateError,
)
from mcp_sandbox.core.ports import Connection, DialRequest
from mcp_sandbox.core.provider import unsupported
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.service.port_relay import LOOPBACK, Places, PortRelay, open_port
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.telling import using

__all__ = ["CONNECTIONS", "ExposedPort", "Exposure", "PortService"]

_LOG = logging.getLogger(__name__)

CONNECTIONS: Final = 256
"""Of one sandbox at once; those beyond wait until others end."""
_PORTS: Final = 64
_HIGHEST: Final = 65_535
_LEAST_WAIT_S: Final = 0.5
_AGAIN_S: Final = 0.1
_PARTING_S: Final = 0.2
_LOOK_EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedPort:
    """A port inside and the one outside that leads to it."""

    sandbox: SandboxId
    port: int
    host_port: int

    @property
    def url(self) -> str:
        """Where it is reached, if the server inside speaks HTTP; its host and port in any case."""
        return f"http://{LOOPBACK}:{self.host_port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What exposing a port came to."""

    exposed: ExposedPort
    server: str
    """Where the server was met inside; empty if none listened."""
    waited_s: float
    notices: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Entry:
    exposed: ExposedPort
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)


class PortService:
    """Use as a context manager: leaving it closes every port.

    Args:
        sandboxes: Where sandboxes are found.
    """

    def __init__(self, sandboxes: SandboxService) -> None:
        self._sandboxes = sandboxes
        self._entries: dict[tuple[SandboxId, int], _Entry] = {}
        self._places: dict[SandboxId, Places] = {}
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        """Return itself."""
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._watch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every port and every connection."""
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)  # an error passes by as it is, not in a group

    async def expose(self, port: int, *, sandbox: str = "", host_port: int = 0, wait_s: float = 5.0) -> Exposure:
        """Make a port of a sandbox reachable from this machine, and look whether a server answers there.

        The port stays open also if none does: the next connection may find one.

        Args:
            port: Of a TCP server on any address inside.
            sandbox: A handle; empty is the project's default.
            host_port: The port outside; 0 is one that is free, or the one that leads there already.
            wait_s: How long to wait for a server; at least half a second.

        Raises:
            InvalidRequestError: There is no such port.
            StateError: The port outside is taken.
            UnsupportedError: The provider cannot do it.
        """
        _check(port, "port", 1)
        _check(host_port, "host_port", 0)
        async with using(self._sandboxes, sandbox) as live:
            if not live.sandbox.capabilities.supports(Verb.EXPOSE):
                raise unsupported(live.record.provider, Verb.EXPOSE)
            began = anyio.current_time()
            known = self._entries.get((live.record.id, port))
            entry = self._opened(live.record.id, port, host_port) if known is None else _same(known, host_port)
            try:
                server = await self._look(entry.exposed, max(wait_s, _LEAST_WAIT_S))
            except BaseException:
                if known is None:
                    entry.scope.cancel()
                raise
            waited_s = anyio.current_time() - began
            return Exposure(exposed=entry.exposed, server=server, waited_s=waited_s, notices=live.notices)

    async def close(self, port: int, *, sandbox: str = "") -> ExposedPort:
        """Close a port, and end its connections.

        Raises:
            NotFoundError: It is not exposed, or there is no such sandbox.
        """
        record = await self._sandboxes.find(sandbox)
        entry = self._entries.get((record.id, port)) if record is not None else None
        if entry is None:
            raise NotFoundError(
                f"Port {port} not closed", why="this server does not expose it",
                fix="See which ports are in `sandbox_list`",
            )  # fmt: skip
        await self._end(entry)
        return entry.exposed

    async def wait_closed(self, exposed: ExposedPort) -> None:
        """Return when a port is not exposed any more."""
        if (entry := self._entries.get((exposed.sandbox, exposed.port))) is not None:
            await entry.ended.wait()

    def of(self, sandbox: SandboxId) -> Sequence[ExposedPort]:
        """Return what is exposed of a sandbox by this server, in the order in which that was asked for."""
        return [entry.exposed for (owner, _), entry in self._entries.items() if owner == sandbox]

    async def forget(self, sandbox: SandboxId) -> None:
        """Close the ports of a sandbox that is gone."""
        for exposed in self.of(sandbox):
            await self._end(self._entries[sandbox, exposed.port])

    def _opened(self, sandbox: SandboxId, port: int, host_port: int) -> _Entry:
        if len(self._entries) >= _PORTS:
            raise CapacityError(f"Port {port} not exposed", why=f"{_PORTS} ports are exposed already", fix="Close some")
        listener = open_port(host_port)
        exposed = ExposedPort(sandbox=sandbox, port=port, host_port=listener.getsockname()[1])
        entry = self._entries[sandbox, port] = _Entry(exposed)
        places = self._places.setdefault(sandbox, Places(CONNECTIONS))
        self._tasks.start_soon(self._run, entry, PortRelay(listener, partial(self._connected, entry), places))
        _LOG.info("sandbox %s: port %d is exposed as %s", sandbox, port, exposed.url)
        return entry

    async def _run(self, entry: _Entry, relay: PortRelay) -> None:
        exposed = entry.exposed
        try:
            with entry.scope:
                await relay.run()
        except Exception:  # noqa: BLE001 (it must not end the others; the log has it)
            _LOG.exception("port %d", exposed.port)
        finally:
            del self._entries[exposed.sandbox, exposed.port]
            if not self.of(exposed.sandbox):
                del self._places[exposed.sandbox]
            entry.ended.set()
            _LOG.info("sandbox %s: port %d is not exposed any more", exposed.sandbox, exposed.port)

    async def _end(self, entry: _Entry) -> None:
        entry.scope.cancel()
        await entry.ended.wait()

    @asynccontextmanager
    async def _connected(self, entry: _Entry) -> AsyncGenerator[ByteStream]:
        """Connect to the server inside, for as long as somebody is connected outside."""
        with self._sandboxes.housekeeping.usage.of(entry.exposed.sandbox):
            try:
                connection = await self._dial(entry.exposed)
            except NotFoundError:
                entry.scope.cancel()  # the sandbox was destroyed
                raise
            async with connection.stream:
                yield connection.stream

    async def _dial(self, exposed: ExposedPort) -> Connection:
        try:
            return await self._dial_once(exposed)
        except SandboxGoneError:  # it ended meanwhile, for a restore perhaps, and starts again
            return await self._dial_once(exposed)

    async def _dial_once(self, exposed: ExposedPort) -> Connection:
        live = await self._sandboxes.open(exposed.sandbox)
        self._sandboxes.tell_again(live)
        return await live.sandbox.dial(DialRequest(port=exposed.port))

    async def _look(self, exposed: ExposedPort, wait_s: float) -> str:
        """Return where a server accepts inside, waiting for one; empty if none does."""
        with anyio.move_on_after(wait_s):
            while True:
                try:
                    connection = await self._dial(exposed)
                except (ConnectionRefusedError, TimeoutError):
                    await anyio.sleep(_AGAIN_S)
                else:
                    await _take_leave(connection.stream)
                    return connection.address
        return ""

    async def _watch(self) -> None:
        """Close the ports of sandboxes that somebody else destroyed."""
        while True:
            await anyio.sleep(_LOOK_EVERY_S)
            for sandbox in {owner for owner, _ in self._entries}:
                try:
                    await self._sandboxes.find(sandbox)
                except NotFoundError:
                    await self.forget(sandbox)
                except (SandboxError, OSError):
                    _LOG.exception("sandbox %s cannot be looked for", sandbox)


async def _take_leave(stream: ByteStream) -> None:
    """End a connection that asked for nothing in a way that no server complains of."""
    async with stream:
        with anyio.move_on_after(_PARTING_S):
            try:
                await stream.send_eof()
                while True:
                    await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return


def _same(known: _Entry, host_port: int) -> _Entry:
    """Return what leads to a port already, unless another port was asked for."""
    if host_port in (0, known.exposed.host_port):
        return known
    raise StateError(
        f"Port {known.exposed.port} not exposed again",
        why=f"it is exposed as {known.exposed.url} already",
        fix="Use that, or close it first",
    )


def _check(value: int, name: str, least: int) -> None:
    if not least <= value <= _HIGHEST:
        raise InvalidRequestError(
            f"{name} = {value} refused", why=f"ports are {least} to {_HIGHEST}", fix=f"Correct `{name}`"
        )
