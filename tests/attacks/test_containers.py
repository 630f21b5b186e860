"""What is new to attack where the sandbox is a container: the agent and its bridge inside, the engine outside."""

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.errors import UnsupportedError
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.files import RemoveRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.testing.driving import new_spec, read_file, run, sh
from tests.attacks.world import Host, finds
from tests.containers.engines import Dockerd, EngineError
from tests.interaction.wire_client import WireClient

ATTACKED = ("docker",)

AGAINST_THE_AGENT = r"""
import ctypes, glob, os, platform, signal, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
queue_signal, set_disk_priority = {"x86_64": (129, 251), "aarch64": (138, 30)}[platform.machine()]
def refused(call, *arguments):
    ctypes.set_errno(0)
    return call(*arguments) == -1 and ctypes.get_errno() in (1, 3, 13)
def read(path):
    try:
        with open(path, "rb") as file:
            file.read(1)
        return False
    except OSError:
        return True
def listed(path):
    try:
        os.listdir(path)
        return False
    except OSError:
        return True
def said(attempt):
    try:
        attempt()
        return False
    except OSError:
        return True
def connect():
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect("/.mcp-sandbox/agent.sock")
def forged(pid):
    info = struct.pack("iiii", signal.SIGTERM, 0, 0, 0) + bytes(112)
    return libc.syscall(queue_signal, pid, signal.SIGTERM, info)
ours = []
for status in glob.glob("/proc/[0-9]*/status"):
    pid = int(status.split("/")[2])
    try:
        uids = [line for line in open(status) if line.startswith("Uid:")][0].split()[1:]
    except OSError:
        continue
    if "0" in uids:
        ours.append(pid)
print("found", 1 in ours, len(ours) >= 2)
for pid in ours:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGCHLD, 34):
        print(refused(libc.kill, pid, number), "kill", number)
    print(refused(forged, pid), "a forged signal")
    print(refused(libc.ptrace, 16, pid, 0, 0), "ptrace attach")
    print(refused(libc.ptrace, 0x4206, pid, 0, 0), "ptrace seize")
    for name in ("mem", "environ", "maps", "auxv", "syscall", "stack", "io"):
        print(read(f"/proc/{pid}/{name}"), "read", name)
    for name in ("fd", "root", "cwd", "map_files", "fdinfo"):
        print(listed(f"/proc/{pid}/{name}"), "list", name)
    pidfd = libc.syscall(434, pid, 0)
    print(pidfd < 0 or refused(libc.syscall, 438, pidfd, 0, 0), "borrow a descriptor")
    print(refused(libc.prlimit, pid, 0, struct.pack("QQ", 1, 1), None), "limit")
    print(refused(libc.setpriority, 0, pid, 19), "priority")
    print(refused(libc.syscall, set_disk_priority, 1, pid, 3 << 13), "priority at the disk")
    print(said(lambda: os.sched_setaffinity(pid, [0])), "processors")
    print(said(lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))), "idle")
print(said(connect), "connect")
print(listed("/.mcp-sandbox"), "list the directory")
for name in ("guest", "filter", "agent.sock"):
    print(read(f"/.mcp-sandbox/{name}"), "read", name)
    print(said(lambda: os.unlink(f"/.mcp-sandbox/{name}")), "unlink", name)
print(said(lambda: os.rename("/.mcp-sandbox", "/tmp/taken")), "rename")
print(said(lambda: os.symlink("/tmp", "/.mcp-sandbox/x")), "plant")
print(refused(libc.unshare, 0x10000000), "a user namespace")
print(refused(libc.setuid, 0), "setuid")
"""


async def test_priv01_nobody_inside_reaches_the_agent_or_its_bridge(sandbox: Sandbox) -> None:
    """Not by a signal, a trace, a descriptor, a file, its socket or its directory."""
    shown = await run(sandbox, "python3", "-c", AGAINST_THE_AGENT)
    assert shown.exit_code == 0, shown.stderr.decode()
    first, *lines = shown.stdout.decode().splitlines()
    assert first == "found True True", "the control: it sees them"
    assert [line for line in lines if not line.startswith("True ")] == []
    assert len(lines) > 40
    assert await read_file(sandbox, "/etc/hostname") == b"sandbox\n"


async def test_res08_who_kills_everything_kills_its_own(sandbox: Sandbox) -> None:
    """`kill -9 -1` ends commands; the connection, the agent and what is asked next stay."""
    async with await sandbox.exec(ExecRequest(argv=("sleep", "1000"))) as victim:
        await run(sandbox, "sh", "-c", "kill -9 -1")
        with anyio.fail_after(10):
            assert (await victim.wait()).signal == 9
    assert (await run(sandbox, "echo", "fine")).stdout == b"fine\n"


