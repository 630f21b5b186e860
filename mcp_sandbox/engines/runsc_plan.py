"""What runsc is given: the small root that it runs in itself, and the description of the sandbox that it makes there.

runsc never sees the host. Its own root has its program, the guest agent, the sandbox's overlays and a few devices; so
whoever broke out of gVisor's kernel would stand where a program of provider `local` stands.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mcp_sandbox.core.sandbox import WORKSPACE, Limits
from mcp_sandbox.engines.identity import Identity
from mcp_sandbox.engines.launcher import tokens
from mcp_sandbox.engines.plan import (
    CAPABILITIES,
    NAMESPACES,
    Volume,
    id_tokens,
    kernel_tokens,
    limit_tokens,
    overlay_tokens,
)

__all__ = [
    "AGENT",
    "CONTAINER",
    "FACTS",
    "IMAGES",
    "SAVED",
    "Places",
    "command",
    "description",
    "entry",
    "host_tasks",
    "request",
    "runsc_plan",
]

AGENT: Final = "/.mcp-sandbox"
"""Where the guest agent is inside the sandbox, and its socket."""
FACTS: Final = "facts.json"
"""What we note beside a checkpoint."""
CONTAINER: Final = "sandbox"
"""What runsc calls it; there is one in each of its roots."""
IMAGES: Final = "/images"
"""Where checkpoints are written, in runsc's root."""
SAVED: Final = "/saved"
"""The checkpoint that it starts from, in runsc's root."""
_PROGRAM, _BUNDLE, _STATE, _ROOT, _GUEST = "/runsc", "/bundle", "/state", "/rootfs", "/guest"
_CONTROL: Final = f"{_STATE}/runsc-{CONTAINER}.sock"
_TEMPORARY, _SHARED = "/tmp", "/dev/shm"  # noqa: S108  inside
_EVERYTHING: Final = (1 << 41) - 1
"""Capabilities of its own user namespace: it makes the namespaces of its parts, and gives them up in each."""
_NOSUID, _NODEV, _NOEXEC, _READ_ONLY = 2, 4, 8, 1
_AS_IT_IS: Final = ("bind", "dcache=0")
"""Nothing is remembered of files that are not in use: whoever owns the project changes it from outside."""
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_NUMBERS: Final = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18,
}  # fmt: skip
_OWN_TASKS: Final = 1024
"""Threads of gVisor itself, far more than it has ever had."""
_FLAGS: Final = (
    "--platform=systrap", "--ignore-cgroups", "--network=none", "--overlay2=none",
    "--file-access=exclusive", "--file-access-mounts=exclusive", "--host-uds=none", "--host-fifo=none",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What of the host is mounted into runsc's root: absolute paths, or such that are relative to the store."""

    program: str
    """runsc itself."""
    guest: str
    """A directory that holds the guest agent."""
    bundle: str
    """A directory that holds the description."""
    images: str
    """Where checkpoints are written."""
    saved: str | None = None
    """The checkpoint to start from."""


def command(*arguments: str) -> tuple[str, ...]:
    """Return a call of runsc, as it is made in its own root."""
    return (_PROGRAM, "--root", _STATE, *_FLAGS, *arguments)


def request(method: str) -> tuple[str, ...]:
    """Return a call of a method of the running gVisor, without starting runsc for it."""
    return (f"{_GUEST}/guest", "call", _CONTROL, f"containerManager.{method}", "{}")


def entry(*arguments: str) -> tuple[str, ...]:
    """Return a call that runs the guest agent inside, as root without capabilities, with the streams of the call."""
    none = dict.fromkeys(("PermittedCaps", "InheritableCaps", "EffectiveCaps", "BoundingCaps", "AmbientCaps"), 0)
    program = {
        "filename": f"{AGENT}/guest", "argv": [f"{AGENT}/guest", *arguments], "envv": [], "wd": "/",
        "GuestFDs": [0, 1, 2], "Capabilities": none, "ContainerID": CONTAINER,
    }  # fmt: skip
    return (f"{_GUEST}/guest", "enter", _CONTROL, CONTAINER, json.dumps(program))


def runsc_plan(identity: Identity, volumes: Sequence[Volume], limits: Limits, places: Places, options: bytes) -> bytes:
    """Return the plan of runsc's root. The volumes are those of the sandbox, its root first."""
    shown = [(places.guest, _GUEST, _READ_ONLY), (places.bundle, _BUNDLE, _READ_ONLY), (places.images, IMAGES, 0)]
    if places.saved is not None:
        shown.append((places.saved, SAVED, _READ_ONLY))
    host_limits = replace(limits, open_files=None)
    parts = [
        tokens("namespaces", NAMESPACES, "hostname", "sandbox", "capabilities", f"{_EVERYTHING:x}"),
        id_tokens(identity),
        limit_tokens(identity, host_limits),
        options,
        tokens("--"),
        tokens("fs", "/", "tmpfs", "mode=755,size=67108864,nr_inodes=4096", _NOSUID | _NODEV),
        *(overlay_tokens(_below_root(volume), identity) for volume in volumes),
        *(tokens("mkdir", path) for path in ("/proc", "/dev", _TEMPORARY, _STATE)),
        kernel_tokens(_DEVICES),
        tokens("symlink", "/dev/fd", "/proc/self/fd"),
        tokens("touch", _PROGRAM),
        tokens("bind", _PROGRAM, places.program, _READ_ONLY | _NOSUID | _NODEV),
    ]
    for source, target, attributes in shown:
        parts.append(tokens("share", target, source, attributes | _NOSUID | _NODEV))
    return b"".join(parts)


def _below_root(volume: Volume) -> Volume:
    return replace(volume, target=_ROOT if volume.target == "/" else f"{_ROOT}{volume.target}")


def description(limits: Limits, environment: Mapping[str, str]) -> bytes:
    """Return the OCI description of the sandbox, `config.json`."""
    held = [f"CAP_{name}" for name, number in _NUMBERS.items() if CAPABILITIES >> number & 1]
    files = limits.open_files or 1 << 20
    config: dict[str, Any] = {
        "ociVersion": "1.0.0",
        "hostname": "sandbox",
        "root": {"path": _ROOT, "readonly": False},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": [f"{AGENT}/guest", "gvisor", str(limits.pids or 0), f"{AGENT}/run", f"{AGENT}/filter"],
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), held),
            "noNewPrivileges": True,
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": files, "hard": files}],
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": _TEMPORARY, "type": "bind", "source": f"{_ROOT}{_TEMPORARY}", "options": ["bind"]},
            {"destination": WORKSPACE, "type": "bind", "source": f"{_ROOT}{WORKSPACE}", "options": _AS_IT_IS},
            {"destination": _SHARED, "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"]},
            {"destination": AGENT, "type": "bind", "source": _GUEST, "options": ["bind", "ro"]},
            {"destination": f"{AGENT}/run", "type": "tmpfs", "source": "run", "options": ["mode=700"]},
        ],
        "annotations": {"io.kubernetes.cri.container-name": CONTAINER},
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }
    return json.dumps(config).encode()


def host_tasks(pids: int | None) -> int | None:
    """Return how many threads gVisor may have for programs that have so many.

    Each of them has a process and a thread of its own there. Programs find their limit inside; only those that become
    one user after the other get past it, and as far as this, where gVisor ends.
    """
    return None if pids is None else 3 * pids + _OWN_TASKS
