"""The behaviour probes that every other server fails somewhere, as far as no other test here has them.

The rest are in `test_exec.py`, `test_files.py`, `test_ending.py` and `test_crashes.py`, under the ids of bug reports.
"""

import base64
import json
import os

import pytest

from tests.interaction.wire_client import WireClient

pytestmark = pytest.mark.parametrize("provider", ["local", "docker"], indirect=True)


def test_probe_exit_code_and_stderr_kept(server: WireClient) -> None:
    reply = server.exec("echo out; echo err >&2; exit 7")
    assert reply.header.startswith("exit=7 ")
    assert reply.body.split("--- stderr ---\n") == ["out\n", "err"]


def test_probe_files_persist_and_directory_and_variables_do_not(server: WireClient) -> None:
    server.exec("mkdir -p /tmp/st; cd /tmp/st; export BENCH_A=42; echo keep > /tmp/keep.txt")
    assert server.exec("pwd; echo A=$BENCH_A; cat /tmp/keep.txt").body.split() == ["/workspace", "A=", "keep"]


def test_probe_nul_and_ansi_output(server: WireClient) -> None:
    body = server.exec(r"printf 'A\0B\033[31mred\033[0m\n'").body
    assert "red" in body
    assert "\x1b" not in body
    assert "\0" not in body


def test_probe_1_mib_via_heredoc(server: WireClient) -> None:
    text = base64.b64encode(os.urandom(768 * 1024)).decode()
    assert server.exec(f"cat > /tmp/b64 <<'EOF'\n{text}\nEOF\nwc -c < /tmp/b64").body.strip() == str(len(text) + 1)


def test_probe_a_line_that_is_no_json_a_tool_that_is_none_and_a_wrong_type_are_survived(server: WireClient) -> None:
    server.send(b"this is not json")
    server.send(b"")
    assert "result" in server.request("ping")
    unknown = server.call("no_such_tool")
    assert unknown.is_error
    assert "no_such_tool" in json.dumps(unknown.message)
    for value in (5, 2.5, True, None, ["ls"], {"a": 1}):
        assert server.call("exec", command=value).is_error, value
    for line in server.lines:
        assert json.loads(line)["jsonrpc"] == "2.0", "nothing else is ever written"


@pytest.mark.parametrize("tool", ["write_file", "edit_file"])
def test_probe_keeps_x(server: WireClient, tool: str) -> None:
    server.exec("printf 'echo hi\\n' > run.sh; chmod 755 run.sh")
    if tool == "write_file":
        server.call(tool, file_path="run.sh", content="echo bye\n")
    else:
        server.call(tool, file_path="run.sh", old_string="hi", new_string="bye")
    assert server.exec("stat -c %a run.sh; ./run.sh").body.split() == ["755", "bye"]


def test_probe_replacement_is_literal_and_no_final_newline_is_added(server: WireClient) -> None:
    server.call("write_file", file_path="d.txt", content="X")
    server.call("edit_file", file_path="d.txt", old_string="X", new_string=r"cost $& $1 $$ \1 \n")
    assert server.exec("cat d.txt; echo '|'").body == r"cost $& $1 $$ \1 \n|"


def test_probe_write_is_byte_exact(server: WireClient) -> None:
    server.call("write_file", file_path="exact.txt", content="a\tb  \n\n\r\n")
    assert server.exec("od -An -tx1 exact.txt").body.split() == ["61", "09", "62", "20", "20", "0a", "0a", "0d", "0a"]


def test_probe_binary_read_says_so(server: WireClient) -> None:
    server.exec('/usr/bin/python3 -c \'open("b.bin", "wb").write(bytes(range(256)) * 8)\'')
    shown = server.call("read_file", file_path="b.bin").text
    assert "bytes=2048" in shown
    assert "\ufffd" not in shown


def test_probe_edit_ambiguous_refused(server: WireClient) -> None:
    server.call("write_file", file_path="amb.txt", content="a=1\nb\na=1\n")
    refused = server.call("edit_file", file_path="amb.txt", old_string="a=1", new_string="a=2")
    assert refused.is_error
    assert "lines 1, 3" in refused.text
    assert server.exec("cat amb.txt").body.split() == ["a=1", "b", "a=1"]
