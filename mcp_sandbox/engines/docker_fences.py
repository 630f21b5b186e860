"""Which fences hold around a container, judged by what a probe finds inside of a throw-away one.

Nothing is looked at from outside: the engine may be in a virtual machine, or on another one.
"""

import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from mcp_sandbox.core.errors import ProviderError
from mcp_sandbox.core.examination import Fence
from mcp_sandbox.core.exec import ExecRequest, OutputChunk, StreamName
from mcp_sandbox.core.files import WriteRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.engines.docker_container import AGENT
from mcp_sandbox.engines.probing import CHILDREN, Answer, answers, arguments, questions
from mcp_sandbox.guest.binary import guest_binary

__all__ = ["PIDS", "Evidence", "judge", "tried"]

PIDS: Final = 24
"""What the throw-away sandbox may have; few, so that the limit is reached at once."""
WHOLE_S: Final = 60.0
_PROGRAM: Final = "/tmp/probe"  # noqa: S108 (inside)
_VARIABLE: Final = "MCP_SANDBOX_CANARY"
_FILTERED: Final = "2"  # SECCOMP_MODE_FILTER
_STANDARD_STREAMS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that was found out."""

    inside: Mapping[str, Answer]
    environment: Mapping[str, str]
    """What commands are to have."""
    secret: str
    """In the environment of this process, and nowhere else."""
    token: str
    """In the name and the content of files of this machine."""
    planted: str
    """In the name of a file inside."""
    own_kernel: bool
    """Whether system calls are answered by a kernel of the sandbox's own."""

    def status(self, field: str) -> str:
        """Return a field of the status of a command."""
        lines = self.inside["status"].text.splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{field}:"))


async def tried(sandbox: Sandbox, environment: Mapping[str, str], *, machine: str, own_kernel: bool) -> Sequence[Fence]:
    """Attack a sandbox from inside, and say which fences hold.

    Args:
        sandbox: A throw-away one, which may have `PIDS` processes.
        environment: What its commands are to have.
        machine: Its architecture, as `uname -m` says it.
        own_kernel: Whether it has a kernel of its own.

    Raises:
        ProviderError: The probe did not run.
    """
    with _laid_out() as (secret, token, canary, port):
        planted = secrets.token_hex(16)
        asked = questions(
            machine=machine, canaries=[canary], token=token, planted=planted, port=port, server=os.getpid()
        )
        asked = {**asked, "agent": ("names", AGENT), "wait": asked["wait"]}  # that one comes last
        await sandbox.write(WriteRequest(path=_PROGRAM, mode=0o755), guest_binary(machine))
        await sandbox.write(WriteRequest(path=f"/var/tmp/{planted}"), b"")  # noqa: S108 (inside)
        request = ExecRequest(argv=(_PROGRAM, "probe", *arguments(asked)), cwd="/", stdin=True, timeout_s=WHOLE_S)
        async with await sandbox.exec(request) as execution:
            await execution.close_stdin()  # nobody looks from outside
            said = b""
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    event = await execution.receive()
                    if isinstance(event, OutputChunk) and event.stream is StreamName.STDOUT:
                        said += event.data
    found = Evidence(
        inside=answers(asked, said), environment=environment, secret=secret, token=token, planted=planted,
        own_kernel=own_kernel,
    )  # fmt: skip
    return judge(found)


@contextmanager
def _laid_out() -> Generator[tuple[str, str, str, int]]:
    """Put canaries where a sandbox must not find them: a variable, a file that everybody may read, a listener."""
    secret, token = secrets.token_hex(16), secrets.token_hex(16)
    canary = Path(tempfile.gettempdir(), f"mcp-sandbox-canary-{token}")
    with contextlib.ExitStack() as stack:
        stack.callback(canary.unlink, missing_ok=True)
        canary.write_text(token, "ascii")
        canary.chmod(0o644)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.callback(os.environ.pop, _VARIABLE, None)
        os.environ[_VARIABLE] = secret
        yield secret, token, str(canary), listener.getsockname()[1]


# ------------------------------------------------------------------------------------------------ the fences


def _files(found: Evidence) -> str:
    if found.planted not in found.inside["search inside"].text:
        return "this cannot be checked: the probe did not find a file that was made inside"
    canaries = [name for name in found.inside if name.startswith("canary ")]
    seen = [name for name in ("search host", *canaries) if found.inside[name].content]
    return f"a file of this machine is there ({seen[0]})" if seen else ""


