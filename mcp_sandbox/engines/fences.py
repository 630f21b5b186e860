"""Which fences hold, judged by what a probe found inside of a sandbox, on the host, and what the host sees of it."""

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_sandbox.core.examination import Fence
from mcp_sandbox.engines.identity import Identity
from mcp_sandbox.engines.probing import CHILDREN, Answer

__all__ = ["FENCES", "LIMIT_FENCES", "Bait", "Evidence", "judge"]

_REFUSED: Final = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EAFNOSUPPORT}
_UNWRITABLE: Final = {errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT}
_NO_ROOM: Final = {errno.EDQUOT, errno.ENOSPC}
_STANDARD_STREAMS: Final = {"0", "1", "2"}
_FILTERED: Final = "2"  # SECCOMP_MODE_FILTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Bait:
    """What the host laid out to be found."""

    token: str
    """In the name and the content of every canary."""
    secret: str
    """In the environment of this process, and nowhere else."""
    canaries: Sequence[str]
    """Files that everybody on the host may read."""
    planted: str
    """In the name of a file inside."""
    port: int
    server: int
    """The number of this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that was found out."""

    bait: Bait
    identity: Identity
    server_uid: int
    capabilities: int
    """Those that programs inside are to have."""
    environment: Mapping[str, str]
    """What commands are to have."""
    pids: int
    """How many processes there may be."""
    limits: Mapping[str, int]
    """Those that are declared, of `LIMITED`."""
    host_namespaces: Mapping[str, str]
    control: Mapping[str, Answer]
    """The answers of the probe on the host; it finds everything there."""
    inside: Mapping[str, Answer]
    status: Mapping[str, str]
    """`/proc/PID/status` of the probe inside, as the host sees it."""
    launcher_environment: bytes
    """What the sandbox's init inherited."""


class _Fault(Exception):  # noqa: N818
    """A fence does not hold, or the probe cannot tell."""


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise _Fault(fault)


def _sees(condition: bool, what: str) -> None:
    """Check a positive control: a probe that finds nothing where there is something proves nothing."""
    _require(condition, f"this cannot be checked: the probe did not find {what}")


def _own(found: Evidence, kind: str) -> None:
    inside, host = found.inside[f"namespace {kind}"].text, found.host_namespaces[kind]
    _sees(inside.startswith(f"{kind}:[") and host.startswith(f"{kind}:["), f"the {kind} namespace")
    _require(inside != host, f"the {kind} namespace is the host's")


def _files(found: Evidence) -> None:
    token = found.bait.token.encode()
    for path in found.bait.canaries:
        _sees(found.control[f"canary {path}"].content == token, "a file of the host from outside")
    for name, answer in found.inside.items():
        if name.startswith("canary "):
            _require(token not in answer.content, f"a file of the host can be read ({name.removeprefix('canary ')})")
    seen = found.inside["search inside"]
    _sees(seen.error == 0 and found.bait.planted in seen.text, "a file that was made inside")
    _require(not found.inside["search host"].content, f"it is at {found.inside['search host'].names[0]} inside")
    _own(found, "mnt")


def _environment(found: Evidence) -> None:
    secret = found.bait.secret.encode()
    _sees(secret in found.control["processes"].content, "a variable of its own on the host")
    own = [pair for pair in found.inside["environment"].text.split("\0") if pair]
    _sees(f"HOME={found.environment['HOME']}" in own, "a command's variables")
    everything = found.inside["environment"].content + found.inside["processes"].content
    _require(secret not in everything, "a variable of the server is inside")
    wanted = {f"{name}={value}" for name, value in found.environment.items()}
    extra = sorted(pair.partition("=")[0] for pair in set(own) - wanted)
    _require(not extra, f"commands have variables that nobody gave them: {', '.join(extra)}")
    _require(not found.launcher_environment, "the launcher has an environment")


def _network(found: Evidence) -> None:
    _sees(found.control["connect"].error == 0, "a listener on the host's loopback from outside")
    _require(found.inside["connect"].error != 0, "a listener on the host's loopback answered")
    lines = found.inside["devices"].text.splitlines()[2:]
    names = {line.partition(":")[0].strip() for line in lines}
    _sees("lo" in names, "the loopback interface")
    _require(names == {"lo"}, f"there are other interfaces: {', '.join(sorted(names - {'lo'}))}")
    _own(found, "net")


def _settings(found: Evidence) -> None:
    _sees(found.inside["change nothing"].error == 0, "a file that it may write to")
    for name, answer in found.inside.items():
        if name.startswith("change ") and name not in ("change nothing", "change init"):
            _require(answer.error in _UNWRITABLE, f"/proc/sys/{name.removeprefix('change ')} can be written")
    mounts = [line.split() for line in found.inside["mounts"].text.splitlines()]
    _sees(any(fields[4] == "/proc" for fields in mounts), "the mount of /proc")
    read_only = [fields[4] for fields in mounts if "ro" in fields[5].split(",")]
    _require("/proc/sys" in read_only, "/proc/sys is not mounted read-only")
    _require(not found.inside["command line"].content, "/proc/cmdline can be read")