async def test_priv02_no_capability_no_new_privilege_and_a_filter_hold_for_every_command(sandbox: Sandbox) -> None:
    status = (await run(sandbox, "cat", "/proc/self/status")).stdout.decode()
    found = dict(re.findall(r"^(\w+):\s*(.*)$", status, re.MULTILINE))
    assert {int(found[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert found["NoNewPrivs"] == "1"
    assert found["Seccomp"] == "2"
    assert "0" not in found["Uid"].split() + found["Gid"].split() + found["Groups"].split()


async def test_priv03_masked_and_fixed_files_of_the_kernel_stay_so(sandbox: Sandbox) -> None:
    script = (
        "for f in /proc/kcore /proc/keys /proc/timer_list /sys/firmware/x; do head -c 1 $f 2>/dev/null | wc -c; done;"
        "for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/fs/cgroup/cgroup.procs /proc/irq/x; do"
        " (echo x > $f) 2>/dev/null && echo WROTE $f; done; mount -t tmpfs x /tmp 2>/dev/null && echo MOUNTED; true"
    )
    assert set((await sh(sandbox, script)).stdout.split()) == {b"0"}


async def test_cr01_what_the_engine_shows_of_a_container_holds_no_secret_and_no_path_of_the_host(
    provider: Provider, dockerd: Dockerd, state_directory: Path, tmp_path: Path
) -> None:
    """CR-01: its variables are given to commands, never to the container, which every user of the engine sees."""
    spec = new_spec(provider.capabilities, env={"API_KEY": "CANARYxyz"})
    async with await provider.create(spec) as sandbox:
        assert (await sh(sandbox, "echo $API_KEY")).stdout == b"CANARYxyz\n", "the control: commands have it"
        shown = dockerd.run("inspect", f"mcp-sandbox-{spec.id}")
        assert spec.id in shown
        assert "CANARYxyz" not in shown
        assert str(state_directory) not in shown
        (facts,) = json.loads(shown)
        assert facts["HostConfig"]["NetworkMode"] == "none"
        assert not facts["HostConfig"]["Privileged"]
        assert facts["Mounts"] == []
        processes = dockerd.run("top", f"mcp-sandbox-{spec.id}", "-eo", "pid,args")
        assert "CANARYxyz" not in processes
    await provider.destroy(spec.id)


@pytest.mark.parametrize("way", ["its input ends", "SIGKILL"])
def test_res09_the_end_of_a_server_ends_what_its_containers_run(
    start: Callable[..., WireClient], dockerd: Dockerd, way: str
) -> None:
    """RES-09: the agent has no connection any more, and with it everything inside ends."""
    server = start()
    server.exec("trap '' TERM HUP INT; setsid sleep 4405 & sleep 4406", run_in_background=True)
    (sandbox,) = set(re.findall(r"sb_[a-z2-7]{26}", server.call("sandbox_list").text))
    running = ("inspect", "--format", "{{.State.Running}}", f"mcp-sandbox-{sandbox}")
    assert dockerd.run(*running) == "true", "the control: it runs"
    server.end_input() if way == "its input ends" else server.process.kill()
    server.process.wait(30)
    ended = time.monotonic()
    while dockerd.run(*running) == "true":
        assert time.monotonic() - ended < 15
        time.sleep(0.1)
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if _says(path, b"sleep\x004405")]


def _says(path: Path, text: bytes) -> bool:
    try:
        return text in path.read_bytes()
    except OSError:
        return False


@contextmanager
def _registry() -> Generator[tuple[int, list[bytes]]]:
    """A listener that would be asked for an image; yields its port and what came."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(2)
                    heard.append(connection.recv(4096))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield listener.getsockname()[1], heard
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_cr05_the_name_of_an_image_tells_nobody_anything(server: WireClient, host: Host, dockerd: Dockerd) -> None:
    """CR-05: a model that is told to create a sandbox from `evil.example/SECRET` would have the engine say it there."""
    with _registry() as (port, heard):
        image = f"127.0.0.1:{port}/{host.token.lower()}:latest"
        with pytest.raises(EngineError):
            dockerd.run("pull", image)
        assert heard, "the control: a pull asks there"
        heard.clear()
        refused = server.call("sandbox_create", image=image, name="x")
        assert refused.is_error
        assert "operator" in refused.text
        assert heard == []


@pytest.mark.parametrize(
    "image", ["../../etc", "--privileged", "x;reboot", "a b", "", "/etc", "x" * 5000, "sha256:" + "0" * 64, "A\x1b[2J"]
)
def test_ft04_an_image_of_any_name_is_a_name(server: WireClient, host: Host, image: str) -> None:
    """FT-04: it is refused in words, and reaches neither a path nor an option."""
    reply = server.call("sandbox_create", image=image, name="x")
    assert reply.is_error or image == ""
    assert "Traceback" not in reply.text
    assert "\x1b" not in reply.text
    assert not finds(host.token, reply.text.encode())


def test_fs06_a_project_with_links_out_and_special_files_takes_nothing_of_the_host_along(
    server: WireClient, host: Host, project: Path
) -> None:
    """FS-06: the project is copied into the container, links as links, and a FIFO holds nobody up."""
    (project / "out").symlink_to(host.secret)
    (project / "away").symlink_to(host.directory)
    (project / "two\nlines").write_text("x")
    os.mkfifo(project / "fifo")
    (project / "setuid").write_text("x")
    (project / "setuid").chmod(0o6755)
    shown = server.exec(
        "cat out away/secret.txt; ls -la; stat -c %a setuid; find / -xdev -perm /6000 -user root | head -1"
    )
    assert host.token not in shown.text
    assert "-> " + str(host.secret) in shown.text, "the control: the link itself is there"


async def test_a_tree_that_the_engine_would_lose_is_refused_with_a_reason(sandbox: Sandbox) -> None:
    """Engines commit no path of 4,096 bytes or more, and say nothing of it."""
    deep = "import os\nfor _ in range(2100):\n os.mkdir('d')\n os.chdir('d')"
    assert (await run(sandbox, "python3", "-c", deep)).exit_code == 0
    with pytest.raises(UnsupportedError, match="longer than the container engine can keep"):
        await sandbox.snapshot(SnapshotRequest())
    await sandbox.remove(RemoveRequest(path="/workspace/d", recursive=True))
    await sandbox.snapshot(SnapshotRequest())
