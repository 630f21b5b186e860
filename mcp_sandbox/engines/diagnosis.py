"""What a failed step of the embedded engine means, and how to mend it."""

import contextlib
import errno
import os
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mcp_sandbox.core.errors import ProviderUnavailableError
from mcp_sandbox.core.examination import Shortcoming
from mcp_sandbox.engines.machine import Machine, look_at_machine

__all__ = ["OLDEST_KERNEL", "Remedy", "diagnose", "explain", "explained", "shortcomings"]

OLDEST_KERNEL: Final = (6, 7)
"""overlayfs takes its layers one by one (`lowerdir+`) since then."""
_NO_LAYERS: Final = frozenset(
    {"overlay", "nfs", "nfs4", "cifs", "smb3", "9p", "v9fs", "drvfs", "vfat", "exfat", "ntfs", "ntfs3", "fuseblk"}
)
"""File systems that cannot hold the upper layer of an overlay."""
_OWN_FILES: Final = "files of the state directory"
_SMALL_BYTES: Final = 1 << 30
_SMALL_FILES: Final = 10_000
_REFUSED: Final = (errno.EPERM, errno.EACCES)
_ELSEWHERE: Final = "Set MCP_SANDBOX_HOME to a directory on ext4, xfs, btrfs or tmpfs"


class Remedy(NamedTuple):
    """The cause of a failure, and what to do."""

    why: str
    fix: str


def diagnose(step: str, number: int, machine: Machine) -> Remedy:
    """Return what a failed step means on a machine.

    Args:
        step: In the guest agent's words.
        number: The errno.
        machine: The facts.
    """
    for cause in _CAUSES:
        if (remedy := cause(step, number, machine)) is not None:
            return remedy
    return Remedy(
        "the kernel refused it", "Run `mcp-sandbox doctor`; if it says no more, report this with what it says"
    )


def explain(error: OSError, state: Path) -> ProviderUnavailableError:
    """Return the error for a user: the step, the kernel's word for it, the cause and the remedy."""
    step = error.strerror or "unknown step"
    if step == os.strerror(error.errno or 0):  # not the guest agent's words, but Python's
        step = f"{_OWN_FILES}: {step}"
    why, fix = diagnose(step, error.errno or 0, look_at_machine(state))
    return ProviderUnavailableError("The embedded engine cannot start a sandbox", why=f"{step}; {why}", fix=fix)


@contextlib.contextmanager
def explained(state: Path) -> Generator[None]:
    """Explain what the kernel refuses meanwhile.

    Raises:
        ProviderUnavailableError: It refused something.
    """
    try:
        yield
    except TimeoutError:  # ours, not the kernel's
        raise
    except OSError as error:
        raise explain(error, state) from error


def shortcomings(machine: Machine) -> Sequence[Shortcoming]:
    """Return what a machine lacks although sandboxes work on it."""
    found: list[Shortcoming] = []
    if machine.state_free_bytes < _SMALL_BYTES or machine.state_free_files < _SMALL_FILES:
        found.append(
            Shortcoming(
                what="little room for sandboxes",
                why=f"{machine.state_free_bytes >> 20} MiB and {machine.state_free_files} files are free where the "
                "state directory is",
                fix="Make room there, or set MCP_SANDBOX_HOME to a directory on a larger disk",
            )
        )
    if machine.kernel < OLDEST_KERNEL:
        found.append(
            Shortcoming(
                what="an old kernel",
                why=f"Linux {machine.release} is older than {OLDEST_KERNEL[0]}.{OLDEST_KERNEL[1]}, the oldest that "
                "mcp-sandbox is tested with",
                fix="Use a newer kernel",
            )
        )
    return found


# ------------------------------------------------------------------------------------------ causes, the likely first


def _wrong_architecture(step: str, number: int, machine: Machine) -> Remedy | None:
    if step.startswith("architecture") or machine.pointer_bits != 64:
        return Remedy(
            f"this is {machine.pointer_bits}-bit Python on {machine.machine!r}, and the embedded engine knows the "
            "system calls of x86_64 and aarch64",
            "Use a 64-bit Python on a 64-bit x86 or ARM kernel",
        )
    return None


def _state(step: str, number: int, machine: Machine) -> Remedy | None:
    """Explain what has to do with the state directory itself."""
    if number in (errno.ENOSPC, errno.EDQUOT) and not _is_about_namespaces(step):
        full = "no more files" if machine.state_free_files == 0 else "no more bytes"
        return Remedy(
            f"the disk (or the quota) that holds the state directory takes {full}",
            "Make room: `mcp-sandbox ls`, `mcp-sandbox rm` and `mcp-sandbox snapshot delete` help; or set "
            "MCP_SANDBOX_HOME to a directory on a larger disk",
        )
    if number == errno.EROFS or (machine.state_is_read_only and number in _REFUSED):
        return Remedy(
            "the state directory is on a file system that is mounted read-only",
            "Mount it read-write, or set MCP_SANDBOX_HOME to a directory that can be written",
        )
    if number in _REFUSED and step.startswith(_OWN_FILES) and machine.state_filesystem not in _NO_LAYERS:
        return Remedy(
            "this user may not change what is in the state directory, or the kernel does not let it",
            "See to whom it belongs; `mcp-sandbox` made it for one user, and root's is another one",
        )
    return None


