"""What the kernel counts per user or for the whole machine: one sandbox must not use up everybody's."""

import ctypes
import os
import resource
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.files import WriteRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.testing.driving import new_spec, put, read_file, run, sh, until_exit
from tests.attacks.attack import attacking
from tests.attacks.world import python_on_host
from tests.interaction.wire_client import WireClient

SEND_DESCRIPTORS = """
import array, os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
print("up", flush=True)
file, held, sent = os.open("/dev/null", os.O_RDONLY), [], 0
passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file] * 250))]
try:
    while sent < 300_000:
        pair = socket.socketpair()
        held.append(pair)
        pair[0].setblocking(False)
        try:
            while True:
                pair[0].sendmsg([b"x"], passed)
                sent += 250
        except BlockingIOError:
            pass
except OSError:
    pass
print(sent, flush=True)
sys.stdin.read()
"""
WATCH_FILES = """
import ctypes, sys
print("up", flush=True)
libc, count = ctypes.CDLL(None), 0
while libc.inotify_init() >= 0:
    count += 1
print(count, flush=True)
sys.stdin.read()
"""
TAKE_IDS = """
import os, signal, sys, time
started = []
for user in range(1, 6):
    for _ in range(60):
        try:
            pid = os.fork()
        except OSError:
            break
        if pid == 0:
            try:
                os.setuid(user)
            except OSError:
                pass
            time.sleep(30)
            os._exit(0)
        started.append(pid)
    time.sleep(0.2)
print(len(started), flush=True)
for pid in started:
    os.kill(pid, signal.SIGKILL)
"""
ASYNCHRONOUS_IO = """
import ctypes, platform
context = ctypes.c_ulong(0)
number = {"x86_64": 206, "aarch64": 0}[platform.machine()]
print(ctypes.CDLL(None).syscall(number, 30000, ctypes.byref(context)))
"""
CORE_LIMITS = """
import ctypes, platform, resource
libc, none = ctypes.CDLL(None), (ctypes.c_ulong * 2)(0, 0)
for number in ((160, 302) if platform.machine() == "x86_64" else (164, 261)):
    libc.syscall(number, *((0, 4, none, 0) if number in (302, 261) else (4, none)))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(resource.getrlimit(resource.RLIMIT_CORE))
"""


QUEUE_SIGNALS = """
import ctypes, os, resource, signal, sys
print("up", flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 1])
resource.setrlimit(resource.RLIMIT_SIGPENDING, (resource.getrlimit(resource.RLIMIT_SIGPENDING)[1],) * 2)
libc, count = ctypes.CDLL(None), 0
while count < 1_000_000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN + 1, ctypes.c_void_p(1)) == 0:
    count += 1
print(count, flush=True)
sys.stdin.read()
"""
OPEN_TERMINALS = """
import os, sys
print("up", flush=True)
held = []
try:
    while True:
        held.append(os.openpty())
except OSError:
    print(len(held), flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def neighbour(provider: Provider) -> AsyncIterator[Sandbox]:
    """Another sandbox of the same user."""
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        yield sandbox
    await provider.destroy(spec.id)


async def test_descriptors_under_way_in_one_sandbox_stop_no_other(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """The kernel lets no process of a user pass one on while more are under way than it may have open itself."""
    async with attacking(sandbox, SEND_DESCRIPTORS) as attack:
        assert int(await attack.line()) > 250, "the probe must have reached its own limit"
        for box in (neighbour, sandbox):
            with anyio.fail_after(5):
                assert (await run(box, "echo", "works")).stdout == b"works\n"
                assert await read_file(box, "/etc/hostname") == b"sandbox\n"


async def test_watches_of_one_sandbox_leave_some_to_others_and_to_the_host(
    sandbox: Sandbox, neighbour: Sandbox
) -> None:
    """128 of them belong to a user, usually; without any, editors and file managers of the host fail."""
    async with attacking(sandbox, WATCH_FILES) as attack:
        assert int(await attack.line()) > 0
        shown = await run(neighbour, "python3", "-c", "import ctypes; print(ctypes.CDLL(None).inotify_init() >= 0)")
        assert shown.stdout == b"True\n"
        descriptor = ctypes.CDLL(None).inotify_init()
        assert descriptor >= 0
        os.close(descriptor)


async def test_signals_under_way_in_one_sandbox_leave_timers_to_others_and_to_the_host(
    sandbox: Sandbox, neighbour: Sandbox
) -> None:
    """A timer is a signal under way: of an ordinary user's the kernel counts those of all his programs together."""
    program = "import ctypes; print(ctypes.CDLL(None).timer_create(0, None, ctypes.byref(ctypes.c_void_p())))"
    async with attacking(sandbox, QUEUE_SIGNALS) as attack:
        assert int(await attack.line()) > 100
        assert (await run(neighbour, "python3", "-c", program)).stdout == b"0\n"
        assert python_on_host(program) == b"0\n"


