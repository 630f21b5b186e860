"""Programs inside that turn on the agent, on what it forks, and on commands that somebody waits for.

The agent is init: no signal reaches it. But its children can be signalled, traced and robbed by whoever runs as the
same user, which all programs inside do.
"""

import io
import json
import os
import signal
import tarfile
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.exec import ExecRequest, Termination
from mcp_sandbox.core.files import DownloadRequest, ListRequest, RemoveRequest, UploadRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.core.streams import BytesStream
from mcp_sandbox.testing.driving import (
    new_spec,
    put,
    read_file,
    run,
    sh,
    size_of,
    stops_growing,
    until_exit,
    wait_for_file,
)
from tests.attacks.attack import attacking

PROMPT_S = 10.0
"""What an attack may cost whoever waits."""

STOP_EVERYTHING = """
import os, signal
print("up", flush=True)
while True:
    try:
        os.kill(-1, signal.SIGSTOP)
    except OSError:
        pass
"""
TRACE = """
import ctypes, os, time
SEIZE, TRACE_EXIT = 0x4206, 0x40
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
print("up", flush=True)
seen = {os.getpid(), 1}
while True:
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        if pid in seen:
            continue
        try:
            command = open(f"/proc/{pid}/cmdline").read()
        except OSError:
            continue
        if "victim" in command and libc.ptrace(SEIZE, pid, 0, TRACE_EXIT) == 0:
            seen.add(pid)
            print("traced", flush=True)
    time.sleep(0.01)
"""
LEADERLESS = """
import ctypes, os, platform, threading, time
def beat():
    while True:
        with open("/workspace/beat", "a") as file:
            file.write("x")
        time.sleep(0.02)
threading.Thread(target=beat).start()
time.sleep(0.1)
print("up", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # of this thread alone
"""
STEAL = """
import os, time
if os.fork() == 0:
    pipe = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
    time.sleep(0.3)
    try:
        while True:
            os.read(pipe, 65536)
    except BlockingIOError:
        open("/workspace/stolen", "w").write("x")
        time.sleep(60)
else:
    os.write(1, b"mine")
    os._exit(0)
"""
RESUME_EACH_OTHER = """
import os, signal
for _ in range(60):
    if os.fork() == 0:
        break
else:
    print("up", flush=True)
while True:
    os.kill(-1, signal.SIGCONT)
"""
SPIN = """
import os, sys
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.setsid()  # the kernel shares the processor out between sessions first
        break
else:
    print("up", flush=True)
while True:
    pass
"""
LEASE = """
import fcntl, os, shutil, signal, time
place = os.path.expanduser("~/.local/bin")
os.makedirs(place, exist_ok=True)
shutil.copy("/bin/sh", f"{place}/sh")
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open(f"{place}/sh", os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("up", flush=True)
time.sleep(60)
"""
ABOUT_INIT = """
import ctypes, os, platform, resource
def disk():
    if ctypes.CDLL(None).syscall({"x86_64": 251, "aarch64": 30}[platform.machine()], 3, 0, 3 << 13) != 0:
        raise OSError
attempts = {
    "limit": lambda: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1)),
    "nice": lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    "nice, all of the user": lambda: os.setpriority(os.PRIO_USER, 0, 19),
    "disk, all of the user": disk,
    "idle": lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
    "affinity": lambda: os.sched_setaffinity(1, [0]),
    "trace": lambda: open("/proc/1/mem", "rb"),
}
for name, attempt in attempts.items():
    try:
        attempt()
        print("DONE", name)
    except OSError as error:
        print("refused", name)
# What programs rightly do to themselves goes on working.
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
os.nice(1)
os.sched_setaffinity(0, [0])
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


async def test_a_command_that_is_stopped_before_it_began_holds_nobody_up(sandbox: Sandbox) -> None:
    """The agent that waited for such a child would be lost for good, and destroy with it."""
    async with attacking(sandbox, STOP_EVERYTHING):
        for _ in range(5):
            with anyio.fail_after(PROMPT_S):
                outcome = await run(sandbox, "true", timeout_s=0.3)
            assert outcome.result.termination in (Termination.TIMEOUT, Termination.EXITED)
        with anyio.fail_after(PROMPT_S):
            assert await read_file(sandbox, "/etc/hostname") == b"sandbox\n"
    assert (await run(sandbox, "echo", "works")).stdout == b"works\n"


async def test_a_program_that_somebody_holds_a_lease_on_holds_nobody_else_up(sandbox: Sandbox) -> None:
    """Whoever executes it waits until the lease is over: 45 seconds, in which the agent answered nobody."""
    terminations: list[Termination] = []
    async with attacking(sandbox, LEASE), anyio.create_task_group() as tasks:

        async def start_the_program() -> None:
            terminations.append((await run(sandbox, "sh", "-c", "true", timeout_s=3)).result.termination)

        tasks.start_soon(start_the_program)
        await anyio.sleep(0.2)
        with anyio.fail_after(PROMPT_S):
            assert await read_file(sandbox, "/etc/hostname") == b"sandbox\n"
            assert (await run(sandbox, "/bin/echo", "works")).stdout == b"works\n"
    assert terminations == [Termination.TIMEOUT], "the control: it waited"


@pytest.mark.parametrize("verb", ["list", "download", "upload", "remove"])
async def test_work_on_trees_that_is_stopped_fails_and_does_not_hang(sandbox: Sandbox, verb: str) -> None:
    await sh(sandbox, "mkdir -p t/d; cd t; for n in $(seq 2000); do : > $n; done")

    async def work() -> None:
        if verb == "list":
            await sandbox.list(ListRequest(path="/workspace/t"))
        elif verb == "download":
            async with await sandbox.download(DownloadRequest(path="/workspace/t")) as tar:
                async for _ in tar:
                    pass
        elif verb == "upload":
            await sandbox.upload(UploadRequest(path="/workspace/u"), BytesStream(_archive_of(2000)))
        else:
            await sandbox.remove(RemoveRequest(path="/workspace/t", recursive=True))

    async with attacking(sandbox, STOP_EVERYTHING):
        with anyio.fail_after(PROMPT_S):
            try:
                await work()
            except OSError as error:
                assert error.errno is not None
    with anyio.fail_after(PROMPT_S):  # the probe itself: nobody stops it now
        await sh(sandbox, "mkdir -p t")
        await work()


async def test_a_process_whose_first_thread_is_gone_is_killed_with_its_command(sandbox: Sandbox) -> None:
    """`/proc` calls it a zombie, and it runs on."""
    with anyio.fail_after(PROMPT_S):
        outcome = await run(sandbox, "python3", "-c", LEADERLESS, timeout_s=1)
    assert outcome.result.termination is Termination.TIMEOUT
    assert await size_of(sandbox, "/workspace/beat") > 1
    assert await stops_growing(sandbox, "/workspace/beat")


@pytest.mark.usefixtures("takes_snapshots")
async def test_a_process_whose_first_thread_is_gone_counts_as_running_and_stands_still(sandbox: Sandbox) -> None:
    """Else a snapshot would end it, or copy files that it changes."""
    async with attacking(sandbox, LEADERLESS):
        await wait_for_file(sandbox, "/workspace/beat", least_bytes=3)
        await sandbox.snapshot(SnapshotRequest())
        assert not await stops_growing(sandbox, "/workspace/beat")


async def test_a_command_that_is_traced_dies_all_the_same(sandbox: Sandbox) -> None:
    """A tracer can hold a process back from dying; it goes, too."""
    async with attacking(sandbox, TRACE) as tracer:
        victim = await sandbox.exec(ExecRequest(argv=("sh", "-c", "read -r victim"), stdin=True, timeout_s=1))
        async with victim:
            assert await tracer.line() == b"traced"
            with anyio.fail_after(PROMPT_S):
                outcome = await until_exit(victim)
    assert outcome.result.termination is Termination.TIMEOUT


async def test_output_that_a_child_reads_away_is_not_waited_for(sandbox: Sandbox) -> None:
    """What a command said before its end is counted; a child can empty the pipe before we look."""
    async with await sandbox.exec(ExecRequest(argv=("python3", "-c", STEAL))) as execution:
        await wait_for_file(sandbox, "/workspace/stolen")
        with anyio.fail_after(PROMPT_S):
            outcome = await until_exit(execution)
        assert outcome.exit_code == 0
        assert outcome.stdout in (b"mine", b"")


@pytest.mark.usefixtures("takes_snapshots")
async def test_processes_that_resume_each_other_stand_still_or_the_snapshot_is_refused(sandbox: Sandbox) -> None:
    await put(sandbox, "/workspace/kept", b"kept")
    async with attacking(sandbox, RESUME_EACH_OTHER):
        with anyio.fail_after(3 * PROMPT_S):
            try:
                await sandbox.snapshot(SnapshotRequest())
            except OSError as error:
                assert os.strerror(error.errno or 0)
        assert await read_file(sandbox, "/workspace/kept") == b"kept"


@pytest.mark.usefixtures("takes_snapshots")
async def test_programs_that_wait_for_the_processor_stand_still_for_a_snapshot(
    provider: Provider, sandbox: Sandbox
) -> None:
    """Each has to be given it once more before it stops: 10 ms are not enough where a neighbour wants all of it."""
    spec = new_spec(provider.capabilities)
    async with (
        await provider.create(spec) as neighbour,
        attacking(sandbox, SPIN, "0"),
        attacking(neighbour, SPIN, "60"),
    ):
        for _ in range(5):
            with anyio.fail_after(3 * PROMPT_S):
                assert (await sandbox.snapshot(SnapshotRequest())).paused_s > 0
    await provider.destroy(spec.id)


@pytest.mark.usefixtures("embedded")
async def test_nobody_inside_changes_how_the_agent_runs(sandbox: Sandbox) -> None:
    """Same user, so the kernel would let them: a limit of processor time would even kill it."""
    shown = await run(sandbox, "python3", "-c", ABOUT_INIT)
    assert shown.exit_code == 0, shown.stderr.decode()
    names = ("limit", "nice", "nice, all of the user", "disk, all of the user", "idle", "affinity", "trace")
    assert shown.stdout.decode().splitlines() == [*(f"refused {name}" for name in names), "(64, 128)"]


@pytest.mark.usefixtures("embedded")
async def test_a_sandbox_whose_agent_does_not_answer_is_destroyed(
    provider: Provider, sandbox: Sandbox, state_directory: Path
) -> None:
    """Stopped from outside here; nothing that runs inside may do it, and if something could, it would not help."""
    assert (await run(sandbox, "echo", "works")).stdout == b"works\n"
    init = json.loads((state_directory / "sandboxes" / sandbox.id / "init.json").read_bytes())["pid"]
    os.kill(init, signal.SIGSTOP)
    with anyio.fail_after(2 * PROMPT_S):
        await provider.destroy(sandbox.id)
    with pytest.raises(ProcessLookupError):
        os.kill(init, 0)


def _archive_of(count: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for number in range(count):
            member = tarfile.TarInfo(f"{number}")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    return made.getvalue()
