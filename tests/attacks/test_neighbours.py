"""Category G: one sandbox against another, and handles that are none."""

from mcp_sandbox.store.identity import ID_PATTERN, new_sandbox_id
from tests.attacks.world import Host
from tests.interaction.wire_client import WireClient

ATTACKED = ("local", "docker")

PLACES = ("/workspace", "/tmp", "/dev/shm", "/var/tmp", "/root", "/run", "/usr/local")
IPC = """
import ctypes
libc = ctypes.CDLL(None)
print("segments", libc.shmget(0x5A17, 4096, 0), "queues", libc.msgget(0x5A17, 0), "sets", libc.semget(0x5A17, 1, 0))
"""
MAKE_IPC = """
import ctypes
libc, create = ctypes.CDLL(None), 0o1666
print(libc.shmget(0x5A17, 4096, create), libc.msgget(0x5A17, create), libc.semget(0x5A17, 1, create))
"""
LISTEN = """
import socket, sys, time
tcp = socket.create_server(("0.0.0.0", 8123))
unix = socket.socket(socket.AF_UNIX)
unix.bind("\\0canary-b")
unix.listen()
print("up", flush=True)
time.sleep(60)
"""
CONNECT = """
import socket
for family, place in ((socket.AF_INET, ("127.0.0.1", 8123)), (socket.AF_UNIX, "\\0canary-b")):
    try:
        socket.socket(family).connect(place)
        print("CONNECTED", place)
    except OSError as error:
        print("refused", place)
"""


def _look(server: WireClient, sandbox: str) -> str:
    """Return what can be seen of B in a sandbox."""
    files = " ".join(f"{place}/of-b" for place in PLACES)
    script = (
        f"cat {files} /proc/[0-9]*/root/workspace/of-b 2>/dev/null; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o "
        f"'[l]isten-of-b'; /usr/bin/python3 -c '{IPC}'; /usr/bin/python3 - <<'P'\n{CONNECT}\nP"
    )
    return server.exec(script, sandbox=sandbox).body


def test_xs01_nothing_of_one_sandbox_is_seen_in_another(server: WireClient) -> None:
    """XS-01: files, processes, listeners, shared memory and queues; nor by a fork of it that came before them."""
    for name in ("a", "b"):
        assert not server.call("sandbox_create", name=name).is_error
    server.exec("; ".join(f"echo CANARY_B > {place}/of-b" for place in PLACES), sandbox="b")
    server.exec(f"/usr/bin/python3 -c '{MAKE_IPC}'", sandbox="b")
    began = server.exec("exec -a listen-of-b /usr/bin/python3 -", stdin=LISTEN, sandbox="b", run_in_background=True)
    assert not began.is_error
    server.call("job", action="input", job_id="j1", input=LISTEN, close_stdin=True, sandbox="b")
    while "up" not in server.call("job", action="output", job_id="j1", sandbox="b").body:
        pass
    inside = _look(server, "b")
    for sign in ("CANARY_B", "listen-of-b", "CONNECTED ('127.0.0.1', 8123)"):
        assert sign in inside, f"the control: it is seen in B itself, {inside}"
    assert "segments -1" not in inside
    seen = _look(server, "a")
    assert "CANARY_B" not in seen
    assert "listen-of-b" not in seen
    assert "CONNECTED" not in seen
    assert "segments -1 queues -1 sets -1" in seen


def test_xs03_ids_are_not_to_be_guessed() -> None:
    """XS-03: 26 characters of 5 bits, of which 128 are random."""
    made = {new_sandbox_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(ID_PATTERN.match(sandbox) for sandbox in made)
    for position in range(3, 27):  # every one of them takes every value
        assert len({sandbox[position] for sandbox in made}) == 32


def test_xs03_a_handle_that_is_none_reaches_no_sandbox(server: WireClient, host: Host) -> None:
    """XS-03: a handle is looked up, and is never part of a path. The empty one is refused where it destroys."""
    server.call("sandbox_create", name="a")
    assert server.call("sandbox_destroy", sandbox="").is_error
    for handle in ("../a", "a/../../x", "a\0b", "sb_", "sb_%", "*", "/a", ".", "..", "sb_../..", "a" * 10_000):
        for tool, arguments in (
            ("exec", {"command": "touch /workspace/reached"}),
            ("write_file", {"file_path": "reached", "content": "x"}),
            ("sandbox_destroy", {}),
            ("snapshot_create", {}),
        ):
            assert server.call(tool, sandbox=handle, **arguments).is_error, (tool, handle)
    assert server.exec("ls", sandbox="a").body.strip() in ("", "(no output)")
    assert host.untouched()
