"""The embedded engine: from a sandbox's state on disk to a running init, and a connection to it."""

import asyncio
import contextlib
import errno
import os
import platform
import resource
import socket
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio

from mcp_sandbox.core.errors import CapacityError, ProviderError, SandboxGoneError
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.engines.bases import Bases
from mcp_sandbox.engines.carrier import no_answer
from mcp_sandbox.engines.descriptors import seqpacket_pair
from mcp_sandbox.engines.diagnosis import explain
from mcp_sandbox.engines.identity import Identity, choose_identity
from mcp_sandbox.engines.image_store import ImageStore, is_image
from mcp_sandbox.engines.init_process import note_init, wait_dead
from mcp_sandbox.engines.integrity import Integrity
from mcp_sandbox.engines.launcher import Launcher
from mcp_sandbox.engines.layer_store import VOLUMES, EngineState, LayerStore
from mcp_sandbox.engines.limit_watch import RESERVE_VARIABLE, reserve_bytes
from mcp_sandbox.engines.limiting import Limiting, Prepared
from mcp_sandbox.engines.local_carrier import LocalCarrier
from mcp_sandbox.engines.masking import fill_mask
from mcp_sandbox.engines.plan import SPOOL, Volume, sandbox_plan
from mcp_sandbox.engines.seccomp import build_filter
from mcp_sandbox.engines.spares import Spares
from mcp_sandbox.engines.squashing import squash

__all__ = ["EmbeddedEngine"]

BACKLOG_S: Final = 10.0
SWEEP_SOON_S: Final = 0.2
"""Behind the answer: a sweep reads the state of everything, and one serves all that came meanwhile."""
SWEEP_LATE_S: Final = 30.0
SWEEP_SHARE: Final = 10
"""How many times as long as the last sweep took there is none, for whoever changes things all the time."""