def _apparmor(step: str, number: int, machine: Machine) -> Remedy | None:
    if machine.sysctls.get("kernel.apparmor_restrict_unprivileged_userns") != "1" or number not in _REFUSED:
        return None
    if machine.uid == 0:
        return None
    return Remedy(
        "AppArmor takes their rights from user namespaces of ordinary users (Ubuntu 23.10 and later)",
        "Either lift that for all programs: `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, kept in "
        "/etc/sysctl.d/60-mcp-sandbox.conf; or for this Python alone: write the line `abi <abi/4.0>,` and the line "
        f"`profile mcp-sandbox {machine.python} flags=(unconfined) {{ userns, }}` to /etc/apparmor.d/mcp-sandbox, then "
        "`sudo apparmor_parser -r /etc/apparmor.d/mcp-sandbox`",
    )


def _switched_off(step: str, number: int, machine: Machine) -> Remedy | None:
    if not _is_about_namespaces(step):
        return None
    if machine.sysctls.get("user.max_user_namespaces") == "0":
        return Remedy(
            "user namespaces are switched off (user.max_user_namespaces is 0)",
            "Run `sudo sysctl -w user.max_user_namespaces=10000`, and keep it in /etc/sysctl.d/60-mcp-sandbox.conf",
        )
    if machine.sysctls.get("kernel.unprivileged_userns_clone") == "0" and machine.uid != 0:
        return Remedy(
            "user namespaces are switched off for ordinary users (kernel.unprivileged_userns_clone is 0)",
            "Run `sudo sysctl -w kernel.unprivileged_userns_clone=1`, and keep it in /etc/sysctl.d/60-mcp-sandbox.conf",
        )
    if number == errno.ENOSPC:
        return Remedy(
            "no more namespaces may be made here (one of the limits in /proc/sys/user is reached, here or in the "
            "namespace around this one)",
            "Run `sudo sysctl -w user.max_user_namespaces=10000` on the host",
        )
    return None


def _container(step: str, number: int, machine: Machine) -> Remedy | None:
    if _is_about_namespaces(step) and number in (*_REFUSED, errno.ENOSYS):
        return Remedy(
            "this process may not make user namespaces, as in a container with the default seccomp profile",
            "Start the container with `--security-opt seccomp=unconfined --security-opt systempaths=unconfined` and a "
            "volume for MCP_SANDBOX_HOME, or run mcp-sandbox outside of it",
        )
    if "proc" in step.split(":")[0].split() and number in _REFUSED:
        return Remedy(
            "parts of /proc are hidden here, as in a container, and the kernel shows a new one only where none are",
            "Start the container with `--security-opt systempaths=unconfined`, or unmount what `grep /proc/ "
            "/proc/self/mountinfo` lists",
        )
    if step.split(":")[0] in ("pivot_root", "private mounts", "open_tree", "mount_setattr") and number in _REFUSED:
        return Remedy(
            "this process may not mount, as in a container with the default seccomp profile",
            "Start the container with `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`",
        )
    return None


def _old_kernel(step: str, number: int, machine: Machine) -> Remedy | None:
    is_missing = number in (errno.ENOSYS, errno.ENODEV) or ("lowerdir+" in step and number == errno.EINVAL)
    if (0, 0) < machine.kernel < OLDEST_KERNEL and (is_missing or "overlay" in step):
        wsl = ". In WSL, `wsl --update` brings a newer one" if machine.is_wsl else ""
        return Remedy(
            f"Linux {machine.release} is too old",
            f"Use Linux {OLDEST_KERNEL[0]}.{OLDEST_KERNEL[1]} or later{wsl}",
        )
    if is_missing:
        return Remedy(
            "this kernel was built without it, or a seccomp profile hides it",
            "Use a kernel with overlayfs, user namespaces and seccomp, and a container without a seccomp profile",
        )
    return None


def _layers(step: str, number: int, machine: Machine) -> Remedy | None:
    is_about_files = step.startswith(_OWN_FILES) and machine.state_filesystem in _NO_LAYERS
    if not is_about_files and "overlay" not in step:
        return None
    if number not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV, *_REFUSED):
        return None
    if machine.is_wsl and machine.state_filesystem in ("9p", "v9fs", "drvfs"):
        return Remedy(
            "the state directory is on a drive of Windows, which cannot hold layers",
            "Set MCP_SANDBOX_HOME to a directory in the Linux file system, such as ~/.local/share/mcp-sandbox",
        )
    if machine.state_filesystem in _NO_LAYERS or machine.state_filesystem.startswith("fuse"):
        inside = ", as all of a container is but its volumes" if machine.state_filesystem == "overlay" else ""
        return Remedy(
            f"the state directory is on {machine.state_filesystem}{inside}, which cannot hold layers", _ELSEWHERE
        )
    return Remedy(
        "overlayfs refuses this place; perhaps something is mounted below the project or below /usr",
        f"Unmount what is mounted there. {_ELSEWHERE} if the state directory is on anything else",
    )


def _program(step: str, number: int, machine: Machine) -> Remedy | None:
    if machine.sysctls.get("vm.memfd_noexec") == "2" and number in _REFUSED:
        return Remedy(
            "programs in memory may not be run here (vm.memfd_noexec is 2)", "Run `sudo sysctl -w vm.memfd_noexec=1`"
        )
    return None


def _is_about_namespaces(step: str) -> bool:
    return any(word in step for word in ("namespace", "uid_map", "gid_map", "setgroups"))


_CAUSES: Final[Sequence[Callable[[str, int, Machine], Remedy | None]]] = (
    _wrong_architecture,
    _switched_off,
    _program,
    _state,
    _apparmor,
    _container,
    _old_kernel,
    _layers,
)
