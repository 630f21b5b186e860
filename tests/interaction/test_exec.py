"""`exec` as an agent meets it. Names carry the ids of public bug reports."""

import base64
import os
import re
import shlex
import time
from collections.abc import Callable

import pytest

from tests.interaction.wire_client import MODERN, WireClient

pytestmark = pytest.mark.parametrize("provider", ["local", "docker"], indirect=True)


def running(server: WireClient, words: str) -> list[str]:
    """Return the command lines inside that hold `words`; from /proc, because a minimal system has no `ps`."""
    listed = server.exec("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done").body
    return [line for line in listed.splitlines() if words in line and "/proc/[0-9]" not in line]


def test_b086_first_exec_works_without_a_create_step(server: WireClient) -> None:
    reply = server.exec("echo out; echo err >&2; exit 7")
    assert reply.header.startswith("exit=7 ")
    assert "out" in reply.body
    assert "err" in reply.body
    assert not reply.is_error


def test_b021_a_command_without_output_gives_its_exit_code(server: WireClient) -> None:
    assert server.exec("exit 1").header.startswith("exit=1 ")


def test_state_stays_between_calls(server: WireClient) -> None:
    server.exec("echo kept > /workspace/file")
    assert server.exec("cat file").body.strip() == "kept"


def test_each_command_is_a_fresh_shell(server: WireClient) -> None:
    server.exec("cd /tmp; export LEFT=over")
    assert server.exec("pwd; echo [$LEFT]").body.split() == ["/workspace", "[]"]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN])
def test_every_protocol_version_is_served(start: Callable[..., WireClient], version: str) -> None:
    client = start(version=version)
    if version == MODERN:
        assert MODERN in client.request("server/discover")["result"]["supportedVersions"]
    names = [tool["name"] for tool in client.request("tools/list")["result"]["tools"]]
    assert names[:3] == ["exec", "job", "read_file"]
    assert client.exec("echo $((6*7))").body.strip() == "42"


def test_b005_b006_a_background_child_does_not_hold_the_call(server: WireClient) -> None:
    server.exec("true")  # what the first call makes is not measured
    began = time.monotonic()
    reply = server.exec("sleep 60 & echo done")
    assert reply.header.startswith("exit=0 ")
    assert "done" in reply.body
    assert time.monotonic() - began < 5


def test_b005_a_background_server_lives_on_after_the_call(server: WireClient) -> None:
    server.exec("(while :; do echo tick; sleep 0.05; done) & echo started; for i in 1 2 3; do echo x >> /tmp/n; done")
    server.exec("(while :; do date +%s%N > /tmp/beat; echo beat; sleep 0.02; done) & sleep 0.1")
    first = server.exec("cat /tmp/beat").body
    assert server.exec("sleep 0.3; cat /tmp/beat").body != first


def test_b035_endless_output_is_bounded_and_head_and_tail_are_kept(server: WireClient) -> None:
    reply = server.exec("echo FIRST; head -c 5000000 /dev/zero | tr '\\0' 'a' | fold -w 100; echo LAST")
    assert len(reply.text) <= 31_000
    assert len(reply.text.splitlines()) <= 1_950
    assert "FIRST" in reply.body
    assert "LAST" in reply.body
    spool = re.search(r"/var/spool/mcp-sandbox/\S+?(?=[\s,;)\]]|$)", reply.text)
    assert spool is not None, reply.header
    page = server.call("read_file", file_path=spool[0], offset=30_000, limit=3)
    assert "a" * 100 in page.text
    assert server.exec(f"wc -c < {spool[0]}").body.strip() == "5050010"


def test_yes_is_cut_by_its_timeout_and_the_tree_is_gone(server: WireClient) -> None:
    reply = server.exec("yes marker", timeout_s=1)
    assert "timeout" in reply.header
    assert len(reply.text) <= 31_000
    assert "marker" in reply.body
    assert not running(server, "yes marker")


def test_b010_b011_a_timeout_keeps_output_and_kills_the_whole_tree(server: WireClient) -> None:
    script = (
        "echo before; trap '' TERM; setsid sleep 4321 & (setsid sh -c 'sleep 4322 & sleep 4323' &) ; "
        "for i in 1 2 3; do (while :; do :; done) & done; sleep 4324"
    )
    reply = server.exec(script, timeout_s=1)
    assert "timeout" in reply.header
    assert "before" in reply.body
    assert not running(server, "sleep 432")
    assert not running(server, "while :")


def test_b113_a_cancelled_call_is_dead_within_two_seconds_and_the_next_one_works(server: WireClient) -> None:
    server.exec("true")
    number = server.begin_call("exec", command="setsid sleep 4331 & sleep 4332")
    time.sleep(0.5)
    server.notify("notifications/cancelled", {"requestId": number, "reason": "test"})
    began = time.monotonic()
    while running(server, "sleep 433"):
        assert time.monotonic() - began < 2
    assert server.exec("echo after").body.strip() == "after"


