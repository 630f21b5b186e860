"""What a failed step of the embedded engine means, and how to mend it."""

import contextlib
import errno
from pathlib import Path

from mcp_sandbox.core.errors import ProviderUnavailableError

__all__ = ["explain"]

_OTHER = "Run `mcp-sandbox doctor`, or use provider `docker`"


def _sysctl(name: str) -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys", name.replace(".", "/")).read_text("utf-8").strip()
    return ""


def _remedy(step: str, number: int) -> tuple[str, str]:
    """Return why, and what to do."""
    if _sysctl("kernel.apparmor_restrict_unprivileged_userns") == "1" and number in (errno.EPERM, errno.EACCES):
        return (
            "AppArmor restricts user namespaces on this machine (Ubuntu 23.10 and later)",
            "Run `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0` (and put it into /etc/sysctl.d), "
            "or use provider `docker`",
        )
    if "namespace" in step or "uid_map" in step or "gid_map" in step or "setgroups" in step:
        if _sysctl("user.max_user_namespaces") == "0":
            return "user namespaces are switched off", "Run `sudo sysctl user.max_user_namespaces=10000`"
        if _sysctl("kernel.unprivileged_userns_clone") == "0":
            return (
                "unprivileged user namespaces are switched off",
                "Run `sudo sysctl kernel.unprivileged_userns_clone=1`",
            )
        if number in (errno.EPERM, errno.ENOSYS):
            return (
                "this process may not make user namespaces, as in a container with the default seccomp profile",
                "Start the container with `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`",
            )
    if "proc" in step and number == errno.EPERM:
        return (
            "/proc is partly hidden here, as in a container",
            "Start the container with `--security-opt systempaths=unconfined`",
        )
    if "overlay" in step and number == errno.EINVAL:
        return (
            "overlayfs refuses this place: the state directory is on a file system that cannot hold an upper layer "
            "(overlay, NFS), or something is mounted below the project or /usr",
            "Set MCP_SANDBOX_HOME to a directory on ext4, xfs, btrfs or tmpfs",
        )
    if number in (errno.ENOSYS, errno.ENODEV):
        return "this kernel lacks it", "Use Linux 6.7 or later, or provider `docker`"
    return "the kernel refused it", _OTHER


def explain(error: OSError) -> ProviderUnavailableError:
    """Return the error for a user: the step, the kernel's word for it, the cause and the remedy."""
    step = error.strerror or "unknown step"
    why, fix = _remedy(step, error.errno or 0)
    return ProviderUnavailableError("The embedded engine cannot start a sandbox", why=f"{step}; {why}", fix=fix)
