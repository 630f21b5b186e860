"""A sandbox as a container: what the engine is asked to make, and what is put into it before it starts.

The agent is init. The engine starts it as root with five capabilities, which it gives up at once: they let it make
directories of the user's, take the user's id as its effective one, and empty the bounding set. From then on nobody
inside has any capability, and commands are a user who may neither signal nor trace the agent, and not enter its
directory.
"""

import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mcp_sandbox.core.sandbox import WORKSPACE, SandboxSpec, WorkspaceMode
from mcp_sandbox.engines.docker_facts import EngineFacts
from mcp_sandbox.engines.docker_user import SandboxUser, with_entries
from mcp_sandbox.engines.plan import SPOOL
from mcp_sandbox.engines.seccomp import build_filter
from mcp_sandbox.guest.binary import guest_binary
from mcp_sandbox.hostfs.denied import Denied
from mcp_sandbox.hostfs.tree_packing import Ownership, packed_directory, packed_file, packed_tree

__all__ = [
    "AGENT",
    "LABEL_SANDBOX",
    "LABEL_STATE",
    "NOT_COMPARED",
    "ImageFacts",
    "agent_archive",
    "bridge_command",
    "container_config",
    "container_name",
    "environment",
    "project_archive",
    "tmp_archive",
]

AGENT: Final = "/.mcp-sandbox"
LABEL_SANDBOX: Final = "mcp-sandbox.sandbox"
LABEL_STATE: Final = "mcp-sandbox.state"
"""Whose it is: two servers on one engine do not collect each other's."""
GRACE_MS: Final = 4000
"""How long a container outlives its last connection: stopping it takes the rest of 5 s."""
HEARTBEAT_S: Final = 60
_START_ONLY: Final = ("CHOWN", "DAC_OVERRIDE", "SETGID", "SETPCAP", "SETUID")
_NO_CORE_FILES: Final = 1
"""With 0 the program that the machine's `core_pattern` names would still be run; with 1 it is not (man 5 core)."""
_USUAL_LIMITS: Final = {"nofile": (resource.RLIMIT_NOFILE, 1_048_576), "nproc": (resource.RLIMIT_NPROC, 32_768)}
"""What Podman gives by itself: open files, and as many processes as a small machine has numbers (`pid_max`)."""
_PLACES: Final = (SPOOL, "/tmp/", "/var/tmp/")  # noqa: S108 (inside a sandbox)
"""A slash at the end: everybody's."""
_IN_TMP: Final = ".mcp-sandbox"
"""Root's, so that no command can remove it from a directory that is everybody's."""
NOT_COMPARED: Final = (
    AGENT, SPOOL, "/dev", "/proc", "/sys", "/.dockerenv", "/run/.containerenv", "/etc/hostname", "/etc/hosts",
    "/etc/mtab", "/etc/resolv.conf",
)  # fmt: skip
"""Ours, the kernel's and the engine's."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """What matters of an image."""

    name: str
    """As it was asked for."""
    image_id: str
    machine: str
    """As `uname -m` says it."""
    user: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


def container_name(sandbox: str) -> str:
    """Return what the container of a sandbox is called."""
    return f"mcp-sandbox-{sandbox}"


def bridge_command(uid: int, gid: int) -> "list[str]":
    """Return the program that the engine runs for each connection to a sandbox of such a user."""
    return [f"{AGENT}/guest", "bridge", AGENT, str(HEARTBEAT_S), str(uid), str(gid)]


def container_config(
    spec: SandboxSpec, image_id: str, user: SandboxUser, facts: EngineFacts, owner: str
) -> "dict[str, Any]":
    """Return what `POST /containers/create` is asked for."""
    own_places = [user.home] if spec.workspace.mode is WorkspaceMode.MOUNT else [WORKSPACE, user.home]
    files = spec.limits.open_files or 0
    # Only in a kernel of the sandbox's own is a user's number of processes this sandbox's.
    processes = spec.limits.pids or 0 if facts.has_own_kernel(spec.runtime) else 0
    ids = [str(user.uid), str(user.gid), str(files), str(processes)]
    arguments = ["init", AGENT, str(GRACE_MS), *ids, *own_places, *_PLACES]
    labels = {**spec.labels, LABEL_SANDBOX: spec.id, LABEL_STATE: owner}
    labels.setdefault("mcp-sandbox.owner", owner)
    return {
        "Image": image_id,
        "Hostname": "sandbox",
        "User": "0:0",
        "WorkingDir": "/",
        "Entrypoint": [f"{AGENT}/guest"],
        "Cmd": arguments,
        "Labels": labels,
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGTERM",
        "HostConfig": _host_config(spec, facts),
    }


def _resource_limits(facts: EngineFacts) -> "dict[str, int]":
    """Return the resource limits of everything in a container.

    Podman asks for fixed numbers unless it is told others, and without CAP_SYS_RESOURCE even root cannot have
    more than it has. Its service is taken to run with limits like ours.
    """
    limits = {"core": _NO_CORE_FILES}
    if facts.podman:
        for name, (kind, most) in _USUAL_LIMITS.items():
            own = resource.getrlimit(kind)[1]
            limits[name] = min(own, most) if own >= 0 else most
    return limits


def _host_config(spec: SandboxSpec, facts: EngineFacts) -> "dict[str, Any]":
    limits = spec.limits
    config: dict[str, Any] = {
        "NetworkMode": "none",
        "CapDrop": ["ALL"],
        "CapAdd": list(_START_ONLY),
        "SecurityOpt": ["no-new-privileges"],
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Init": False,
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
        "Ulimits": [{"Name": name, "Soft": most, "Hard": most} for name, most in _resource_limits(facts).items()],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}},
    }
    if spec.runtime:
        config["Runtime"] = spec.runtime
    if limits.memory_bytes is not None and "memory_bytes" in facts.limits:
        config |= {"Memory": int(limits.memory_bytes), "MemorySwap": int(limits.memory_bytes)}
    if limits.cpu_count is not None and "cpu_count" in facts.limits:
        config["NanoCpus"] = int(limits.cpu_count * 1e9)
    if limits.pids is not None and "pids" in facts.limits and not facts.has_own_kernel(spec.runtime):
        config["PidsLimit"] = int(limits.pids)
    if limits.disk_bytes is not None and facts.disk_quota:
        config["StorageOpt"] = {"size": str(int(limits.disk_bytes))}
    if spec.workspace.mode is WorkspaceMode.MOUNT:
        if facts.podman and facts.rootless:  # the user's own id inside is the one outside
            config["UsernsMode"] = "keep-id"
        config["Mounts"] = [{"Type": "bind", "Source": spec.workspace.source, "Target": WORKSPACE}]
    return config


def environment(image: ImageFacts, user: SandboxUser, spec: SandboxSpec) -> "dict[str, str]":
    """Return the variables of every command: ours, the image's, the sandbox's."""
    path = f"{user.home}/.local/bin:{image.env.get('PATH') or _PATH}"
    own = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name, "SHELL": "/bin/sh", "LANG": "C.UTF-8"}
    return {**own, **image.env, "HOME": user.home, "PATH": path, **spec.env}


def agent_archive(image: ImageFacts, user: SandboxUser, passwd: bytes | None, group: bytes | None) -> Iterator[bytes]:
    """Yield the tar stream that makes a container a sandbox. Blocks.

    Raises:
        ProviderUnavailableError: This installation carries no agent for the image's architecture.
    """
    agent = guest_binary(image.machine)
    yield packed_directory(AGENT[1:], 0o700)
    yield packed_file(f"{AGENT[1:]}/guest", agent, 0o500)
    yield packed_file(f"{AGENT[1:]}/filter", build_filter(image.machine, one_id=False), 0o400)
    for path, table in with_entries(user, passwd, group):
        yield packed_file(path, table, 0o644)
    yield bytes(1024)


def tmp_archive(*, whole: bool) -> bytes:
    """Return the tar stream for /tmp, or of `whole` /tmp for the root, that keeps gVisor from mounting a tmpfs there.

    It hides a /tmp that is empty, and what is written to the tmpfs is in no snapshot.
    """
    above = packed_directory("tmp", 0o1777) if whole else b""
    return above + packed_directory(f"tmp/{_IN_TMP}" if whole else _IN_TMP, 0o700) + bytes(1024)


def project_archive(source: str, user: SandboxUser, denied: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield the tar stream of a project for the user's workspace, without what globs deny. Blocks."""
    yield from packed_tree(Path(source), WORKSPACE[1:], Ownership(user.uid, user.gid), Denied(denied))
    yield bytes(1024)
