"""What a container engine says about itself, and what of a sandbox's limits it enforces."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_sandbox.core.capability import Isolation, LimitGap
from mcp_sandbox.core.errors import ProviderUnavailableError

__all__ = ["EngineFacts", "engine_facts"]

_MACHINES: Final = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}
_OTHER_PROVIDER: Final = "Leave it out, or use provider 'local', which enforces it"
_KNOWN_RUNTIMES: Final = {"runsc": Isolation.USER_KERNEL, "kata": Isolation.MICROVM}
_WHOLE_SANDBOX: Final = LimitGap(
    "what the engine counts and kills is the kernel of the sandbox, with everything in it",
    "Use the engine's default runtime",
    "at the limit the whole sandbox ends; its files stay",
)
_QUOTA_DRIVERS: Final = frozenset({"btrfs", "zfs", "windowsfilter", "vfs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Found when the engine was opened."""

    name: str
    """`Docker Engine 28.1`, for a reader."""
    engine_id: str
    """The engine's own id; empty where it has none."""
    machine: str
    """As `uname -m` says it."""
    storage: str
    """The storage driver."""
    kernel: str
    """The release of the kernel that it runs on."""
    runtimes: Mapping[str, Isolation]
    """What each runtime is known for, by its name or program."""
    default_runtime: str
    rootless: bool
    podman: bool
    user_namespace: bool
    """Whether ids inside are others outside."""
    limits: frozenset[str]
    unenforced: Mapping[str, LimitGap]
    disk_quota: bool
    """Whether the storage driver can bound a container's own layer."""

    def boundary_of(self, runtime: str | None) -> Isolation:
        """Return what a runtime is known for; without a name the default one."""
        return self.runtimes.get(runtime or self.default_runtime, Isolation.CONTAINER)

    def has_own_kernel(self, runtime: str | None) -> bool:
        """Whether programs of a sandbox see another kernel than the engine does."""
        return self.boundary_of(runtime) >= Isolation.USER_KERNEL

    def gaps_on(self, runtime: str | None) -> Mapping[str, LimitGap]:
        """Return the limits that are not enforced as they should be on a runtime."""
        if not self.has_own_kernel(runtime):
            return self.unenforced
        return {**self.unenforced, "memory_bytes": _WHOLE_SANDBOX}

    def limits_on(self, runtime: str | None) -> frozenset[str]:
        """Return the limits that are enforced on a runtime."""
        own = frozenset({"pids"} if self.has_own_kernel(runtime) else ())
        return (self.limits | own) - (self.gaps_on(runtime).keys() - own)


def engine_facts(info: Mapping[str, Any], version: Mapping[str, Any]) -> EngineFacts:
    """Return what matters of the answers to `/info` and `/version`.

    Raises:
        ProviderUnavailableError: Its containers are not Linux.
    """
    if (system := str(info.get("OSType", "linux"))) != "linux":
        raise ProviderUnavailableError(
            "No sandboxes on this container engine",
            why=f"its containers run {system}",
            fix="Switch Docker Desktop to Linux containers",
        )
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    parts = [str(part.get("Name", "")) for part in version.get("Components") or ()]
    podman = any("podman" in part.lower() for part in parts) or "Podman" in str(version)
    storage = str(info.get("Driver", ""))
    runtimes = _runtimes(info)
    quota = _has_disk_quota(info, storage)
    gaps = _gaps(info, storage, quota=quota)
    every = {"memory_bytes", "cpu_count", "pids", "disk_bytes", "inodes"}
    return EngineFacts(
        name=f"{'Podman' if podman else 'Docker Engine'} {version.get('Version', '')}".strip(),
        engine_id=_engine_id(info, podman=podman),
        machine=_MACHINES.get(str(info.get("Architecture", "")), str(info.get("Architecture", ""))),
        storage=storage,
        kernel=str(info.get("KernelVersion", "")),
        runtimes=runtimes,
        default_runtime=str(info.get("DefaultRuntime") or next(iter(runtimes), "")),
        rootless=any("rootless" in option for option in options) or bool(info.get("Rootless")),
        podman=podman,
        user_namespace=any("rootless" in option or "userns" in option for option in options),
        limits=frozenset(every - gaps.keys()) | {"open_files", "command_s"},
        unenforced=gaps,
        disk_quota=quota,
    )


def _runtimes(info: Mapping[str, Any]) -> Mapping[str, Isolation]:
    found: dict[str, Isolation] = {}
    there: Mapping[str, Any] = info.get("Runtimes") or {}
    for name, about in sorted(there.items()):
        words = f"{name} {about}"
        known = (kind for word, kind in _KNOWN_RUNTIMES.items() if word in words)
        found[name] = next(known, Isolation.CONTAINER)
    return found


def _engine_id(info: Mapping[str, Any], *, podman: bool) -> str:
    """Return what tells engines apart. Podman makes a new id for every answer."""
    return f"podman:{info.get('Name', '')}:{info.get('DockerRootDir', '')}" if podman else str(info.get("ID") or "")


def _has_disk_quota(info: Mapping[str, Any], storage: str) -> bool:
    """Whether `size` is taken: overlay2 takes it on XFS that was mounted with `pquota`, and says nothing about that."""
    if storage in _QUOTA_DRIVERS:
        return storage in ("btrfs", "zfs")
    status = {str(row[0]): str(row[1]) for row in info.get("DriverStatus") or () if len(row) > 1}
    return storage == "overlay2" and status.get("Backing Filesystem") == "xfs" and "pquota" in str(info)


def _gaps(info: Mapping[str, Any], storage: str, *, quota: bool) -> dict[str, LimitGap]:
    gaps: dict[str, LimitGap] = {}
    delegate = "Delegate the controllers to the engine's user (rootless: `systemctl --user edit docker`, Delegate=yes)"
    flags = {"memory_bytes": "MemoryLimit", "cpu_count": "CpuCfsQuota", "pids": "PidsLimit"}
    for name, flag in flags.items():
        if info.get(flag) is False:
            gaps[name] = LimitGap(f"the container engine has no control group for it ({flag} is off)", delegate)
    if not quota:
        why = f"storage driver {storage!r} of the container engine cannot bound what a container writes"
        gaps["disk_bytes"] = LimitGap(why, _OTHER_PROVIDER)
    gaps["inodes"] = LimitGap("no storage driver of a container engine bounds the number of files", _OTHER_PROVIDER)
    return gaps
