"""A server in the sandbox as the user's browser meets it, through MCP."""

import http.client
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interaction.wire_client import Reply, WireClient, processes_below, wait_until_gone

SERVE = "exec /usr/bin/python3 -m http.server --bind 127.0.0.1 8000"


def _full(start: Callable[..., WireClient]) -> WireClient:
    return start("serve", "--tools", "full")


def _url(reply: Reply) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+", reply.text)
    assert found is not None, reply.text
    return found[0]


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


def test_a_web_server_inside_is_reached_from_this_machine(start: Callable[..., WireClient]) -> None:
    server = _full(start)
    server.exec("echo '<p>hello from inside</p>' > index.html; head -c 5000000 /dev/zero > large")
    server.exec(SERVE, run_in_background=True)
    exposed = server.call("expose_port", port=8000)
    assert not exposed.is_error, exposed.text
    assert "A server answers at 127.0.0.1:8000 inside" in exposed.text
    assert exposed.message["result"]["structuredContent"]["listening"] is True
    url = _url(exposed)
    assert _get(url) == b"<p>hello from inside</p>\n"
    assert _get(f"{url}/large") == bytes(5_000_000)
    assert f"ports=8000 as {url}" in server.call("sandbox_list").text
    said = server.call("job", action="output", job_id="j1").text
    assert "Traceback" not in said, "the look at the port was taken for an error"
    assert "GET / HTTP/1.1" in said


def test_it_lives_through_a_restore_and_ends_when_it_is_closed(start: Callable[..., WireClient]) -> None:
    server = _full(start)
    server.exec("echo before > index.html")
    taken = re.search(r"\b[0-9a-f]{16,64}\b", server.call("snapshot_create").text)
    assert taken is not None
    server.exec(SERVE, run_in_background=True)
    url = _url(server.call("expose_port", port=8000))
    server.exec("echo after > index.html")
    assert _get(url) == b"after\n"
    assert not server.call("snapshot_restore", snapshot=taken[0]).is_error
    with pytest.raises(OSError):
        _get(url)
    assert "Nothing listens on port 8000" in server.call("expose_port", port=8000, wait_s=0).text
    server.exec(SERVE, run_in_background=True)
    assert _url(server.call("expose_port", port=8000)) == url
    assert _get(url) == b"before\n"
    assert f"Closed {url}" in server.call("expose_port", port=8000, close=True).text
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2])).connect()
    assert server.call("expose_port", port=8000, close=True).is_error
    assert "ports=" not in server.call("sandbox_list").text


def test_the_end_of_the_server_leaves_neither_port_nor_process(start: Callable[..., WireClient]) -> None:
    server = _full(start)
    server.exec(SERVE, run_in_background=True)
    url = _url(server.call("expose_port", port=8000))
    client = http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=10)
    client.connect()
    there = processes_below(server.process.pid)
    server.process.kill()
    assert wait_until_gone(there, 5.0) == {}
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2])).connect()
    client.close()


def test_a_destroyed_sandbox_is_reached_no_more(start: Callable[..., WireClient]) -> None:
    server = _full(start)
    server.call("sandbox_create", name="web")
    server.exec(SERVE, sandbox="web", run_in_background=True)
    url = _url(server.call("expose_port", port=8000, sandbox="web"))
    assert _get(url)
    assert not server.call("sandbox_destroy", sandbox="web").is_error
    with pytest.raises(OSError):
        _get(url)


FLOOD = r"""
import socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
clients = []
for _ in range(count):
    client = socket.socket()
    client.settimeout(10)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    try:
        client.send(b"GET /" + bytes(60_000))
    except OSError:
        pass
    clients.append(client)
print("full", flush=True)
sys.stdin.read()
"""


def test_a_thousand_connections_and_a_server_that_never_reads_hold_up_no_call(
    start: Callable[..., WireClient], tmp_path: Path
) -> None:
    server = _full(start)
    deaf = "import socket, time; s = socket.create_server(('127.0.0.1', 8000), backlog=512); print(s); time.sleep(4502)"
    server.exec(f'exec /usr/bin/python3 -uc "{deaf}"', run_in_background=True)
    server.exec(SERVE.replace("8000", "8001"), run_in_background=True)
    port = _url(server.call("expose_port", port=8000)).rpartition(":")[2]
    other = _url(server.call("expose_port", port=8001))
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD, port, "350"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as flood:
        assert flood.stdout is not None
        assert flood.stdout.readline() == b"full\n"
        for _ in range(5):
            assert server.exec("echo alive").body.strip() == "alive"
        flood.communicate(b"")
    assert _get(other)
    for _ in range(1_000):
        client = http.client.HTTPConnection("127.0.0.1", int(other.rpartition(":")[2]), timeout=10)
        client.connect()
        client.close()
    assert _get(other)
    assert server.exec("echo alive").body.strip() == "alive"
