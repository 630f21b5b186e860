"""`ls`, `rm`, `snapshot` and `doctor`."""

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine

from mcp_sandbox.cli.diff import show
from mcp_sandbox.core.differences import Differences

__all__: list[str] = []


def _json(cli: CommandLine, *arguments: str) -> Any:
    return json.loads(cli.say(*arguments, "--json"))


def test_an_empty_list_says_how_to_begin(cli: CommandLine) -> None:
    assert "exec" in cli.say("ls")
    assert _json(cli, "ls") == []
    assert "snapshot create" in cli.say("snapshot", "list")
    assert _json(cli, "snapshot", "list") == []


def test_ls_shows_every_project_and_marks_this_one(machine: CommandLine) -> None:
    machine.say("exec", "--", "true")
    other = machine.project.parent / "other"
    other.mkdir()
    machine.say("exec", "--project", str(other), "--", "true")
    (mine,) = machine.sandboxes()
    (theirs,) = [one for one in _json(machine, "ls") if one["project"] == str(other.resolve())]
    assert (mine["project"], mine["is_current"], mine["provider"]) == (str(machine.project.resolve()), True, "local")
    assert (theirs["project"], theirs["is_current"]) == (str(other.resolve()), False)
    lines = machine.say("ls").splitlines()
    assert lines[0].split() == ["SANDBOX", "NAME", "PROVIDER", "STATE", "USED", "SNAPSHOT", "PROJECT"]
    assert [line.split()[:2] for line in lines[1:] if mine["id"][:12] in line] == [[mine["id"][:12], "*"]]
    (other_line,) = [line.split() for line in lines[1:] if theirs["id"][:12] in line]
    assert other_line[0] == theirs["id"][:12]
    assert "*" not in other_line


def test_rm_destroys_by_prefix_and_goes_on_after_a_mistake(machine: CommandLine) -> None:
    machine.say("exec", "--", "true")
    (only,) = machine.sandboxes()
    done = machine.run("rm", "nosuch", only["id"][:14])
    assert done.returncode == 2
    assert done.stdout.decode().split() == [only["id"]]
    assert b"nosuch" in done.stderr
    assert machine.sandboxes() == []


def test_rm_names_the_projects_own_sandbox(machine: CommandLine) -> None:
    assert machine.run("rm").returncode == 2
    assert b"no sandbox of its own" in machine.run("rm", "--own").stderr
    machine.say("exec", "--", "true")
    (own,) = machine.sandboxes()
    assert machine.say("rm", "--own").split() == [own["id"]]
    assert machine.sandboxes() == []


def test_b091_fork_prints_one_id_per_line(machine: CommandLine) -> None:
    machine.say("exec", "--", "sh", "-c", "echo common > a")
    made = machine.say("fork", "--count", "2", "--name", "try").split()
    assert {one["id"]: one["name"] for one in machine.sandboxes() if one["name"]} == dict(
        zip(made, ("try-1", "try-2"), strict=True)
    )
    assert machine.say("exec", "--sandbox", "try-2", "--", "cat", "a") == "common\n"
    machine.say("rm", *made)


def test_b070_diff_shows_what_changed_in_a_form_that_git_takes(machine: CommandLine) -> None:
    (machine.project / "a").write_text("one\ntwo\n")
    machine.say("exec", "--", "sh", "-c", "echo three >> a; mkdir d; echo new > d/b; rm -rf /root/x")
    machine.say("snapshot", "create")
    machine.say("exec", "--", "sh", "-c", "chmod 755 a; ln -s a link")
    diff = machine.say("diff", "--", "/workspace")
    assert "--- a/a\n+++ b/a\n@@ -1,2 +1,3 @@\n one\n two\n+three\n" in diff
    if shutil.which("git"):
        copy = machine.project.parent / "copy"
        shutil.copytree(machine.project, copy)
        subprocess.run(["git", "apply", "-"], cwd=copy, input=diff.encode(), check=True)
        assert (copy / "link").read_text() == "one\ntwo\nthree\n"
    first = json.loads(machine.say("snapshot", "list", "--json"))
    newest = next(one["id"] for one in first if one["here"])
    assert machine.say("diff", newest[:8], "--stat", "/workspace").splitlines() == [
        "M /workspace/a  14 B, mode 0644 -> 0755", "A /workspace/link  symlink", "1 added, 1 modified",
    ]  # fmt: skip
    (change,) = _json(machine, "diff", newest[:8], "live", "link")["changes"]
    assert (change["path"], change["action"], change["before"]) == ("/workspace/link", "added", None)
    assert machine.say("diff", "live", "live", "--stat") == "nothing changed\n"


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("snapshot", "restore", "00000000"), b"`mcp-sandbox snapshot "),
        (("rm", "nosuch"), b"`--sandbox`"),
        (("exec", "--sandbox", "nosuch", "--", "true"), b"`--sandbox`"),
    ],
)
def test_errors_name_commands_and_no_tools(machine: CommandLine, arguments: tuple[str, ...], command: bytes) -> None:
    machine.say("exec", "--", "true")
    done = machine.run(*arguments)
    assert done.returncode == 2
    assert command in done.stderr
    assert not any(tool in done.stderr for tool in (b"snapshot_", b"sandbox_"))
    machine.say("rm", machine.sandboxes()[0]["id"])


