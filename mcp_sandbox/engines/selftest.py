"""The self-test of the embedded engine: before the first sandbox is handed out, a throw-away one is attacked for real.

What holds is remembered under a key of everything that it depends on. Only a pass is: a self-test that finds a hole, or
that cannot be carried out, lets nothing run.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from mcp_sandbox import __version__
from mcp_sandbox.core.errors import ProviderError, ProviderUnavailableError, SandboxError
from mcp_sandbox.core.examination import Examination
from mcp_sandbox.core.exec import ExecRequest, OutputChunk, StreamName
from mcp_sandbox.core.files import WriteRequest
from mcp_sandbox.core.leftovers import EXPIRES
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import Limits, SandboxId, SandboxSpec
from mcp_sandbox.engines.diagnosis import explained, shortcomings
from mcp_sandbox.engines.embedded import EmbeddedEngine
from mcp_sandbox.engines.fences import Bait, Evidence, judge
from mcp_sandbox.engines.init_process import init_pid
from mcp_sandbox.engines.launcher import sealed_program
from mcp_sandbox.engines.machine import look_at_machine
from mcp_sandbox.engines.plan import CAPABILITIES, ENVIRONMENT, sandbox_plan
from mcp_sandbox.engines.probing import (
    LIMITED,
    NAMESPACE_KINDS,
    Answer,
    Question,
    answers,
    arguments,
    limit_questions,
    questions,
)
from mcp_sandbox.guest.binary import guest_binary
from mcp_sandbox.hostfs.atomic import write_atomically

__all__ = ["LABELS", "SelfTest"]

FORMAT: Final = 2
WHOLE_S: Final = 60.0
PIDS: Final = 24
"""What the throw-away sandbox may have; few, so that the limit is reached at once."""
PROGRAM: Final = "/tmp/probe"  # noqa: S108  inside
CANARY: Final = "mcp-sandbox-canary-"
UNKNOWN_ROLE: Final = 2
"""How the guest program ends when it does not know what it is asked for."""
VARIABLE: Final = "MCP_SANDBOX_CANARY"
LABELS: Final = {"mcp-sandbox.owner": "self-test", EXPIRES: "1970-01-01T00:00:00.000Z"}
"""Whoever dies while it runs leaves nothing that anybody wants."""

Open = Callable[[SandboxSpec], Awaitable[Sandbox]]
Destroy = Callable[[SandboxId], Awaitable[None]]


class SelfTest:
    """Use one per opened engine.

    Args:
        engine: An opened engine.
        create: Creates a sandbox as for anybody.
        destroy: Destroys one.
    """

    def __init__(self, engine: EmbeddedEngine, create: Open, destroy: Destroy) -> None:
        self._engine = engine
        self._create = create
        self._destroy = destroy
        self._passed = False
        self._one_at_a_time = anyio.Lock()

    async def require(self) -> None:
        """Return if every fence holds, trying them now unless that is known of this very machine and version.

        Raises:
            ProviderUnavailableError: One does not hold, or that could not be found out.
        """
        if self._passed:
            return
        async with self._one_at_a_time:
            if not self._passed and not await to_thread.run_sync(self._is_remembered):
                await self.run()
            self._passed = True

    async def run(self) -> Examination:
        """Try every fence now; return what came of it if all hold.

        Raises:
            ProviderUnavailableError: As for `require`.
        """
        examination = await self.examine()
        if broken := examination.broken:
            raise ProviderUnavailableError(
                "No sandbox",
                why="the self-test found that this machine does not keep sandboxes apart: "
                + "; ".join(f"{fence.name}: {fence.detail}" for fence in broken),
                fix="Nothing was run. `mcp-sandbox doctor` shows every fence; report this",
            )
        return examination

    async def examine(self) -> Examination:
        """Try every fence now and remember whether all hold.

        Raises:
            ProviderUnavailableError: That could not be carried out; says why.
        """
        began = time.perf_counter()
        try:
            with anyio.fail_after(WHOLE_S), explained(self._engine.store.root):
                (self._engine.store.root / "selftest.json").unlink(missing_ok=True)
                found = await self._evidence()
        except ProviderUnavailableError:
            raise
        except (TimeoutError, ProviderError) as error:
            why = f"its self-test was not carried out ({error or f'it took more than {WHOLE_S:g} s'})"
            raise ProviderUnavailableError(
                "No sandbox", why=why, fix="Nothing was run. Run `mcp-sandbox doctor`; report it if it repeats"
            ) from error
        examination = Examination(
            fences=judge(found),
            shortcomings=[
                *shortcomings(await to_thread.run_sync(look_at_machine, self._engine.store.root)),
                *self._engine.limiting.shortcomings,
            ],
            milliseconds={"self-test": round((time.perf_counter() - began) * 1000, 1)},
        )
        if not examination.broken:
            with explained(self._engine.store.root):
                await to_thread.run_sync(self._remember, examination)
        return examination

    # ------------------------------------------------------------------------------------------ memory

    def _is_remembered(self) -> bool:
        try:
            known = json.loads((self._engine.store.root / "selftest.json").read_bytes())
            return known["format"] == FORMAT and known["key"] == self._key()
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _remember(self, examination: Examination) -> None:
        facts = {"format": FORMAT, "key": self._key(), **asdict(examination)}
        write_atomically(self._engine.store.root / "selftest.json", json.dumps(facts).encode(), durable=False)

    def _key(self) -> str:
        """Return a digest of all that the fences depend on."""
        engine = self._engine
        identity = replace(engine.identity, owners=range(0))  # which one of them is drawn does not matter
        parts = [
            __version__.encode(),
            "\n".join(os.uname()).encode(),
            guest_binary(),
            engine.filter,
            sandbox_plan(identity, [], Limits(pids=PIDS)),
            repr((identity, os.geteuid(), os.getegid(), sorted(engine.limiting.enforced))).encode(),
            _own_confinement(),
        ]
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

    # ------------------------------------------------------------------------------------------ evidence

    async def _evidence(self) -> Evidence:
        engine = self._engine
        with contextlib.ExitStack() as stack:
            bait = stack.enter_context(_laid_out(engine.store.root))
            asked = questions(
                machine=engine.machine, canaries=bait.canaries, token=bait.token, planted=bait.planted, port=bait.port,
                server=bait.server,
            )  # fmt: skip
            control = await asyncio.to_thread(_on_the_host, asked, bait)
            inside, status = await self._inside(Limits(pids=PIDS), asked, bait.planted)
            if limits := {name: most for name, most in LIMITED.items() if name in engine.limiting.enforced}:
                # In a sandbox of its own: a control group would count processes, too, and most sandboxes have none.
                limited, _ = await self._inside(Limits(**limits), limit_questions(limits))
                inside = {**inside, **limited}
            own, inherited = await to_thread.run_sync(_host_side, engine.launcher.pid)
        return Evidence(
            bait=bait, identity=engine.identity, server_uid=os.geteuid(), capabilities=CAPABILITIES,
            environment=ENVIRONMENT, pids=PIDS + 1, limits=limits, control=control, inside=inside, status=status,
            host_namespaces=own, launcher_environment=inherited,
        )  # fmt: skip

    async def _inside(
        self, limits: Limits, asked: Mapping[str, Question], planted: str = ""
    ) -> tuple[Mapping[str, Answer], Mapping[str, str]]:
        spec = SandboxSpec(id=_new_id(), limits=limits, labels=LABELS)
        try:
            async with await self._create(spec) as sandbox:
                await sandbox.write(WriteRequest(path=PROGRAM, mode=0o755), guest_binary())
                if planted:
                    await sandbox.write(WriteRequest(path=f"/var/tmp/{planted}"), b"")  # noqa: S108  inside
                request = ExecRequest(
                    argv=(PROGRAM, "probe", *arguments(asked)), cwd="/", stdin=True, timeout_s=WHOLE_S
                )
                async with await sandbox.exec(request) as execution:
                    said = b""
                    while (inside := _complete(asked, said)) is None:
                        event = await execution.receive()
                        if not isinstance(event, OutputChunk):
                            raise ProviderError(
                                "The probe did not run", why=f"it ended with {event.result}", fix="Report this as a bug"
                            )
                        said += event.data if event.stream is StreamName.STDOUT else b""
                    status = await to_thread.run_sync(_seen_from_outside, self._engine.store.directory(spec.id))
                    await execution.close_stdin()
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):
                await self._destroy(spec.id)
        return inside, status


@contextlib.contextmanager
def _laid_out(state: Path) -> Generator[Bait]:
    """Put canaries where a sandbox must not find them: files, a variable of this process, a listener."""
    token, secret, planted = (secrets.token_hex(16) for _ in range(3))
    with contextlib.ExitStack() as stack:
        paths: list[str] = []
        for directory in (state, Path(tempfile.gettempdir())):
            path = directory / f"{CANARY}{token}"
            stack.callback(path.unlink, missing_ok=True)
            path.write_text(token, "ascii")
            path.chmod(0o644)
            paths.append(str(path))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.callback(os.environ.pop, VARIABLE, None)
        os.environ[VARIABLE] = secret
        port = listener.getsockname()[1]
        yield Bait(token=token, secret=secret, canaries=paths, planted=planted, port=port, server=os.getpid())


def _on_the_host(asked: Mapping[str, Question], bait: Bait) -> Mapping[str, Answer]:
    """Ask the questions that have an answer on the host; the probe must find everything here."""
    first = f"canary {bait.canaries[0]}"
    wanted = {"processes", "connect", "reach server", first, *(f"canary {path}" for path in bait.canaries)}
    some = {name: question for name, question in asked.items() if name in wanted}
    some["processes"] = ("read", "/proc/self/environ")  # its own; there may be thousands of others
    program = sealed_program()
    try:
        done = subprocess.run(
            [f"/proc/self/fd/{program}", "probe", *arguments(some)],
            env={VARIABLE: bait.secret},
            pass_fds=(program,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=WHOLE_S,
        )
    finally:
        os.close(program)
    if done.returncode == UNKNOWN_ROLE:
        raise ProviderUnavailableError(
            "No sandbox", why="the guest program is older than the rest of this installation",
            fix="Install mcp-sandbox again; in a source tree run `python -m mcp_sandbox.guest.build`",
        )  # fmt: skip
    return answers(some, done.stdout)


def _complete(asked: Mapping[str, Question], said: bytes) -> Mapping[str, Answer] | None:
    if not said.endswith(b"0 0\n"):  # the answer to the last question
        return None
    with contextlib.suppress(ProviderError):
        return answers(asked, said)
    return None


def _host_side(launcher: int) -> tuple[Mapping[str, str], bytes]:
    """Return this process's namespaces, and the environment of the launcher, which every init inherits."""
    own = {kind: str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in NAMESPACE_KINDS}
    return own, Path(f"/proc/{launcher}/environ").read_bytes()


def _seen_from_outside(directory: Path) -> Mapping[str, str]:
    """Return the status of the one command in a sandbox."""
    init = init_pid(directory)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            lines = (entry / "status").read_text("utf-8", "replace").splitlines()
            status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
            if status.get("PPid") == str(init):
                return status
    return {}


def _own_confinement() -> bytes:
    """Return what limits this process itself, as in a container."""
    seen: list[bytes] = []
    for name in ("uid_map", "gid_map", "attr/current", "cgroup"):
        with contextlib.suppress(OSError):
            seen.append(Path("/proc/self", name).read_bytes())
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_bytes().splitlines()
        seen += [line for line in status if line.startswith((b"CapBnd", b"NoNewPrivs", b"Seccomp:"))]
    return b"\0".join([platform.machine().encode(), *seen])


def _new_id() -> SandboxId:
    return SandboxId(f"sb_{''.join(secrets.choice('abcdefghijklmnopqrstuvwxyz234567') for _ in range(26))}")