def _environment(found: Evidence) -> str:
    own = {pair for pair in found.inside["environment"].text.split("\0") if pair}
    if found.secret.encode() in found.inside["environment"].content + found.inside["processes"].content:
        return "a variable of this process is inside"
    extra = sorted(pair.partition("=")[0] for pair in own - {f"{k}={v}" for k, v in found.environment.items()})
    return f"commands have variables that nobody gave them: {', '.join(extra)}" if extra else ""


def _network(found: Evidence) -> str:
    names = {line.partition(":")[0].strip() for line in found.inside["devices"].text.splitlines()[2:]}
    if not found.inside["connect"].error:
        return "a listener on this machine's loopback answered"
    return f"there are other interfaces than lo: {', '.join(sorted(names - {'lo'}))}" if names - {"lo"} else ""


def _user(found: Evidence) -> str:
    ids = [*found.status("Uid").split(), *found.status("Gid").split()]
    return "commands are root" if len(ids) != 8 or "0" in ids else ""


def _capabilities(found: Evidence) -> str:
    kinds = ["CapEff", "CapPrm", "CapBnd", "CapInh"] + ["CapAmb"] * (not found.own_kernel)  # gVisor has none of these
    held = {kind: word for kind in kinds if int(word := found.status(kind), 16)}
    return f"commands have capabilities: {held}" if held else ""


def _privileges(found: Evidence) -> str:
    if found.own_kernel:  # it says nothing about that in a status
        return ""
    return "" if found.status("NoNewPrivs") == "1" else "programs may gain privileges"


def _filter(found: Evidence) -> str:
    if found.inside["allowed"].error:
        return "this cannot be checked: a system call that is allowed is refused"
    answered = [name for name, answer in found.inside.items() if name.startswith("call ") and not answer.error]
    if answered:
        return f"{answered[0].removeprefix('call ')} is answered"
    return "" if found.own_kernel or found.status("Seccomp") == _FILTERED else "system calls are not filtered"


def _settings(found: Evidence) -> str:
    changed = [
        name
        for name, answer in found.inside.items()
        if name.startswith("change ") and name not in ("change nothing", "change init") and not answer.error
    ]
    return f"/proc/sys/{changed[0].removeprefix('change ')} can be written" if changed else ""


def _agent(found: Evidence) -> str:
    tries = {"trace init": "traced", "change init": "written to", "init root": "entered", "agent": "found"}
    if not found.own_kernel:  # gVisor shows everybody the variables of init, which are the image's
        tries["init environment"] = "looked into"
    done = [word for name, word in tries.items() if not found.inside[name].error]
    return f"the agent can be {done[0]}" if done else ""


def _processes(found: Evidence) -> str:
    numbers = [name for name in found.inside["numbers"].names if name.isdecimal()]
    if found.own_kernel:
        return ""
    return "" if "1" in numbers and len(numbers) <= 4 else f"there are {len(numbers)} processes inside"


def _descriptors(found: Evidence) -> str:
    count = len(found.inside["descriptors"].names) - 1  # one is the listing's own
    return "" if count == _STANDARD_STREAMS else f"commands start with {count} open files"


def _count(found: Evidence) -> str:
    answer = found.inside["children"]
    most = int(answer.text or 0)
    return "" if answer.error and 0 < most <= min(PIDS, CHILDREN) else f"{most} processes were not too many"


_FENCES: Final[Mapping[str, Callable[[Evidence], str]]] = {
    "files": _files,
    "environment": _environment,
    "network": _network,
    "processes": _processes,
    "user": _user,
    "capabilities": _capabilities,
    "no_new_privs": _privileges,
    "system calls": _filter,
    "kernel settings": _settings,
    "agent": _agent,
    "descriptors": _descriptors,
    "process limit": _count,
}


def judge(found: Evidence) -> Sequence[Fence]:
    """Return what each fence is worth; evidence that is missing or makes no sense proves nothing."""
    return [_judged(name, check, found) for name, check in _FENCES.items()]


def _judged(name: str, check: Callable[[Evidence], str], found: Evidence) -> Fence:
    try:
        fault = check(found)
    except (KeyError, ValueError, StopIteration, ProviderError) as error:
        fault = f"this cannot be checked: {error!r}"
    return Fence(name=name, holds=not fault, detail=fault)
