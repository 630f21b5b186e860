"""What a failed step means, for machines that are not here: the facts are played."""

import errno

import pytest

from mcp_sandbox.engines.diagnosis import diagnose, shortcomings
from mcp_sandbox.engines.machine import Machine

__all__: list[str] = []

UBUNTU = Machine(
    release="6.8.0-45-generic", sysctls={"kernel.apparmor_restrict_unprivileged_userns": "1"},
    python="/usr/bin/python3.12",
)  # fmt: skip
DEBIAN = Machine(release="6.7.0", sysctls={"kernel.unprivileged_userns_clone": "0"})
OFF = Machine(sysctls={"user.max_user_namespaces": "0"})
CONTAINER = Machine(state_filesystem="overlay")
WSL = Machine(release="5.15.153.1-microsoft-standard-WSL2")
WSL_DRIVE = Machine(release="6.12.1-microsoft-standard-WSL2", state_filesystem="9p")
OLD = Machine(release="5.15.0-91-generic")
NO_MEMORY_PROGRAMS = Machine(sysctls={"vm.memfd_noexec": "2"})


@pytest.mark.parametrize(
    ("step", "number", "machine", "why", "fix"),
    [
        ("write /proc/self/uid_map", errno.EPERM, UBUNTU, "AppArmor", "profile mcp-sandbox /usr/bin/python3.12"),
        ("clone namespaces", errno.EACCES, UBUNTU, "AppArmor", "apparmor_restrict_unprivileged_userns=0"),
        ("create overlay", errno.EACCES, UBUNTU, "AppArmor", "apparmor_parser -r"),
        ("clone namespaces", errno.EPERM, DEBIAN, "unprivileged_userns_clone is 0", "userns_clone=1"),
        ("clone namespaces", errno.ENOSPC, OFF, "max_user_namespaces is 0", "max_user_namespaces=10000"),
        ("clone namespaces", errno.ENOSPC, Machine(), "no more namespaces", "sysctl"),
        ("clone namespaces", errno.EPERM, CONTAINER, "seccomp profile", "seccomp=unconfined"),
        ("mount proc: Operation not permitted", errno.EPERM, CONTAINER, "/proc are hidden", "systempaths=unconfined"),
        ("pivot_root", errno.EPERM, CONTAINER, "may not mount", "seccomp=unconfined"),
        ("create overlay", errno.EINVAL, CONTAINER, "on overlay, as all of a container", "MCP_SANDBOX_HOME"),
        ("create overlay", errno.EINVAL, Machine(state_filesystem="nfs4"), "on nfs4", "MCP_SANDBOX_HOME"),
        ("create overlay", errno.EINVAL, Machine(state_filesystem="fuse.sshfs"), "fuse.sshfs", "MCP_SANDBOX_HOME"),
        ("create overlay", errno.EINVAL, WSL_DRIVE, "a drive of Windows", "Linux file system"),
        ("create overlay", errno.EINVAL, Machine(), "something is mounted below", "Unmount"),
        ("overlay lowerdir+ 0", errno.EINVAL, OLD, "5.15.0-91-generic is too old", "6.7 or later"),
        ("overlay lowerdir+ 0", errno.EINVAL, WSL, "too old", "wsl --update"),
        ("create overlay", errno.EPERM, OLD, "too old", "6.7 or later"),
        ("open overlay", errno.ENODEV, Machine(), "built without", "overlayfs"),
        ("architecture", errno.ENOEXEC, Machine(machine="armv7l", pointer_bits=32), "32-bit Python", "64-bit"),
        ("files of the state directory", errno.ENOSPC, Machine(state_free_bytes=0), "no more bytes", "Make room"),
        ("files of the state directory", errno.EDQUOT, Machine(state_free_files=0), "no more files", "Make room"),
        ("files of the state directory", errno.EROFS, Machine(), "read-only", "read-write"),
        ("files of the state directory", errno.EACCES, Machine(), "this user may not", "belongs"),
        ("files of the state directory", errno.EACCES, NO_MEMORY_PROGRAMS, "memfd_noexec", "memfd_noexec=1"),
        ("anything", errno.EIO, Machine(), "the kernel refused it", "doctor"),
    ],
)
def test_a_failed_step_has_a_reason_and_a_remedy(step: str, number: int, machine: Machine, why: str, fix: str) -> None:
    remedy = diagnose(step, number, machine)
    assert why in remedy.why
    assert fix in remedy.fix
    assert "provider" not in remedy.fix


def test_a_machine_on_which_all_is_well_lacks_nothing() -> None:
    assert shortcomings(Machine()) == []


@pytest.mark.parametrize(
    ("machine", "what"),
    [
        (Machine(state_free_bytes=5 << 20), "little room"),
        (Machine(state_free_files=17), "little room"),
        (Machine(release="6.1.0"), "old kernel"),
    ],
)
def test_what_is_lacking_although_sandboxes_work_is_told(machine: Machine, what: str) -> None:
    (lack,) = shortcomings(machine)
    assert what in lack.what
    assert lack.why
    assert lack.fix
