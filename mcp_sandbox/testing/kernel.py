"""What programs inside can ask of a kernel that they share with the host: nothing that matters."""

import pytest

from mcp_sandbox.core.capability import Isolation
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import run, sh
from mcp_sandbox.testing.probes import DANGEROUS_CAPABILITIES, DEVICES, SOCKETS, SYSCALLS, TERMINALS

__all__ = ["KernelContract"]

HARMLESS_DEVICES = {
    "console", "core", "fd", "full", "log", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin",
    "stdout", "tty", "urandom", "zero",
}  # fmt: skip


class KernelContract(Contract):
    """For every provider with a boundary and no kernel of its own; section F of the attack list."""

    async def test_fs19_the_hosts_root_is_nobody_inside(self, shared_kernel: Sandbox) -> None:
        """FS-19: whatever user a program seems to be, to the kernel it is not root."""
        ranges = [
            tuple(map(int, line.split()))
            for line in (await self.show(shared_kernel, "/proc/self/uid_map")).splitlines()
        ]
        mapped_root = [entry for entry in ranges if entry[1] == 0]
        if mapped_root == [(0, 0, 4294967295)]:
            assert (await run(shared_kernel, "id", "-u")).stdout != b"0\n"
        else:
            assert mapped_root == []

    async def test_priv01_programs_have_no_power_and_cannot_gain_any(self, shared_kernel: Sandbox) -> None:
        """PRIV-01."""
        status = dict(
            line.split(":\t", 1)
            for line in (await self.show(shared_kernel, "/proc/self/status")).splitlines()
            if ":\t" in line
        )
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            held = int(status[kind], 16)
            assert [name for name, bit in DANGEROUS_CAPABILITIES.items() if held >> bit & 1] == [], kind

    async def test_priv02_a_setuid_program_changes_nothing(self, shared_kernel: Sandbox) -> None:
        """PRIV-02: neither one of the image nor one made inside."""
        script = 'cp "$(command -v id)" mine && chmod 6755 mine && ./mine -u; id -u'
        first, second = (await sh(shared_kernel, script)).stdout.split()
        assert first == second
        if shared_kernel.capabilities.isolation >= Isolation.CONTAINER:
            return  # the engine's own mounts; that no program gains anything is what the kernel was told (PRIV-01)
        mounts = (await self.show(shared_kernel, "/proc/self/mountinfo")).splitlines()
        for mount in mounts:
            fields = mount.split()
            if "ro" not in fields[5].split(","):
                assert "nosuid" in fields[5].split(","), mount

    async def test_fs15_no_setting_of_the_kernel_can_be_written(self, shared_kernel: Sandbox) -> None:
        """FS-15: opened for writing, nothing is written. `core_pattern` would run a program as the host's root."""
        script = (
            "places='/proc/sys /proc/sysrq-trigger /proc/irq /proc/bus /proc/acpi /proc/fs /sys'; "
            "for f in $(find $places -type f 2>/dev/null); "
            'do true 2>/dev/null >>"$f" && echo "$f"; done'
        )
        assert (await sh(shared_kernel, script, timeout_s=60)).stdout.decode().split() == []

    async def test_fs08_fs09_kernel_interfaces_cannot_be_mounted_or_unmasked(self, shared_kernel: Sandbox) -> None:
        """FS-08, FS-09."""
        script = (
            "mkdir m; mount -t proc p m; mount -t sysfs s m; mount -t tmpfs t m; mount --bind / m; "
            "mount -o remount,rw /proc/sys; umount /proc; umount -l /; ls m; mount | grep -c /workspace/m"
        )
        shown = await sh(shared_kernel, f"({script}) 2>/dev/null")
        assert shown.stdout.split() in ([b"0"], [])

    async def test_priv03_dangerous_system_calls_are_refused(self, python: str, shared_kernel: Sandbox) -> None:
        """PRIV-03: each one with arguments that would do no harm if it were not."""
        shown = await run(shared_kernel, python, "-c", SYSCALLS)
        assert shown.exit_code == 0, shown.stderr.decode()
        lines = dict(line.split(" ", 1) for line in shown.stdout.decode().splitlines())
        assert len(lines) >= 25
        assert {name: answer for name, answer in lines.items() if not answer.startswith("refused")} == {}

    async def test_sockets_that_leave_namespaces_are_refused(self, python: str, shared_kernel: Sandbox) -> None:
        """AF_VSOCK reaches the hypervisor from any network namespace; AF_PACKET, AF_ALG and others have a record."""
        shown = await run(shared_kernel, python, "-c", SOCKETS)
        assert shown.exit_code == 0, shown.stderr.decode()
        assert b"OPENED" not in shown.stdout, shown.stdout.decode()

    async def test_priv04_there_are_no_devices_but_the_harmless_ones(self, python: str, shared_kernel: Sandbox) -> None:
        """PRIV-04."""
        names = set((await run(shared_kernel, "ls", "/dev")).stdout.decode().split())
        assert names - HARMLESS_DEVICES == set()
        shown = await run(shared_kernel, python, "-c", DEVICES)
        assert shown.exit_code == 0, shown.stderr.decode()
        assert b"OPENED" not in shown.stdout, shown.stdout.decode()

    async def test_priv05_nothing_can_be_typed_into_a_terminal(self, python: str, shared_kernel: Sandbox) -> None:
        """PRIV-05, CVE-2017-5226."""
        shown = await run(shared_kernel, python, "-c", TERMINALS)
        assert shown.exit_code == 0, shown.stderr.decode()
        assert b"INJECTED" not in shown.stdout, shown.stdout.decode()

    @pytest.mark.parametrize(
        "entry", ["environ", "mem", "maps", "fd", "root", "cwd", "exe", "auxv", "stack", "syscall"]
    )
    async def test_b097_the_first_process_is_closed(self, shared_kernel: Sandbox, entry: str) -> None:
        """B-097, CR-02: what made the sandbox keeps its memory, files and environment to itself."""
        script = 'if [ -d "$1" ]; then ls "$1/"; else head -c 100 "$1"; fi'
        assert (await sh(shared_kernel, f"({script}) 2>/dev/null", f"/proc/1/{entry}")).stdout == b""

    async def test_the_first_process_cannot_be_ended(self, shared_kernel: Sandbox) -> None:
        await sh(shared_kernel, "kill -KILL 1; kill -STOP 1; kill -TERM 1; kill -SEGV 1")
        assert (await run(shared_kernel, "echo", "alive")).stdout == b"alive\n"

    async def test_a_command_cannot_reach_the_agents_control_connection(self, shared_kernel: Sandbox) -> None:
        """Whatever speaks to the provider from inside has no name there, or one that no command gets to."""
        script = "tail -n +2 /proc/net/unix | grep -o '[/@].*'; find / -path /proc -prune -o -type s -print 2>/dev/null"
        names = (await sh(shared_kernel, script)).stdout.decode().split()
        for name in names:
            assert name.startswith("/"), "an abstract name is open to everybody"
            seen = await sh(shared_kernel, 'ls -d "$1" "${1%/*}/." || echo unreachable', name)
            assert seen.stdout == b"unreachable\n", name

    @staticmethod
    async def show(sandbox: Sandbox, path: str) -> str:
        """Return a file of /proc as a command sees it."""
        return (await run(sandbox, "cat", path)).stdout.decode()