async def test_terminals_of_one_sandbox_leave_some_to_others(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """All that are not in the host's own /dev/pts are counted together."""
    async with attacking(sandbox, OPEN_TERMINALS) as attack:
        assert 64 <= int(await attack.line()) <= 256
        assert (await run(neighbour, "python3", "-c", "import os; print(len(os.openpty()))")).stdout == b"2\n"


async def test_res01_the_limit_of_processes_holds_for_all_ids_together(provider: Provider) -> None:
    """RES-01: the kernel counts each id apart; root inside may take any of 65,536."""
    spec = new_spec(provider.capabilities, {"pids": 64})
    try:
        async with await provider.create(spec) as limited:
            shown = await run(limited, "python3", "-c", TAKE_IDS)
            assert 20 < int(shown.stdout) <= 64
            assert (await run(limited, "echo", "works")).stdout == b"works\n"
    finally:
        await provider.destroy(spec.id)


async def test_requests_of_asynchronous_io_are_not_taken_from_the_machine(sandbox: Sandbox) -> None:
    """`fs.aio-max-nr` is 65,536 for everybody together: databases of the host would not start."""
    assert (await run(sandbox, "python3", "-c", ASYNCHRONOUS_IO)).stdout == b"-1\n"


async def test_a_crash_inside_reaches_no_program_of_the_host(sandbox: Sandbox) -> None:
    """A `core_pattern` that names a program runs it as root, outside, whatever the limit is, but for 1."""
    shown = await run(sandbox, "python3", "-c", CORE_LIMITS)
    assert shown.stdout == b"(1, 1)\n", shown.stderr.decode()
    assert (await sh(sandbox, "ulimit -c 0 && kill -SEGV $$")).result.signal == 11


async def test_groups_of_the_server_are_not_the_sandboxs(provider: Provider, sandbox: Sandbox) -> None:
    """With a range of ids they are dropped; an ordinary user may not, and they show as nobody's, or are its own."""
    groups = (await sh(sandbox, "grep ^Groups: /proc/self/status")).stdout.split()[1:]
    if provider.capabilities.owners:
        assert groups == []
    else:
        assert set(groups) <= {b"0", b"65534", (await run(sandbox, "id", "-g")).stdout.strip()}


def test_res06_children_that_hold_pipes_do_not_use_up_the_servers_descriptors(
    start: Callable[..., WireClient],
) -> None:
    """RES-06: each of them costs two for as long as it lives: 1,024 are usual."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        server = start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for _ in range(6):
        calls = [server.begin_call("exec", command="sleep 60 & echo hi") for _ in range(25)]
        assert {server.finish_call(call).body.split()[-1] for call in calls} == {"hi"}
    held = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    assert held < 320, "128 commands at most are held on to, by two descriptors each"
    assert not server.call("sandbox_create", name="second").is_error
    assert server.exec("echo works", sandbox="second").body.strip() == "works"


async def test_a_file_whose_lock_is_held_does_not_stop_the_loop(sandbox: Sandbox) -> None:
    """Whoever can open what the server writes can hold its lock for seconds, with one call on much of it."""
    program = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
file = os.open("/workspace/log", os.O_RDWR | os.O_CREAT)
print("up", flush=True)
while True:
    libc.fallocate(file, 1, 1 << 30, 2 << 30)
    libc.fallocate(file, 3, 1 << 30, 2 << 30)
"""
    slowest = 0.0
    async with attacking(sandbox, program), anyio.create_task_group() as tasks:

        async def watch() -> None:
            nonlocal slowest
            while True:
                began = anyio.current_time()
                await anyio.sleep(0.002)
                slowest = max(slowest, anyio.current_time() - began)

        tasks.start_soon(watch)
        for _ in range(20):
            await sandbox.write(WriteRequest(path="/workspace/log", append=True), b"x" * 65536)
        tasks.cancel_scope.cancel()
    assert slowest < 1.0


async def test_res09_a_daemon_ends_with_its_sandbox(provider: Provider) -> None:
    """RES-09: daemons that left every session and closed every pipe."""
    name = f"daemon-{secrets.token_hex(4)}"
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as box:
        await put(box, "/workspace/run", f"exec -a {name} sleep 61 >/dev/null 2>&1 </dev/null\n".encode())
        script = "for n in $(seq 20); do (setsid bash run &); done; sleep 0.3"
        async with await box.exec(ExecRequest(argv=("bash", "-c", script))) as execution:
            await until_exit(execution)
        assert _host_processes(name) > 10, "the control: they are seen while they live"
    await provider.destroy(spec.id)
    assert _host_processes(name) == 0


def _host_processes(name: str) -> int:
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            count += Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name.encode())
        except OSError:
            continue
    return count