class EmbeddedEngine:
    """Use as a context manager. Nothing is started before it is needed, but the zygote."""

    def __init__(self, root: Path) -> None:
        self.identity: Identity = choose_identity()
        self.store = LayerStore(root, self.identity)
        self.images = ImageStore(root, self.identity)
        self._stack = AsyncExitStack()
        self.spares = Spares(self)
        self._behind: set[asyncio.Task[None]] = set()
        self._sweeping = False
        self._swept = True
        self._ending = anyio.Event()

    @property
    def marks(self) -> str:
        """What the names of overlayfs's extended attributes begin with; those of a sandbox itself never do."""
        whole = self.identity.is_range and not self.identity.is_nested
        return "trusted.overlay." if whole else "user.overlay."

    async def __aenter__(self) -> Self:
        """Start the zygote."""
        try:
            await self._open()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stack.aclose()
            raise
        return self

    async def _open(self) -> None:
        self.machine = _machine(self.store.root)
        _raise_file_limit()
        reserve = reserve_bytes(self.store.root, os.environ.get(RESERVE_VARIABLE, ""))
        try:
            self.launcher = await self._stack.enter_async_context(Launcher(self.store.root, self.identity))
        except OSError as error:
            raise explain(error, self.store.root) from error
        self.filter = self.build_filter()
        self._filter = os.memfd_create("seccomp", os.MFD_CLOEXEC)
        self._stack.callback(os.close, self._filter)
        os.write(self._filter, self.filter)
        self.limiting = await self._stack.enter_async_context(Limiting(self.store, self.launcher, reserve))
        self.integrity = await self._stack.enter_async_context(Integrity(self.store, self.launcher))
        self.bases = Bases(self.store, self.launcher, self.identity)
        await self.bases.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish what goes on behind the answers for a moment, then end the zygote."""
        self._ending.set()
        await self.spares.aclose()
        with anyio.move_on_after(1, shield=True):
            await asyncio.gather(*self._behind, return_exceptions=True)
        for task in self._behind:
            task.cancel()
        with anyio.move_on_after(1, shield=True):  # so that they let go of what they hold
            await asyncio.gather(*self._behind, return_exceptions=True)
        await self._stack.aclose()

    def behind(self, work: Coroutine[None, None, None]) -> None:
        """Do something behind the answer. Nobody is told how it ends; leaving the engine waits for it for a second."""
        task = asyncio.get_running_loop().create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    # ------------------------------------------------------------------------------------------ init

    async def connect(self, sandbox: SandboxId) -> LocalCarrier | None:
        """Return a connection to a sandbox's running init, or `None` if none runs."""
        directory = self.store.directory(sandbox)
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                await _connect(peer, f"/proc/self/fd/{descriptor}/agent.sock")  # the real path may be too long
            finally:
                os.close(descriptor)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            peer.close()
            return None
        except BaseException:
            peer.close()
            raise
        try:
            return await self._greet(peer)
        except SandboxGoneError:
            return None  # it was ending: its last peer had left

    async def start(self, state: EngineState) -> LocalCarrier:
        """Start a sandbox's init and connect to it. The caller holds the sandbox's lock.

        Raises:
            ProviderUnavailableError: The kernel refused a step; says which, why and how to mend it.
        """
        sandbox = SandboxId(state.id)
        directory = self.store.directory(sandbox)
        await wait_dead(directory)  # the one before may be in its last moments, and would write to the same layer
        if state.mounted:
            self.store.save(replace(state, mounted=()))
        with contextlib.ExitStack() as opened, contextlib.ExitStack() as kept:
            ours, theirs = seqpacket_pair()
            opened.callback(theirs.close)
            kept.callback(ours.close)
            listener = opened.enter_context(_listen(directory))
            try:
                volumes = await self._volumes(state)
                written = [self.store.root / path for volume in volumes for path in (volume.upper, volume.work)]
                prepared = await self.limiting.prepare(self.held_outside(state), written)
                plan = self.plan(state, volumes, prepared)
                pid, pidfd = await self.launcher.start(plan, [theirs.fileno(), listener.fileno(), self._filter])
                opened.callback(os.close, pidfd)
            except OSError as error:
                raise explain(error, self.store.root) from error
            finally:
                if state.project is not None and self.identity.is_range:
                    await self.launcher.unmount(_project_mount(state))
            note_init(directory, pid)
            kept.pop_all()
        return await self._greet(ours)

    def held_outside(self, state: EngineState) -> EngineState:
        """Return a state with the limits that this kernel holds. Another engine holds some of them inside."""
        return state

    def plan(self, state: EngineState, volumes: Sequence[Volume], prepared: Prepared) -> bytes:
        """Return what the launcher carries out. Another engine on the same layers has another plan, and filter."""
        return sandbox_plan(self.identity, volumes, prepared.limits, prepared.options)

    def build_filter(self) -> bytes:
        """Return the seccomp program of every command."""
        return build_filter(self.machine, one_id=not self.identity.is_range)

    async def _greet(self, connection: socket.socket) -> LocalCarrier:
        identity = self.identity
        carrier = LocalCarrier(connection, (identity.start, identity.gid) if identity.is_range else None)
        try:
            await carrier.welcome()
        except OSError as error:
            await carrier.aclose()
            raise explain(error, self.store.root) from error
        except BaseException:
            await carrier.aclose()
            raise
        return carrier

    async def _volumes(self, state: EngineState) -> list[Volume]:
        store, sandbox = self.store, SandboxId(state.id)
        work = store.work_directories(sandbox)
        top = f"layers/{state.top}"
        base = f"base/{state.base}"
        lowers = {
            "root": [f"{base}/root"],
            "workspace": [await self._project_lower(state)] if state.project else [f"{base}/root/workspace"],
        }
        if state.project and state.denied:
            mask = work["spool"].rpartition("/")[0] + "/mask"  # beside the work directories, and as short-lived
            await asyncio.to_thread(fill_mask, store.root / mask, state.project, state.denied, self.identity)
            lowers["workspace"].insert(0, mask)
        if not is_image(state.base):  # an image has a /usr of its own
            lowers["usr"] = [f"{base}/usr", self.bases.usr]
        volumes = [
            Volume(
                target=target, upper=f"{top}/{name}", work=work[name],
                lowers=[*store.lowers(state, name), *lowers[name]],
            )
            for name, target in VOLUMES.items()
            if name in lowers
        ]  # fmt: skip
        spool = f"sandboxes/{sandbox}/spool"
        volumes.append(
            Volume(target=SPOOL, upper=spool, work=work["spool"], lowers=[f"{base}/root/var/spool/mcp-sandbox"])
        )
        return volumes

    async def _project_lower(self, state: EngineState) -> str:
        """Return the project's directory under a name that tells nothing about the host."""
        assert state.project is not None
        alias = self.store.root / _project_mount(state)
        if not await anyio.Path(state.project).is_dir():
            raise ProviderError(
                "Sandbox not started", why="the project's directory does not exist any more",
                fix="Bring it back, or destroy this sandbox and create another one",
            )  # fmt: skip
        if self.identity.is_range:
            alias.mkdir(exist_ok=True)
            try:
                await self.launcher.mount_idmapped(state.project, _project_mount(state))
                return _project_mount(state)
            except OSError:
                alias.rmdir()
        if not alias.is_symlink():
            alias.symlink_to(state.project)
        return _project_mount(state)

    # ------------------------------------------------------------------------------------------ removal

    def sweep(self) -> None:
        """Merge in the background what grew deep, and remove what nobody names any more.

        Asked for meanwhile, one more round serves all who did.
        """
        self._swept = False
        if not self._sweeping:
            self._sweeping = True
            self.behind(self._sweep())

    async def _sweep(self) -> None:
        try:
            took_s = 0.0
            while not self._swept:
                with anyio.move_on_after(max(SWEEP_SOON_S, min(SWEEP_SHARE * took_s, SWEEP_LATE_S))):
                    await self._ending.wait()
                self._swept = True
                began = time.monotonic()
                await squash(self.store, self.launcher, self.marks)
                with contextlib.suppress(CapacityError):  # somebody takes layers into use all the time
                    for path in await asyncio.to_thread(self.store.collect, self.bases.built or ""):
                        with contextlib.suppress(ProviderError):
                            await self.launcher.run("remove", path)
                took_s = time.monotonic() - began
        finally:
            self._sweeping = False


def _machine(state: Path) -> str:
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if machine not in ("x86_64", "aarch64") or sys.maxsize < 2**32:
        raise explain(OSError(errno.ENOEXEC, "architecture"), state)
    return machine


def _listen(directory: Path) -> socket.socket:
    (directory / "agent.sock").unlink(missing_ok=True)
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"/proc/self/fd/{descriptor}/agent.sock")
        listener.listen(16)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(descriptor)
    return listener


async def _connect(peer: socket.socket, path: str) -> None:
    """Connect without waiting in the kernel, which a full backlog would make it do."""
    with anyio.move_on_after(BACKLOG_S):
        while True:
            try:
                peer.connect(path)
            except BlockingIOError:
                await anyio.sleep(0.005)
            else:
                return
    raise no_answer("the sandbox's init", BACKLOG_S)


def _project_mount(state: EngineState) -> str:
    return f"sandboxes/{state.id}/project"


def _raise_file_limit() -> None:
    """Let this process have as many files as the machine allows: programs inside hold on to some of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
