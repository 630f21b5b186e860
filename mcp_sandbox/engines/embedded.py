"""The embedded engine: from a sandbox's state on disk to a running init, and a connection to it."""

import asyncio
import contextlib
import errno
import json
import os
import platform
import resource
import secrets
import select
import signal
import socket
from collections.abc import Generator
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio

from mcp_sandbox.core.errors import ProviderError, ProviderUnavailableError, SandboxGoneError
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.engines.diagnosis import explain
from mcp_sandbox.engines.identity import Identity, choose_identity
from mcp_sandbox.engines.launcher import Launcher
from mcp_sandbox.engines.layer_store import VOLUMES, EngineState, LayerStore
from mcp_sandbox.engines.local_carrier import LocalCarrier, seqpacket_pair
from mcp_sandbox.engines.plan import SPOOL, Volume, sandbox_plan
from mcp_sandbox.engines.seccomp import build_filter
from mcp_sandbox.engines.skeleton import base_fingerprint, fill_root, fill_usr
from mcp_sandbox.hostfs.atomic import alocked, write_atomically

__all__ = ["EmbeddedEngine"]

DEATH_S: Final = 10.0
BACKLOG_S: Final = 10.0
IDMAPPED_USR: Final = "usr"
"""Where the zygote shows the host's /usr with the sandbox's ids; a name in the store's `idmapped/`."""


