"""What the user inside may do to the agent and its bridges: nothing, and the next command still works."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
import pytest

from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.testing.driving import new_spec, run, sh
from tests.containers.engines import Dockerd
from tests.providers.docker_sandboxes import provider_on

__all__: list[str] = []

ATTACKS: Final = r"""
import ctypes, os, signal, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
read = lambda path: open(path).read(1)
ours = [int(n) for n in os.listdir("/proc") if n.isdigit() and open(f"/proc/{n}/comm").read() == "guest\n"]
print("agent and bridges", len(ours))
for pid in ours:
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV):
        try:
            os.kill(pid, number)
            print("SIGNALLED", pid, number)
        except PermissionError:
            pass
    for code in (-1, -6, 0):  # SI_QUEUE, SI_TKILL, SI_USER: SIGTERM that claims to come from outside
        info = struct.pack("iiiiii", signal.SIGTERM, 0, code, 0, 0, 0).ljust(128, b"\0")
        if libc.syscall({"x86_64": 129, "aarch64": 138}[os.uname().machine], pid, signal.SIGTERM, info) == 0:
            print("FORGED", pid, code)
    if libc.ptrace(16, pid, 0, 0) == 0:
        print("TRACED", pid)
    for name in ("mem", "environ", "maps", "fd", "root", "cwd", "exe"):
        try:
            path = f"/proc/{pid}/{name}"
            {"fd": os.listdir, "root": os.readlink, "cwd": os.readlink, "exe": os.readlink}.get(name, read)(path)
            print("SEEN", path)
        except OSError:
            pass
    try:
        os.pidfd_open(pid)
        print("DESCRIPTOR", libc.syscall(438, os.pidfd_open(pid), 3, 0))
    except (OSError, AttributeError):
        pass
for path in ("/.mcp-sandbox", "/.mcp-sandbox/guest", "/.mcp-sandbox/agent.sock", "/.mcp-sandbox/filter"):
    for what in (os.listdir, os.unlink, os.rmdir, lambda p: os.rename(p, "/tmp/x"), lambda p: os.chmod(p, 0o777),
                 lambda p: os.symlink("/tmp", p), lambda p: open(p, "wb"), lambda p: os.link(p, "/workspace/l")):
        try:
            what(path)
            print("TOUCHED", path)
        except OSError:
            pass
for name in ("/.mcp-sandbox/agent.sock", "/proc/1/root/.mcp-sandbox/agent.sock"):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        try:
            peer.connect(name)
            print("CONNECTED", name)
        except OSError:
            pass
"""


@pytest.fixture
async def sandbox(dockerd: Dockerd, tmp_path: Path) -> AsyncIterator[Sandbox]:
    """A sandbox in a container."""
    async with provider_on(dockerd, tmp_path / "state") as provider:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            yield sandbox
        await provider.destroy(spec.id)


async def test_no_way_leads_to_the_agent_or_its_bridge(sandbox: Sandbox) -> None:
    """Signals, forged ones too, ptrace, /proc, its file, its socket; the probe must have found both of them."""
    async with await sandbox.exec(ExecRequest(argv=("cat",), stdin=True)) as beside:
        shown = await run(sandbox, "python3", "-c", ATTACKS)
        lines = shown.stdout.decode().splitlines()
        assert (shown.exit_code, lines[0]) == (0, "agent and bridges 2"), shown.stderr.decode()
        assert [line for line in lines[1:] if line != "DESCRIPTOR -1"] == []
        await beside.write_stdin(b"alive")
        with anyio.fail_after(5):
            assert getattr(await beside.receive(), "data", b"") == b"alive"


async def test_killing_everything_inside_leaves_the_connection(sandbox: Sandbox) -> None:
    await sh(sandbox, "kill -9 -1; kill -STOP -1; kill -TERM -1")
    assert (await run(sandbox, "echo", "works")).stdout == b"works\n"


async def test_agent_and_bridge_have_root_as_identity_and_no_power(sandbox: Sandbox) -> None:
    """Their real and saved ids are root's, so that commands may not signal them; every set of capabilities is empty."""
    script = "for p in $(grep -lx guest /proc/[0-9]*/comm); do grep -hE '^(Uid|Cap)' ${p%comm}status; done"
    lines = (await sh(sandbox, script)).stdout.decode().split("\n")
    ids = sorted(line.split("\t", 1)[1] for line in lines if line.startswith("Uid"))
    assert ids == ["0\t0\t0\t1000", "0\t1000\t0\t1000"], "the bridge has the user's id for files only"
    assert {line.split("\t")[1] for line in lines if line.startswith("Cap")} == {"0" * 16}


async def test_a_command_belongs_to_the_user_for_good(sandbox: Sandbox) -> None:
    script = "import os; print(os.getresuid(), os.getresgid(), os.getgroups()); os.setuid(0)"
    shown = await run(sandbox, "python3", "-c", script)
    assert shown.stdout == b"(1000, 1000, 1000) (1000, 1000, 1000) [1000]\n"
    assert b"PermissionError" in shown.stderr