def test_m05_twenty_calls_run_at_once_and_ping_answers_meanwhile(server: WireClient) -> None:
    server.exec("true")
    began = time.monotonic()
    numbers = [server.begin_call("exec", command=f"sleep 1; echo {i}") for i in range(20)]
    pings: list[float] = []
    for _ in range(5):
        asked = time.monotonic()
        server.request("ping")
        pings.append(time.monotonic() - asked)
    assert [server.finish_call(number).body.strip() for number in numbers] == [str(i) for i in range(20)]
    assert time.monotonic() - began < 10
    assert sorted(pings)[2] < 0.05


def test_m04_a_command_of_a_mebibyte_works(server: WireClient) -> None:
    blob = base64.b64encode(os.urandom(768 * 1024)).decode()
    reply = server.exec(f"cat > /tmp/b64 <<'EOF'\n{blob}\nEOF\nwc -c < /tmp/b64")
    assert reply.body.strip() == str(len(blob) + 1)
    assert server.exec(": " + "x" * 1_000_000 + "\necho long-ok").body.strip() == "long-ok"


def test_m11_quoting_and_heredocs_arrive_as_they_are(server: WireClient) -> None:
    text = "a'b\"c$HOME`id`\\n!{}<>&|;*?~#%é"
    reply = server.exec(f"cat <<'EOF'\n{text}\nEOF\nprintf '%s\\n' {shlex.quote(text)}")
    assert reply.body.count(text) == 2


def test_b026_b027_bytes_that_are_not_utf8_survive_around(server: WireClient) -> None:
    reply = server.exec("printf 'ok\\n\\205\\nA\\377\\376B\\n'; cat /bin/ls | head -c 3000; echo; echo end")
    assert "ok" in reply.body
    assert "end" in reply.body


def test_m18_utf8_that_is_split_over_writes_stays_whole(server: WireClient) -> None:
    script = "import sys\nfor b in 'é€𝄞'.encode()*300:\n sys.stdout.buffer.write(bytes([b])); sys.stdout.buffer.flush()"
    assert server.exec(f'/usr/bin/python3 -c "{script}"').body.count("é€𝄞") == 300


def test_b022_b023_prompts_do_not_hang(server: WireClient) -> None:
    began = time.monotonic()
    assert "got:[]" in server.exec('read -p "name? " x; echo "got:[$x]"').body
    server.exec("sudo -k; sudo ls /; su - nobody -c id </dev/tty")
    assert time.monotonic() - began < 10


def test_b029_b030_redraws_and_escapes_are_collapsed(server: WireClient) -> None:
    reply = server.exec(r"printf 'a 1%%\ra 99%%\r\n\033[31mred\033[0m\n\033]0;title\007x\n'")
    assert reply.body.split("\n")[:3] == ["a 99%", "red", "x"]


def test_the_host_environment_is_nowhere_inside(start: Callable[..., WireClient]) -> None:
    client = start(env={"BENCH_SECRET_TOKEN": "s3cr3t-value"})
    reply = client.exec("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; cat /proc/1/cmdline")
    assert "s3cr3t-value" not in reply.text


def test_stdin_reaches_the_command(server: WireClient) -> None:
    assert server.exec("wc -c", stdin="x" * 300_000).body.strip() == "300000"


def test_a_missing_directory_is_said_plainly(server: WireClient) -> None:
    reply = server.exec("true", cwd="/no/such")
    assert "/no/such" in reply.text
    assert not reply.header.startswith("exit=0")


def test_b014_a_background_job_ends_at_its_timeout(server: WireClient) -> None:
    reply = server.exec("echo begun; sleep 4341", run_in_background=True, timeout_s=1)
    job = re.search(r"job_id=(j\d+)", reply.text)
    assert job is not None
    waited = server.call("job", action="wait", job_id=job[1])
    assert "timeout" in waited.text
    assert "begun" in waited.text


def test_b017_a_finished_job_keeps_its_output_and_exit_code(server: WireClient) -> None:
    reply = server.exec("echo kept; exit 3", run_in_background=True)
    job = re.search(r"job_id=(j\d+)", reply.text)
    assert job is not None
    server.call("job", action="wait", job_id=job[1])
    again = server.call("job", action="output", job_id=job[1])
    assert "kept" in again.text
    assert "exit=3" in again.text


def test_a_job_takes_input_and_can_be_killed(server: WireClient) -> None:
    reply = server.exec("while read line; do echo got:$line; done", run_in_background=True)
    job = re.search(r"job_id=(j\d+)", reply.text)
    assert job is not None
    server.call("job", action="input", job_id=job[1], input="hello\n")
    deadline = time.monotonic() + 5
    while "got:hello" not in server.call("job", action="output", job_id=job[1]).text:
        assert time.monotonic() < deadline
    killed = server.call("job", action="kill", job_id=job[1])
    assert "kill" in killed.text