@pytest.mark.parametrize("form", ["--stat", "--json", ""])
def test_diff_names_what_could_not_be_looked_at(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(json=form == "--json", stat=form == "--stat", color="auto")
    show(Differences(changes=(), unseen=("/usr/share/locked\n",)), options)
    shown = capsys.readouterr()
    assert shown.err == "mcp-sandbox: could not be looked at, so what changed is not known: $'/usr/share/locked\\n'\n"
    assert ("locked" in shown.out) == (form == "--json")


def test_diff_says_what_it_took_for_a_path(machine: CommandLine) -> None:
    machine.say("exec", "--", "true")
    mistyped = machine.run("diff", "1f2e3g")
    assert (mistyped.returncode, mistyped.stdout) == (0, b"")
    assert b"taken for paths" in mistyped.stderr
    assert b"/workspace/1f2e3g" in mistyped.stderr
    assert machine.run("diff").stderr == b""


def test_a_snapshot_leaves_as_a_file_and_comes_back(machine: CommandLine, tmp_path: Path) -> None:
    machine.say("exec", "--", "sh", "-c", "echo kept > a; echo elsewhere > /opt/x")
    first = machine.say("snapshot", "create", "--note", "mine").strip()
    file = tmp_path / "work.snapshot"
    done = machine.run("snapshot", "export", first[:10], str(file))
    assert (done.returncode, b"/workspace" in done.stdout, b"/opt/x" in done.stderr) == (0, True, True)
    again = machine.run("snapshot", "export", first[:10], str(file))
    assert (again.returncode, b"--force" in again.stderr) == (2, True)
    machine.say("snapshot", "export", first[:10], str(file), "--force")
    stream = machine.run("snapshot", "export", first[:10], "-")
    assert (stream.returncode, b"standard output" in stream.stderr) == (2, True)
    assert machine.say("snapshot", "verify", str(file), first[:10]) == "2 checked, nothing is wrong.\n"
    machine.say("snapshot", "delete", first)
    assert machine.say("snapshot", "import", str(file)).strip() == first
    machine.say("exec", "--", "rm", "a")
    machine.say("snapshot", "restore", first[:10])
    assert machine.say("exec", "--", "cat", "a") == "kept\n"
    (mine,) = [one for one in _json(machine, "snapshot", "list") if one["id"] == first]
    assert (mine["imported"], mine["here"], len(mine["sandboxes"])) == (True, True, 1)
    file.write_bytes(file.read_bytes()[:-600])
    bad = machine.run("snapshot", "verify", str(file))
    assert (bad.returncode, bad.stdout.startswith(b"work.snapshot: Snapshot archive refused")) == (1, True)
    assert machine.run("snapshot", "import", str(file)).returncode == 2
    machine.say("snapshot", "delete", first)


def test_b090_snapshots_from_the_shell(machine: CommandLine) -> None:
    machine.say("exec", "--", "sh", "-c", "echo then > a; echo then > b")
    first = machine.say("snapshot", "create", "--note", "good\nstate").strip()
    assert len(first) == 64
    machine.say("exec", "--", "sh", "-c", "echo now > a; echo now > b; echo new > c")
    undo = machine.say("snapshot", "restore", first[:8], "a").split()[-1]
    assert machine.say("exec", "--", "cat", "a", "b", "c") == "then\nnow\nnew\n"
    machine.say("snapshot", "restore", first[:8])
    assert machine.say("exec", "--", "sh", "-c", "cat *") == "then\nthen\n"
    machine.say("snapshot", "restore", undo)
    assert machine.say("exec", "--", "sh", "-c", "cat *") == "now\nnow\nnew\n"
    (box,) = machine.sandboxes()
    listed = _json(machine, "snapshot", "list", "--sandbox", box["id"])
    assert listed[0]["id"] == first
    assert [one["here"] for one in listed].count(True) == 1
    lines = machine.say("snapshot", "list", "--sandbox", box["id"]).splitlines()
    (marked,) = [words for line in lines[1:] if "*" in (words := line.split())]
    assert marked[0] in [one["id"][:12] for one in listed if one["here"]], "what is copied is an id"
    assert "good state" in machine.say("snapshot", "list", "--sandbox", box["id"]).splitlines()[1]
    done = machine.run("snapshot", "delete", first[:8], "nosuch")
    assert (done.returncode, done.stdout.decode().split()) == (2, [first])
    assert first not in [one["id"] for one in _json(machine, "snapshot", "list")]


def test_doctor_tries_the_default_provider_for_real(machine: CommandLine) -> None:
    text = machine.say("doctor")
    assert "local (default): ok" in text
    (finding,) = _json(machine, "doctor", "local")
    assert finding["ok"]
    assert list(finding["milliseconds"]) == ["state", "load", "open", "self-test", "create", "exec", "destroy"]
    assert machine.sandboxes() == []


def test_doctor_says_why_and_what_to_do_and_fails(cli: CommandLine) -> None:
    done = cli.run("doctor", "nosuch", "--json")
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)
    assert not finding["ok"]
    assert finding["failed_at"] == "load"
    assert "nosuch" in finding["why"]
    assert finding["fix"]


def test_doctor_fails_if_the_default_provider_does(cli: CommandLine) -> None:
    cli.variables["MCP_SANDBOX_PROVIDER"] = "nosuch"
    assert cli.run("doctor", "memory").returncode == 0


@pytest.mark.parametrize("command", ["ls", "snapshot list"])
def test_lists_do_not_start_anything(cli: CommandLine, command: str) -> None:
    cli.say(*command.split())
    assert not any((cli.home / "providers").iterdir())
