"""Our stdio transport under a server that needs no sandbox."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from raw_client import ENVELOPE, RawClient, open_raw_client

import mcp_sandbox

__all__: list[str] = []

TINY = (sys.executable, str(Path(__file__).with_name("tiny_server.py")))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(mcp_sandbox.__file__).parent.parent)}


@pytest.fixture
async def client() -> AsyncGenerator[RawClient]:
    async with open_raw_client() as opened:
        await opened.heard("ready")
        yield opened


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_handshake_revision_is_spoken(client: RawClient, version: str) -> None:
    assert (await client.initialize(version))["protocolVersion"] == version
    assert (await client.call(1, "echo", text="hi")) == {"content": [{"type": "text", "text": "hi"}], "isError": False}


async def test_the_revision_without_a_handshake_is_spoken(client: RawClient) -> None:
    discovered = await client.request(1, "server/discover", {"_meta": ENVELOPE})
    assert discovered["result"]["supportedVersions"] == ["2026-07-28"]
    assert not discovered["result"]["capabilities"]["tools"].get("listChanged")
    called = await client.request(2, "tools/call", {"name": "echo", "arguments": {"text": "hi"}, "_meta": ENVELOPE})
    assert called["result"]["resultType"] == "complete"


async def test_b110_b111_stray_output_and_children_do_not_touch_the_protocol(client: RawClient) -> None:
    await client.initialize()
    await client.call(1, "print")
    await client.heard("a stray line on standard output")
    await client.heard("a child")
    assert (await client.call(2, "echo", text="still there"))["content"][0]["text"] == "still there"


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"not json\n", -32700, None),
        (b"{\n", -32700, None),
        (b"[" * 100_000 + b"\n", -32700, None),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":"\xff"}}\n', -32700, 7),
        (b"[]\n", -32600, None),
        (b'{"jsonrpc":"2.0","id":8}\n', -32600, 8),
        (b'{"id":"nine","method":"ping"}\n', -32600, "nine"),
        (b'{"jsonrpc":"2.0","id":true,"method":7}\n', -32600, None),
    ],
)
async def test_a_line_that_is_no_message_is_answered_and_the_next_one_served(
    client: RawClient, line: bytes, code: int, request_id: int | str | None
) -> None:
    await client.send(line)
    answer = await client.receive()
    assert (answer["error"]["code"], answer["id"]) == (code, request_id)
    await client.initialize()


async def test_blank_lines_and_carriage_returns_are_ignored(client: RawClient) -> None:
    await client.send(b"\n  \r\n", b'{"jsonrpc":"2.0","id":1,"method":"ping"}\r\n')
    assert (await client.receive())["id"] == 1


async def test_a_line_beyond_the_limit_is_refused_in_bounded_memory(client: RawClient) -> None:
    await client.initialize()
    for _ in range(64):
        await client.send(b"x" * 1_048_576)
    await client.send(b"\n")
    answer = await client.receive()
    assert (answer["error"]["code"], answer["id"]) == (-32600, None)
    assert (await client.call(1, "echo", text="next"))["content"][0]["text"] == "next"
    status = await anyio.Path(f"/proc/{client.process.pid}/status").read_text()
    (peak,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    assert int(peak.split()[1]) < 160_000


async def test_messages_of_many_megabytes_pass_both_ways(client: RawClient) -> None:
    await client.initialize()
    assert (await client.call(1, "echo", text="x" * 8_000_000))["content"][0]["text"] == "x" * 8_000_000


async def test_a_client_that_does_not_read_holds_up_nobody_else_but_itself(client: RawClient) -> None:
    await client.initialize()
    for number in range(20):
        await client.send(
            {"id": number, "method": "tools/call", "params": {"name": "big", "arguments": {"size": 500_000}}}
        )
    answers = [await client.receive() for _ in range(20)]
    assert sorted(answer["id"] for answer in answers) == list(range(20))


async def test_what_cannot_be_written_as_json_is_an_error_for_that_call_alone(client: RawClient) -> None:
    await client.initialize()
    broken = await client.request(1, "tools/call", {"name": "surrogate", "arguments": {}})
    assert broken["error"]["code"] == -32603
    assert (await client.call(2, "echo", text="next"))["content"][0]["text"] == "next"


async def test_b113_a_cancelled_call_is_told_so_and_never_answered(client: RawClient) -> None:
    await client.initialize()
    await client.send({"id": 1, "method": "tools/call", "params": {"name": "sleep", "arguments": {}}})
    await client.heard("begun")
    await client.send({"method": "notifications/cancelled", "params": {"requestId": 1}})
    await client.heard("cancelled")
    await client.send({"id": 2, "method": "ping"})
    assert (await client.receive())["id"] == 2


async def _sleeping(client: RawClient) -> None:
    await client.initialize()
    await client.send({"id": 1, "method": "tools/call", "params": {"name": "sleep", "arguments": {}}})
    await client.heard("begun")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_cancels_what_runs_cleans_up_and_exits_with_success(
    client: RawClient, number: signal.Signals
) -> None:
    await _sleeping(client)
    client.process.send_signal(number)
    await client.heard("cancelled")
    await client.heard("cleaning")
    assert await client.process.wait() == 0


async def test_an_impatient_clients_second_signal_does_not_cut_the_clean_up(client: RawClient) -> None:
    await _sleeping(client)
    client.process.send_signal(signal.SIGINT)
    client.process.send_signal(signal.SIGTERM)
    await client.heard("cleaning")
    assert await client.process.wait() == 0


async def test_b077_the_end_of_input_ends_the_server(client: RawClient) -> None:
    await _sleeping(client)
    started = anyio.current_time()
    await client.close_stdin()
    await client.heard("cancelled")
    assert await client.process.wait() == 0
    assert anyio.current_time() - started < 2


async def test_requests_sent_right_before_the_end_of_input_are_still_answered(client: RawClient) -> None:
    await client.initialize()
    await client.send({"id": 1, "method": "tools/list"}, {"id": 2, "method": "ping"})
    await client.close_stdin()
    assert {message["id"] for message in await client.rest()} == {1, 2}


def test_a_client_that_stops_listening_ends_the_server() -> None:
    output_read, output_write = os.pipe()
    with subprocess.Popen(TINY, stdin=subprocess.PIPE, stdout=output_write, env=_environment()) as server:
        os.close(output_write)
        assert server.stdin is not None
        server.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        server.stdin.flush()
        assert json.loads(os.read(output_read, 1_000))["id"] == 1
        os.close(output_read)
        assert server.wait(10) == 0


def test_b074_the_server_ends_with_its_parent_although_somebody_holds_its_input() -> None:
    script = (
        "import subprocess, sys, time\n"
        "subprocess.Popen(sys.argv[3:], stdin=int(sys.argv[1]), stdout=int(sys.argv[2]))\n"
        "time.sleep(60)\n"
    )
    input_read, input_write = os.pipe()
    output_read, output_write = os.pipe()
    arguments = [sys.executable, "-c", script, str(input_read), str(output_write), *TINY]
    with subprocess.Popen(arguments, pass_fds=(input_read, output_write), env=_environment()) as parent:
        os.close(input_read)
        os.close(output_write)
        os.write(input_write, b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        assert json.loads(os.read(output_read, 1_000))["id"] == 1
        parent.kill()
    assert select.select([output_read], [], [], 20)[0]
    assert os.read(output_read, 1_000) == b""
    os.close(input_write)
    os.close(output_read)