class EmbeddedEngine:
    """Use as a context manager. Nothing is started before it is needed, but the zygote."""

    def __init__(self, root: Path) -> None:
        self.identity: Identity = choose_identity()
        self.store = LayerStore(root, self.identity)
        self._stack = AsyncExitStack()
        self._base_lock = anyio.Lock()
        self._base: str | None = None
        self._usr_idmapped = False
        self._removals: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Start the zygote."""
        _raise_file_limit()
        try:
            self.launcher = await self._stack.enter_async_context(Launcher(self.store.root, self.identity))
        except OSError as error:
            raise explain(error) from error
        self._filter = os.memfd_create("seccomp", os.MFD_CLOEXEC)
        self._stack.callback(os.close, self._filter)
        os.write(self._filter, build_filter(_machine(), one_id=not self.identity.is_range))
        if self.identity.is_range:
            self._usr_idmapped = await self._mount_usr()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish removals for a moment, then end the zygote."""
        with anyio.move_on_after(1, shield=True):
            await asyncio.gather(*self._removals, return_exceptions=True)
        for task in self._removals:
            task.cancel()
        await self._stack.aclose()

    async def _mount_usr(self) -> bool:
        target = self.store.root / "idmapped" / IDMAPPED_USR
        target.mkdir(parents=True, exist_ok=True)
        try:
            await self.launcher.mount_idmapped("/usr", f"idmapped/{IDMAPPED_USR}")
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
                return False  # a file system without idmapped mounts: mirror its directories instead
            raise explain(error) from error
        return True

    # ------------------------------------------------------------------------------------------ the base

    async def base(self) -> str:
        """Return the base for new sandboxes, built on first use and when the host's /usr changed."""
        name = base_fingerprint(self.identity, mirrored=not self._usr_idmapped)
        if name == self._base:
            return name
        async with self._base_lock, alocked(self.store.root / "base.lock", wait_s=120):
            if not (self.store.root / "base" / name).is_dir():
                await self._build_base(name)
            self._base = name
        return name

    async def _build_base(self, name: str) -> None:
        relative = f"trash/base-{secrets.token_hex(4)}"
        fresh = self.store.root / relative
        (fresh / "usr").mkdir(parents=True)
        (fresh / "root").mkdir()
        if not self._usr_idmapped:
            await self.launcher.run("skeleton", "/usr", f"{relative}/usr")
        await asyncio.to_thread(fill_root, fresh / "root")
        await asyncio.to_thread(fill_usr, fresh / "usr")
        if self.identity.is_range:
            await asyncio.to_thread(_give, fresh, self.identity)
        fresh.rename(self.store.root / "base" / name)

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
        await self.wait_dead(sandbox)  # the one before may be in its last moments, and would write to the same layer
        ours, theirs = seqpacket_pair()
        with contextlib.ExitStack() as opened:
            opened.callback(theirs.close)
            listener = opened.enter_context(_listen(directory))
            try:
                volumes = await self._volumes(state)
                plan = sandbox_plan(self.identity, volumes, state.limits)
                pid, pidfd = await self.launcher.start(plan, [theirs.fileno(), listener.fileno(), self._filter])
            except OSError as error:
                ours.close()
                raise explain(error) from error
            except BaseException:
                ours.close()
                raise
            finally:
                if state.project is not None and self.identity.is_range:
                    await self.launcher.unmount(_project_mount(state))
        os.close(pidfd)
        record = {"pid": pid, "started": _start_time(pid)}
        write_atomically(directory / "init.json", json.dumps(record).encode(), durable=False)
        return await self._greet(ours)

    async def _greet(self, connection: socket.socket) -> LocalCarrier:
        identity = self.identity
        carrier = LocalCarrier(connection, (identity.start, identity.gid) if identity.is_range else None)
        try:
            await carrier.welcome()
        except OSError as error:
            await carrier.aclose()
            raise explain(error) from error
        except BaseException:
            await carrier.aclose()
            raise
        return carrier

    async def _volumes(self, state: EngineState) -> list[Volume]:
        store, sandbox = self.store, SandboxId(state.id)
        work = store.work_directories(sandbox)
        top = f"layers/{state.top}"
        base = f"base/{state.base}"
        usr = f"idmapped/{IDMAPPED_USR}" if self._usr_idmapped else "/usr"
        lowers = {
            "root": [f"{base}/root"],
            "usr": [f"{base}/usr", usr],
            "workspace": [await self._project_lower(state)] if state.project else [f"{base}/root/workspace"],
        }
        volumes = [
            Volume(
                target=target, upper=f"{top}/{name}", work=work[name],
                lowers=[*store.lowers(state, name), *lowers[name]],
            )
            for name, target in VOLUMES.items()
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

    async def wait_dead(self, sandbox: SandboxId) -> None:
        """Return when no process of a sandbox is left.

        Raises:
            ProviderError: Some is, after many seconds.
        """
        with self._init(sandbox) as pidfd:
            if pidfd is None or await _ended(pidfd, DEATH_S):
                return
            raise ProviderError(
                f"Sandbox {sandbox} does not end", why=f"its init is alive after {DEATH_S:g} s", fix="Kill that process"
            )

    def kill(self, sandbox: SandboxId) -> None:
        """End a sandbox whose init does not answer, and with it all that it runs."""
        with self._init(sandbox) as pidfd:
            if pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    @contextlib.contextmanager
    def _init(self, sandbox: SandboxId) -> Generator[int | None]:
        """Yield a pidfd of a sandbox's init, `None` if it is not the process that was started."""
        try:
            record = json.loads((self.store.directory(sandbox) / "init.json").read_bytes())
            pid, started = int(record["pid"]), record["started"]
            pidfd = os.pidfd_open(pid)
        except (FileNotFoundError, ProcessLookupError, ValueError, KeyError, TypeError):
            yield None  # it never started, or ended long ago
            return
        try:
            yield pidfd if _start_time(pid) == started else None
        finally:
            os.close(pidfd)

    # ------------------------------------------------------------------------------------------ removal

    def sweep(self) -> None:
        """Remove in the background what nobody names any more."""
        task = asyncio.get_running_loop().create_task(self._sweep())
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    async def _sweep(self) -> None:
        for path in await asyncio.to_thread(self.store.collect, self._base or ""):
            with contextlib.suppress(ProviderError):
                await self.launcher.run("remove", path)


def _machine() -> str:
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if machine not in ("x86_64", "aarch64"):
        raise ProviderUnavailableError(
            "The embedded engine does not work here", why=f"it knows no system calls of {machine!r}",
            fix="Use provider `docker` on this machine",
        )  # fmt: skip
    return machine


def _listen(directory: Path) -> socket.socket:
    (directory / "agent.sock").unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
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
    with anyio.fail_after(BACKLOG_S):
        while True:
            try:
                peer.connect(path)
            except BlockingIOError:
                await anyio.sleep(0.005)
            else:
                return


def _project_mount(state: EngineState) -> str:
    return f"sandboxes/{state.id}/project"


async def _ended(pidfd: int, within_s: float) -> bool:
    with anyio.move_on_after(within_s):
        poll = select.poll()  # unlike `select`, for any number of open files
        poll.register(pidfd, select.POLLIN)
        while not poll.poll(0):
            await anyio.wait_readable(pidfd)
        return True
    return False


def _raise_file_limit() -> None:
    """Let this process have as many files as the machine allows: programs inside hold on to some of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _start_time(pid: int) -> str:
    """Return what tells a process from a later one with the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return ""


def _give(tree: Path, identity: Identity) -> None:
    for path in (tree, *tree.rglob("*")):
        os.lchown(path, identity.start, identity.gid)
