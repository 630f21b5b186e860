"""Category B: environment and credentials of the host, through the tools of a server."""

import contextlib
import os
import re
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.attacks.world import Host, finds, leaks, on_host, python_on_host
from tests.interaction.wire_client import WireClient, processes_below

ATTACKED = ("local", "docker")

FIXED_NAMES = {
    "CI", "DEBIAN_FRONTEND", "GIT_EDITOR", "GIT_PAGER", "GIT_TERMINAL_PROMPT", "HOME", "LANG", "LC_CTYPE", "LOGNAME",
    "NO_COLOR", "OLDPWD", "PAGER", "PATH", "PIP_BREAK_SYSTEM_PACKAGES", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_NO_INPUT",
    "PIP_ROOT_USER_ACTION", "PWD", "PYTHONUNBUFFERED", "SHELL", "SHLVL", "SUDO_ASKPASS", "TERM", "USER",
    "UV_BREAK_SYSTEM_PACKAGES", "_",
}  # fmt: skip
"""What every command has, whatever the server has."""

SHOW_PROCESSES = (
    'for p in /proc/[0-9]*; do tr "\\0" "\\n" < $p/environ; tr "\\0" " " < $p/cmdline; done 2>/dev/null; true'
)
STORES = (
    "ls -laR ~ 2>&1; cat ~/.aws/credentials ~/.ssh/id_* ~/.netrc ~/.git-credentials ~/.docker/config.json ~/.npmrc; "
    "ls -la /root /home"
)
CONNECT = r"""
import socket, sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for place in sys.argv[1:]:
    try:
        print("ANSWERED", place, opener.open(f"http://{place}/", timeout=3).status)
    except OSError as error:
        print("refused", place, error)
"""
METADATA = (
    "169.254.169.254", "[fd00:ec2::254]", "metadata.google.internal", "100.100.100.200", "168.63.129.16", "2852039166",
    "0xa9fea9fe", "0251.0376.0251.0376", "[::ffff:169.254.169.254]",
)  # fmt: skip
BUSES = (
    'echo "[$SSH_AUTH_SOCK$DBUS_SESSION_BUS_ADDRESS$DISPLAY$WAYLAND_DISPLAY$XDG_RUNTIME_DIR]"; '
    "(ls -d /tmp/ssh-* /run/user/* /run/dbus /tmp/.X11-unix; ssh-add -l; keyctl show) 2>/dev/null; "
)
CONNECT_SOCKET = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print('CONNECTED')"
OPEN_FILES = """
import os
for number in range(64):
    print(number, os.path.exists(f"/proc/self/fd/{number}"), flush=True)
os.system("ls -l /proc/self/fd")
"""
KEYCTL = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
print("keyctl", libc.syscall({"x86_64": 250, "aarch64": 219}[platform.machine()], 0, -3, 0))
"""


def python(server: WireClient, program: str, *arguments: str) -> str:
    """Run a probe that is a Python program inside, and return what it says."""
    words = " ".join(f"'{argument}'" for argument in arguments)
    return server.exec(f"/usr/bin/python3 - {words} 2>&1", stdin=program).body


def test_cr01_the_environment_of_the_server_is_not_a_commands(server: WireClient, host: Host) -> None:
    """CR-01: a command has the fixed list and nothing else."""
    script = "env | sort; set | grep -i canary; tr '\\0' '\\n' < /proc/self/environ"
    assert finds(host.token, on_host(script, host=host)), "the control: outside the same script finds it"
    server.exec(script)
    names = set(re.findall(r"^([A-Za-z_]\w*)=", server.exec("env").body, re.MULTILINE))
    assert "PATH" in names
    assert names <= FIXED_NAMES, names - FIXED_NAMES
    assert not leaks(host, server)


def test_cr02_no_process_inside_holds_the_environment_of_the_server(server: WireClient, host: Host) -> None:
    """CR-02: neither number 1, which was made by it."""
    outside = f"sleep 5 & {SHOW_PROCESSES}; kill $!"
    assert finds(host.token, on_host(outside, host=host)), "the control: outside a process shows it"
    shown = server.exec(SHOW_PROCESSES).body
    assert "PATH=" in shown, "the control: a command sees its own"
    assert "mcp_sandbox" not in shown
    assert not leaks(host, server)


def test_cr03_processes_of_the_host_are_invisible(server: WireClient) -> None:
    """CR-03."""
    script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'mcp_[s]andbox serve' | head -n 1; "
    script += "ls -d /proc/[0-9]* | wc -l"
    outside = on_host(script).split()
    assert outside[:2] == [b"mcp_sandbox", b"serve"], "the control: outside the same script finds the server"
    inside = server.exec(script).body.split()
    assert len(inside) == 1
    assert int(inside[0]) < 10
    assert server.exec(f"kill -0 {server.process.pid}").header.startswith("exit=1 ")


def test_cr04_a_command_has_three_open_files_and_no_socket(server: WireClient) -> None:
    """CR-04."""
    shown = python(server, OPEN_FILES)
    assert re.findall(r"^(\d+) True$", shown, re.MULTILINE) == ["0", "1", "2"]
    assert "socket:" not in shown


def test_cr05_neither_metadata_services_nor_the_hosts_loopback_answer_in_any_spelling(server: WireClient) -> None:
    """CR-05."""
    with _http_service() as port:
        spellings = ("127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "[::ffff:127.0.0.1]", "127.1")
        places = [f"{name}:{port}" for name in spellings]
        control = python_on_host(CONNECT, *places)
        assert control.count(b"ANSWERED") == len(places), control
        shown = python(server, CONNECT, *places, *METADATA)
    assert len(re.findall("^refused", shown, re.MULTILINE)) == len(places) + len(METADATA), shown
    assert "ANSWERED" not in shown


def test_cr06_credential_files_of_homes_are_absent(server: WireClient, host: Host) -> None:
    """CR-06."""
    assert finds(host.token, on_host(STORES, host=host)), "the control: outside the same script finds them"
    server.exec(STORES)
    for name in (".aws/credentials", ".ssh/id_ed25519", ".netrc", ".git-credentials", ".npmrc", ".docker/config.json"):
        for home in (str(host.home), "/root", "/home", os.path.expanduser("~")):
            assert server.call("read_file", file_path=f"{home}/{name}").is_error
    assert not leaks(host, server)


def test_cr07_fs07_agents_buses_and_sockets_of_the_host_are_absent(server: WireClient, host: Host) -> None:
    """CR-07, FS-07: neither by a variable, nor by a path, nor by a key ring."""
    with socket.socket(socket.AF_UNIX) as agent:
        path = str(host.directory.parent / "agent.sock")
        agent.bind(path)
        agent.listen()
        os.chmod(path, 0o777)
        assert b"CONNECTED" in python_on_host(CONNECT_SOCKET, path), "the control: outside it answers"
        places = (path, "/var/run/docker.sock", "/run/docker.sock", "/run/dbus/system_bus_socket")
        assert "CONNECTED" not in "".join(python(server, CONNECT_SOCKET, place) for place in places)
    assert finds(host.token, on_host(BUSES, host=host)), "the control: outside variables name them"
    assert server.exec(BUSES + "true").body.split() == ["[]"]
    assert python(server, KEYCTL).split() == ["keyctl", "-1"]
    assert not leaks(host, server)


def test_cr08_references_in_arguments_are_text(server: WireClient, host: Host) -> None:
    """CR-08: what a model asks for is never looked up, neither in the server's environment nor in any store."""
    asked = {
        "CANARY_ENV": "${env:CANARY_ENV}", "X": "secret://env/CANARY_ENV", "Y": "$CANARY_ENV", "Z": f"file://{host.secret}",
        "W": "%(CANARY_ENV)s",
    }  # fmt: skip
    shown = server.exec("env -0 | tr '\\0' '\\n'", env=asked).body
    for name, value in asked.items():
        assert f"{name}={value}" in shown.splitlines()
    server.exec("echo ${CANARY_ENV}; cat", stdin="secret://env/CANARY_ENV ${CANARY_ENV}", cwd="/tmp")
    server.call("write_file", file_path="$CANARY_ENV", content="secret://env/CANARY_ENV")
    assert server.exec("ls; cat *").body.split() == ["$CANARY_ENV", "secret://env/CANARY_ENV"]
    assert not leaks(host, server)


@pytest.mark.usefixtures("embedded")
def test_cr09_what_the_server_starts_shows_no_secret_to_other_users(server: WireClient, host: Host) -> None:
    """CR-09: sampled while sandboxes come and commands run. The server's own environment is its user's doing."""
    own = Path(f"/proc/{server.process.pid}/environ").read_bytes()
    assert finds(host.token, own), "the control: a process that has it shows it"
    samples: dict[int, bytes] = {}
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.005):
            for pid in processes_below(server.process.pid):
                with contextlib.suppress(OSError):
                    samples[pid] = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))

    watcher = threading.Thread(target=sample)
    watcher.start()
    try:
        for number in range(5):
            server.call("sandbox_create", name=f"s{number}")
            server.exec("sleep 0.05; true", sandbox=f"s{number}")
            server.call("snapshot_create", sandbox=f"s{number}")
    finally:
        done.set()
        watcher.join()
    assert len(samples) >= 5
    assert [pid for pid, shown in samples.items() if finds(host.token, shown)] == []


@contextmanager
def _http_service() -> Generator[int]:
    """Answer every request on the host's loopback, over both versions of the protocol; yields the port."""
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