def _user(found: Evidence) -> None:
    identity = found.identity
    for kind, first in (("Uid", identity.start), ("Gid", identity.gid)):
        ids = [int(word) for word in found.status.get(kind, "").split()]
        _sees(len(ids) == 4, f"the {kind} of a command")
        _require(0 not in ids, f"{kind} 0 of the host runs commands")
        _require(all(first <= number < first + identity.count for number in ids), f"{kind} is {ids[0]}, not {first}")
        if found.server_uid == 0:
            _require(found.server_uid not in ids, f"commands have the {kind} of the server")
    _own(found, "user")


def _filter(found: Evidence) -> None:
    _sees(found.inside["allowed"].error == 0, "a system call that is allowed")
    for place, mode in (("inside", _status(found, "Seccomp")), ("outside", found.status.get("Seccomp", ""))):
        _require(mode == _FILTERED, f"seen from {place}, system calls are not filtered")
    for name, answer in found.inside.items():
        if name.startswith("call "):
            _require(answer.error in _REFUSED, f"{name.removeprefix('call ')} is answered")


def _privileges(found: Evidence) -> None:
    _require(
        _status(found, "NoNewPrivs") == "1" and found.status.get("NoNewPrivs") == "1", "programs may gain privileges"
    )


def _capabilities(found: Evidence) -> None:
    for kind in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"):
        has = int(_status(found, kind), 16)
        _require(not has & ~found.capabilities, f"{kind} is {has:x}, planned is {found.capabilities:x}")


def _processes(found: Evidence) -> None:
    _sees(found.control["reach server"].error == 0, "this process from outside")
    _require(found.inside["reach server"].error == errno.ESRCH, "a signal reached the number of the server")
    numbers = sorted(int(name) for name in found.inside["numbers"].names if name.isdecimal())
    _sees(1 in numbers, "process 1")
    _require(len(numbers) == 2, f"there are {len(numbers)} processes inside, not init and one command")
    _own(found, "pid")


def _init(found: Evidence) -> None:
    _sees(found.inside["init name"].error == 0, "init")
    _require(found.inside["trace init"].error in _REFUSED, "init can be traced")
    _require(found.inside["change init"].error in _REFUSED, "the memory of init can be written")
    _require(found.inside["init environment"].error in _REFUSED, "the environment of init can be read")
    _require(found.inside["init root"].error in _REFUSED, "the root of init can be entered")


def _descriptors(found: Evidence) -> None:
    names = found.inside["descriptors"].names
    _sees(set(names) >= _STANDARD_STREAMS, "its standard streams")
    _require(len(names) == len(_STANDARD_STREAMS) + 1, "commands inherit open files")  # one is the listing's own


def _count(found: Evidence) -> None:
    answer = found.inside["children"]
    _sees(answer.text.isdecimal() and int(answer.text) > 0, "a process that it may start")
    most = int(answer.text)
    _require(answer.error == errno.EAGAIN and most < min(found.pids, CHILDREN), f"{most} processes were not too many")


def _memory(found: Evidence) -> None:
    _limit(found, "memory_bytes", {errno.ENOMEM})


def _disk(found: Evidence) -> None:
    _limit(found, "disk_bytes", _NO_ROOM)


def _inodes(found: Evidence) -> None:
    _limit(found, "inodes", _NO_ROOM)


def _limit(found: Evidence, name: str, errors: Collection[int]) -> None:
    answer, most = found.inside[name], found.limits[name]
    _sees(answer.text.isdecimal() and int(answer.text) > most // 4, "what it may have")
    got = int(answer.text)
    _require(answer.error in errors and got <= most, f"{got:,} were not too much where {most:,} is the limit")


def _rest(found: Evidence) -> None:
    for kind in ("ipc", "uts", "cgroup"):
        _own(found, kind)


def _status(found: Evidence, field: str) -> str:
    lines = found.inside["status"].text.splitlines()
    values = [line.partition(":")[2].strip() for line in lines if line.startswith(f"{field}:")]
    _sees(len(values) == 1, f"{field} in its status")
    return values[0]


FENCES: Final[Mapping[str, Callable[[Evidence], None]]] = {
    "files": _files,
    "environment": _environment,
    "network": _network,
    "processes": _processes,
    "user": _user,
    "capabilities": _capabilities,
    "no_new_privs": _privileges,
    "system calls": _filter,
    "kernel settings": _settings,
    "init": _init,
    "descriptors": _descriptors,
    "process limit": _count,
    "ipc, hostname, cgroups": _rest,
}
"""In the order in which people ask."""
LIMIT_FENCES: Final[Mapping[str, tuple[str, Callable[[Evidence], None]]]] = {
    "memory_bytes": ("memory limit", _memory),
    "disk_bytes": ("disk limit", _disk),
    "inodes": ("limit of files", _inodes),
}
"""By the limits that are declared here; one that is not has no fence."""


def judge(found: Evidence) -> Sequence[Fence]:
    """Return what each fence is worth; evidence that is missing or makes no sense proves nothing."""
    limits = [fence for name, fence in LIMIT_FENCES.items() if name in found.limits]
    return [_judged(name, check, found) for name, check in (*FENCES.items(), *limits)]


def _judged(name: str, check: Callable[[Evidence], None], found: Evidence) -> Fence:
    try:
        check(found)
    except _Fault as fault:
        return Fence(name=name, holds=False, detail=str(fault))
    except (KeyError, ValueError) as error:
        return Fence(name=name, holds=False, detail=f"this cannot be checked: {error!r}")
    return Fence(name=name, holds=True)
