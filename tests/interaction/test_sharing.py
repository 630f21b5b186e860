"""One project's sandbox, used by several servers and the command line, and found again."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.interaction.wire_client import WireClient


def _cli(home: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "", "MCP_SANDBOX_HOME": str(home)}
    environment |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "mcp_sandbox", *arguments],
        env=environment, capture_output=True, text=True, input=stdin, check=False, timeout=60,
    )  # fmt: skip


def test_the_default_sandbox_survives_a_restart_of_the_server(start: Callable[..., WireClient], project: Path) -> None:
    with start("serve", "--project", str(project)) as first:
        first.exec("echo kept > /workspace/file; echo too > /root/file")
    second = start("serve", "--project", str(project))
    assert second.exec("cat /workspace/file /root/file").body.split() == ["kept", "too"]
    assert second.call("sandbox_list").text.count("sb_") == 1


def test_b085_two_servers_and_the_command_line_share_one_sandbox(
    start: Callable[..., WireClient], home: Path, project: Path
) -> None:
    first = start("serve", "--project", str(project))
    second = start("serve", "--project", str(project))
    numbers = [client.begin_call("exec", command=f"echo {name} >> log") for name, client in
               (("one", first), ("two", second))]  # fmt: skip
    for client, number in zip((first, second), numbers, strict=True):
        assert client.finish_call(number).header.startswith("exit=0 ")
    done = _cli(home, "exec", "--project", str(project), "--", "sh", "-c", "cat; sort /workspace/log", stdin="in\n")
    assert done.stdout.split() == ["in", "one", "two"], done.stderr
    assert _cli(home, "exec", "--project", str(project), "--", "sh", "-c", "exit 5").returncode == 5
    assert first.call("sandbox_list").text.count("sb_") == 1


def test_a_job_is_listed_by_the_other_server_and_lost_when_its_own_ends(
    start: Callable[..., WireClient], project: Path
) -> None:
    first = start("serve", "--project", str(project))
    second = start("serve", "--project", str(project))
    assert "job_id=j1" in first.exec("echo said; sleep 4501", run_in_background=True).text
    second.exec("true")
    assert "j1" in second.call("job", action="list").text
    assert "job_id=j2" in second.exec("true", run_in_background=True).text
    first.close()
    assert "lost" in second.call("job", action="list").text
    assert "said" in second.call("job", action="output", job_id="j1").text


def test_snapshots_by_one_server_do_not_break_the_other(start: Callable[..., WireClient], project: Path) -> None:
    first = start("serve", "--project", str(project))
    second = start("serve", "--project", str(project))
    for round_number in range(5):
        assert second.exec(f"echo {round_number} > f").header.startswith("exit=0 ")
        taken = first.call("snapshot_create", note=f"round {round_number}")
        assert not taken.is_error, taken.text
        assert second.exec("cat f").body.strip() == str(round_number)


def test_projects_do_not_share_a_sandbox(start: Callable[..., WireClient], tmp_path: Path) -> None:
    for name in ("app", "app-secret"):
        (tmp_path / name).mkdir()
    first = start("serve", "--project", str(tmp_path / "app"))
    second = start("serve", "--project", str(tmp_path / "app-secret"))
    first.exec("echo mine > /root/f")
    assert not second.exec("cat /root/f").header.startswith("exit=0")


def test_the_project_is_seen_and_stays_as_it_is(start: Callable[..., WireClient], project: Path) -> None:
    (project / "main.py").write_text("print('hello')\n")
    server = start("serve", "--project", str(project))
    assert server.exec("/usr/bin/python3 main.py").body.strip() == "hello"
    server.exec("echo changed > main.py; echo new > other.py; rm -f main.pyc")
    assert (project / "main.py").read_text() == "print('hello')\n"
    assert [path.name for path in project.iterdir()] == ["main.py"]
    assert server.exec("cat main.py").body.strip() == "changed"


def test_sandboxes_come_and_go_by_handle(start: Callable[..., WireClient], project: Path) -> None:
    server = start("serve", "--project", str(project))
    server.exec("echo default > /root/f")
    made = server.call("sandbox_create", name="second")
    found = re.search(r"sb_[a-z2-7]{26}", made.text)
    assert found is not None
    assert "No such file" in server.exec("cat /root/f", sandbox=found[0]).text
    assert server.exec("echo by-prefix", sandbox=found[0][:8]).body.strip() == "by-prefix"
    assert not server.call("sandbox_destroy", sandbox="second").is_error
    assert server.exec("true", sandbox="second").is_error


def test_one_server_snapshots_restores_and_destroys_while_the_other_works(
    start: Callable[..., WireClient], project: Path
) -> None:
    first = start("serve", "--project", str(project))
    second = start("serve", "--project", str(project))
    assert first.exec("echo before > f").header.startswith("exit=0 ")
    under_way = second.begin_call("exec", command="i=0; while [ $i -lt 20 ]; do echo $i >> log; i=$((i+1)); done")
    taken = re.search(r"\b[0-9a-f]{16,64}\b", first.call("snapshot_create", note="shared").text)
    assert taken is not None
    assert second.finish_call(under_way).header.startswith("exit=0 ")
    assert second.exec("echo after > f").header.startswith("exit=0 ")
    assert not second.call("snapshot_restore", snapshot=taken[0]).is_error
    assert first.exec("cat f").body.strip() == "before"
    assert first.exec("echo first > g").header.startswith("exit=0 ")
    assert second.exec("cat g").body.strip() == "first"
    (own,) = set(re.findall(r"sb_[a-z2-7]{26}", first.call("sandbox_list").text))
    assert not first.call("sandbox_destroy", sandbox=own).is_error
    anew = second.exec("ls")
    assert "is gone with everything in it" in anew.text
    assert "g" not in anew.body.split()
    assert first.exec("echo both > h; ls").body.split() == second.exec("ls").body.split()


def test_a_job_of_another_live_server_is_read_and_waited_for_and_otherwise_left_alone(
    start: Callable[..., WireClient], project: Path
) -> None:
    first = start("serve", "--project", str(project))
    second = start("serve", "--project", str(project))
    started = first.exec("echo said; read line; echo got $line", run_in_background=True)
    assert "job_id=j1" in started.text
    assert "running" in second.call("job", action="list").text
    assert "said" in second.call("job", action="output", job_id="j1").text
    for refused in (
        second.call("job", action="input", job_id="j1", input="no\n"),
        second.call("job", action="kill", job_id="j1"),
    ):
        assert refused.is_error
        assert "another server of this sandbox runs it" in refused.text
        assert f"process {first.process.pid}" in refused.text
    waiting = second.begin_call("job", action="wait", job_id="j1")
    assert not first.call("job", action="input", job_id="j1", input="word\n").is_error
    ended = second.finish_call(waiting)
    assert "got word" in ended.text
    assert "exit=0" in ended.text
