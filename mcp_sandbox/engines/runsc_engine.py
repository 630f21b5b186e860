"""gVisor on the embedded engine's layers: the same launcher, the same root file systems, another kernel inside.

Two agents are at work. The outer one is init of the namespaces that runsc runs in: it starts what we ask runsc for,
passes descriptors, stops and ends everything. The inner one is init of the sandbox; a bridge speaks for it.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import anyio.to_thread

from mcp_sandbox.core.errors import ProviderError, SandboxGoneError
from mcp_sandbox.core.exec import ExecRequest, Exited
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.engines.embedded import EmbeddedEngine
from mcp_sandbox.engines.execution_stream import ExecutionStream
from mcp_sandbox.engines.layer_store import EngineState
from mcp_sandbox.engines.layering import Captured
from mcp_sandbox.engines.limiting import Prepared
from mcp_sandbox.engines.local_carrier import LocalCarrier
from mcp_sandbox.engines.parking_stream import ParkingStream
from mcp_sandbox.engines.plan import ENVIRONMENT, Volume
from mcp_sandbox.engines.runsc import Runsc
from mcp_sandbox.engines.runsc_plan import (
    AGENT,
    CONTAINER,
    FACTS,
    SAVED,
    Places,
    command,
    description,
    entry,
    host_tasks,
    request,
    runsc_plan,
)
from mcp_sandbox.engines.runsc_spool import supply_spool_files
from mcp_sandbox.engines.seccomp import build_answers, build_small_filter
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.guest.binary import guest_binary

__all__ = ["Inside", "RunscEngine"]

START_S: Final = 30.0
_ENVIRONMENT: Final = ("PATH=/", "HOME=/tmp", "TMPDIR=/tmp")
_NO_ATTRIBUTES: Final = ("fgetxattr", "flistxattr", "fsetxattr", "fremovexattr")
"""gVisor asks for those of links by descriptors that cannot have any, and passes on the strange answer."""
_ONE_ID: Final = ("chown", "fchown", "lchown", "fchownat")


class Inside(NamedTuple):
    """A connection to the agent inside."""

    carrier: StreamCarrier
    stream: ParkingStream


class RunscEngine(EmbeddedEngine):
    """Use as a context manager."""

    def __init__(self, root: Path, runsc: Runsc) -> None:
        super().__init__(root)
        self.runsc = runsc

    async def _open(self) -> None:
        await super()._open()
        small = build_small_filter(self.machine)
        self._guest = await anyio.to_thread.run_sync(_install_guest, self.store.root, small)

    def build_filter(self) -> bytes:
        """Return what is answered to gVisor itself; what programs inside ask for never gets here."""
        refused = dict.fromkeys(_NO_ATTRIBUTES, errno.EOPNOTSUPP)
        pretended = {} if self.identity.is_range else dict.fromkeys(_ONE_ID, 0)
        return build_answers(self.machine, {**refused, **pretended})

    def held_outside(self, state: EngineState) -> EngineState:
        """Return a state with room for gVisor's own threads: programs find their limit inside."""
        return replace(state, limits=replace(state.limits, pids=host_tasks(state.limits.pids)))

    def plan(self, state: EngineState, volumes: Sequence[Volume], prepared: Prepared) -> bytes:
        """Return the plan of runsc's own root, with everything that this start of the sandbox needs."""
        directory = self.store.directory(SandboxId(state.id))
        own = f"sandboxes/{state.id}"
        self._standstill_mark(SandboxId(state.id)).unlink(missing_ok=True)
        self.store.discard(directory / "images")  # what a server that was killed left half written
        for name in ("bundle", "images"):
            (directory / name).mkdir(exist_ok=True)
            if self.identity.is_range:
                os.chown(directory / name, self.identity.start, self.identity.gid)
        config = directory / "bundle" / "config.json"
        config.write_bytes(description(state.limits, ENVIRONMENT))
        config.chmod(0o644)
        places = Places(
            program=self.runsc.path, guest=self._guest, bundle=f"{own}/bundle", images=f"{own}/images",
            saved=f"memory/{state.memory}" if state.memory else None,
        )  # fmt: skip
        return runsc_plan(self.identity, volumes, prepared.limits, places, prepared.options)

    async def start(self, state: EngineState) -> LocalCarrier:
        """Start a sandbox, with the processes that its state names; return the connection to the outer agent.

        Raises:
            ProviderUnavailableError: The kernel refused a step.
            ProviderError: runsc did; says with which words.
        """
        if state.memory is not None:  # whatever was written after a start that was cut short is not of that moment
            state = replace(state, top=self.store.new_layer(state.layers))
            self.store.save(state)
            await anyio.to_thread.run_sync(self._supply_spool, state)
        outer = await super().start(state)
        try:
            if state.memory is None:
                await self.run(outer, "run", "--detach", "--bundle", "/bundle", CONTAINER)
            else:
                await self.run(outer, "restore", "--detach", "--bundle", "/bundle", "--image-path", SAVED, CONTAINER)
                self.store.save(replace(state, memory=None))
        except BaseException:
            await outer.aclose()
            raise
        return outer

    def _supply_spool(self, state: EngineState) -> None:
        facts = json.loads((self.store.root / "memory" / str(state.memory) / FACTS).read_bytes())
        supply_spool_files(self.store.directory(SandboxId(state.id)) / "spool", facts["spool"], self.identity)

    def size_bytes(self, captured: Captured) -> int | None:
        """Return what was added by a capture. Blocks; `None` where counting takes too long."""
        if captured.layers.memory is None:
            return None if captured.own else 0
        image = self.store.root / "memory" / captured.layers.memory
        return sum(path.stat().st_size for path in image.iterdir()) + self.store.size_bytes(captured.own or "")

    async def run(self, outer: LocalCarrier, *arguments: str) -> None:
        """Have runsc do something, and wait until it is done.

        Raises:
            ProviderError: It failed.
        """
        await self._carry_out(outer, arguments[0], command(*arguments))

    async def ask(self, outer: LocalCarrier, method: str) -> None:
        """Have the gVisor that runs do something; raises as `run`."""
        await self._carry_out(outer, method.lower(), request(method))

    @asynccontextmanager
    async def standstill(self, outer: LocalCarrier, sandbox: SandboxId) -> AsyncGenerator[None]:
        """Have everything inside stand still. Whoever is killed meanwhile leaves a mark for `end_standstill`."""
        mark = self._standstill_mark(sandbox)
        mark.touch()
        with anyio.CancelScope(shield=True):
            await self.ask(outer, "Pause")
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self.end_standstill(outer, sandbox)

    async def end_standstill(self, outer: LocalCarrier, sandbox: SandboxId) -> None:
        """Let everything go on, if somebody had it stand still: gVisor panics where nobody has. Hold the lock."""
        mark = self._standstill_mark(sandbox)
        if mark.exists():
            await self.ask(outer, "Resume")
            mark.unlink(missing_ok=True)

    def _standstill_mark(self, sandbox: SandboxId) -> Path:
        return self.store.directory(sandbox) / "stands-still"

    async def _carry_out(self, outer: LocalCarrier, what: str, argv: tuple[str, ...]) -> None:
        said = b""
        async with await outer.exec(ExecRequest(argv=argv, cwd="/", timeout_s=START_S), _ENVIRONMENT) as execution:
            while True:
                event = await execution.receive()
                if isinstance(event, Exited):
                    break
                said = (said + event.data)[:4096]
        if event.result.exit_code == 0:
            return
        why = said.decode("utf-8", "replace").strip().split("\n")[0][:500]
        raise ProviderError(
            f"gVisor could not {what} the sandbox", why=why or event.result.detail or "runsc was killed",
            fix="Run `mcp-sandbox doctor`; if that finds nothing, report what runsc said",
        )  # fmt: skip

    async def reach(self, outer: LocalCarrier) -> Inside:
        """Put a bridge into the sandbox; return the connection to the agent inside.

        Raises:
            SandboxGoneError: gVisor does not run any more.
            ProviderUnavailableError: It runs, and does not answer.
        """
        stream = ParkingStream(own := await self._enter(outer, "plug", f"{AGENT}/run", "0"))
        try:
            carrier = await StreamCarrier.open(stream)
            return Inside(carrier, stream)
        except SandboxGoneError as error:
            raise SandboxGoneError(
                "The sandbox ended", why=own.errors.split("\n")[0][:500] or "gVisor let nobody in",
                fix="Call again: its files are kept and it starts anew",
            ) from error  # fmt: skip

    async def plug(self, outer: LocalCarrier, stream: ParkingStream, name: int) -> None:
        """Give the bridge that waits under `name` another stream.

        Raises:
            SandboxGoneError: Nobody waits.
        """
        try:
            own = await self._enter(outer, "plug", f"{AGENT}/run", str(name))
            if await own.wait() != 0:
                raise SandboxGoneError("The sandbox ended", why=own.errors[:500], fix="Call again: it starts anew")
        except BaseException:
            stream.give_up()
            raise
        stream.plug(own)

    async def _enter(self, outer: LocalCarrier, *arguments: str) -> ExecutionStream:
        asked = ExecRequest(argv=entry(*arguments), cwd="/", stdin=True)
        return ExecutionStream(await outer.exec(asked, _ENVIRONMENT))


def _install_guest(root: Path, commands_filter: bytes) -> str:
    """Put the guest agent where runsc can show it; return that directory, relative to the store. Blocks.

    Its name says what it holds, so that it never changes below a sandbox that runs.
    """
    held = {"guest": guest_binary(), "filter": commands_filter}
    name = f"guest/{hashlib.sha256(b''.join(held.values())).hexdigest()[:16]}"
    if not (root / name).exists():
        made = root / "guest" / secrets.token_hex(8)
        (made / "run").mkdir(parents=True)
        for file, content in held.items():
            (made / file).write_bytes(content)
            os.utime(made / file, (0, 0))
        for path in (made.parent, made, *made.iterdir()):
            path.chmod(0o755)
        with contextlib.suppress(OSError):  # somebody else was faster
            made.rename(root / name)
    return name
