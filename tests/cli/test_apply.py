"""The way home at the command line: apply, its options, and undo."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CommandLine

__all__: list[str] = []


@pytest.fixture
def changed(machine: CommandLine) -> CommandLine:
    """A sandbox that changed a little of everything."""
    for name in ("a", "keep", "gone", "d/e"):
        (machine.project / name).parent.mkdir(exist_ok=True)
        (machine.project / name).write_text(f"{name}\n")
    machine.say("exec", "--", "true")
    machine.say(
        *("exec", "--", "sh", "-c"),
        "echo more >> a; rm gone; chmod 755 keep; rm -r d; mkdir new; echo n > new/f; ln -s new/f link",
    )
    return machine


def _tree(project: Path) -> dict[str, tuple[int, int, str]]:
    found: dict[str, tuple[int, int, str]] = {}
    for path in sorted(project.rglob("*")):
        status = path.lstat()
        text = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else ""
        found[str(path.relative_to(project))] = (status.st_mode, status.st_uid, text)
    return found


def test_apply_shows_applies_and_undoes(changed: CommandLine) -> None:
    before = _tree(changed.project)
    dry = changed.say("apply", "--dry-run")
    assert dry.splitlines()[0] == "Would be applied: 3 added, 3 deleted, 2 modified."
    assert "M a  2 B -> 7 B" in dry
    assert _tree(changed.project) == before
    assert changed.say("apply").splitlines()[0] == "Applied to the project: 3 added, 3 deleted, 2 modified."
    after = _tree(changed.project)
    assert after["a"][2] == "a\nmore\n"
    assert after["link"][2] == "new/f"
    assert {"gone", "d", "d/e"} & after.keys() == set()
    assert changed.say("diff") == ""
    undone = changed.say("apply", "--undo").splitlines()
    assert undone[0].startswith("Put back as it was before ")
    assert [line.strip() for line in undone[1:]] == ["a", "d", "d/e", "gone", "keep", "link", "new", "new/f"]
    assert _tree(changed.project) == before
    assert changed.say("apply").startswith("Applied"), "what was undone can come home again"
    assert _tree(changed.project) == after
    changed.say("apply", "--undo")
    nothing = changed.run("apply", "--undo")
    assert (nothing.returncode, b"nothing that came home" in nothing.stderr) == (2, True)
    assert [name for name in os.listdir(changed.project) if name.startswith(".mcp-sandbox")] == []


def test_several_applies_are_undone_one_after_the_other(changed: CommandLine) -> None:
    changed.say("apply", "a")
    first = _tree(changed.project)
    changed.say("exec", "--", "sh", "-c", "echo again >> a")
    changed.say("apply", "a", "new")
    changed.say("apply", "--undo")
    assert _tree(changed.project) == first
    changed.say("apply", "--undo")
    assert (changed.project / "a").read_text() == "a\n"


@pytest.mark.parametrize(
    "script", ["echo theirs >> a", "rm a", "echo x > new/other", "chmod 600 keep", "ln -sfn a link", "touch gone"]
)
def test_an_undo_that_meets_a_changed_file_changes_nothing_and_says_which(changed: CommandLine, script: str) -> None:
    changed.say("apply")
    subprocess.run(["sh", "-c", script], cwd=changed.project, check=True)
    before = _tree(changed.project)
    refused = changed.run("apply", "--undo")
    assert (refused.returncode, b"Nothing undone" in refused.stderr) == (2, True)
    assert _tree(changed.project) == before


def test_a_conflict_is_told_and_can_be_overwritten_and_that_be_undone(changed: CommandLine) -> None:
    (changed.project / "a").write_text("theirs\n")
    dry = changed.run("apply", "--dry-run")
    assert (dry.returncode, b"Changed in the project since:\n  a: it changed" in dry.stdout) == (1, True)
    refused = changed.run("apply")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"a (it changed in the project at " in refused.stderr
    assert (changed.project / "gone").exists()
    assert (changed.project / "a").read_text() == "theirs\n"
    changed.say("apply", "--overwrite", "a")
    assert (changed.project / "a").read_text() == "a\nmore\n"
    changed.say("apply", "--undo")
    assert (changed.project / "a").read_text() == "theirs\n"
    assert b"a (it changed" in changed.run("apply").stderr, "nobody has seen it but the person who gave it up"


def test_protected_names_come_home_only_if_a_person_says_so(changed: CommandLine) -> None:
    shutil.rmtree(changed.project / "d")
    hooks = changed.project / ".git" / "hooks"
    hooks.mkdir(parents=True)
    changed.say(
        "exec", "--", "sh", "-c", "echo evil > .git/hooks/pre-commit; echo '{}' > .mcp.json; echo o > .git/index"
    )
    told = changed.say("apply")
    assert "Stays in the sandbox:\n  .git/hooks/pre-commit: git obeys it\n  .mcp.json: an agent obeys it" in told
    assert (list(hooks.iterdir()), (changed.project / ".mcp.json").exists()) == ([], False)
    assert (changed.project / ".git" / "index").read_text() == "o\n"
    named = changed.run("apply", ".mcp.json")
    assert (named.returncode, b".mcp.json stays in the sandbox" in named.stderr) == (2, True)
    changed.say("apply", "--protected", ".mcp.json")
    assert (changed.project / ".mcp.json").read_text() == "{}\n"
    assert list(hooks.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can keep other owners")
def test_root_keeps_owners(changed: CommandLine) -> None:
    os.chown(changed.project, 1234, 1235)
    os.chown(changed.project / "a", 4321, 4322)
    refused = changed.run("apply", "a")
    assert refused.returncode == 2, "its owner changed after the sandbox had it"
    changed.say("apply", "--overwrite", "a", "new")
    assert [(status.st_uid, status.st_gid) for status in map(os.stat, map(str, (
        changed.project / "a", changed.project / "new", changed.project / "new/f")))] == [
        (4321, 4322), (1234, 1235), (1234, 1235),
    ]  # fmt: skip
    changed.say("apply", "--undo")
    assert (changed.project / "a").stat().st_uid == 4321


def _killed(changed: CommandLine, where: str) -> None:
    """Let an apply end by itself where one of our functions is called."""
    script = (
        "import os, mcp_sandbox.store.applied as applied, mcp_sandbox.hostfs.staging as staging\n"
        f"{where} = lambda *_, **__: os._exit(9)\n"
        "from mcp_sandbox.cli import main; main(['apply'])"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script], cwd=changed.project,
        env=changed.environment, check=False, capture_output=True,
    )  # fmt: skip
    assert killed.returncode == 9, killed.stderr


def test_a_killed_apply_is_put_back_by_the_next_one(changed: CommandLine) -> None:
    """It ends where the last change was made, and nothing is noted yet."""
    before = _tree(changed.project)
    _killed(changed, "applied.AppliedStore.finish")
    assert (changed.project / "a").read_text() == "a\nmore\n"
    assert changed.say("apply", "--dry-run").startswith("Would be applied: 3 added, 3 deleted, 2 modified.")
    assert _tree(changed.project) == before
    assert changed.say("apply").startswith("Applied")


def test_what_a_person_wrote_after_an_apply_was_killed_is_kept(changed: CommandLine) -> None:
    _killed(changed, "applied.AppliedStore.finish")
    with (changed.project / "a").open("a") as file:
        file.write("the user's line\n")
    refused = changed.run("apply")
    assert refused.returncode == 2
    assert b"'a' cannot be put back" in refused.stderr
    assert (changed.project / "a").read_text() == "a\nmore\nthe user's line\n"


def test_an_apply_that_is_killed_before_anything_changed_leaves_nothing(changed: CommandLine) -> None:
    before = _tree(changed.project)
    _killed(changed, "staging.Stage.sync")
    changed.say("apply", "--dry-run")
    assert _tree(changed.project) == before
    assert not [name for name in os.listdir(changed.project) if name.startswith(".mcp-sandbox")]


def test_an_undo_after_a_killed_apply_takes_nothing_else_back(changed: CommandLine) -> None:
    changed.say("apply", "a")
    applied = _tree(changed.project)
    _killed(changed, "applied.AppliedStore.finish")
    changed.say("apply", "--undo")
    assert _tree(changed.project) == applied


def test_a_diff_for_a_terminal_is_in_colour_and_cannot_make_it_do_anything(machine: CommandLine) -> None:
    machine.say(
        "exec", "--", "sh", "-c", r"printf '\033]0;owned\007\r\302\233A\342\200\256\n' > esc; echo > 'n\033[2J'"
    )
    shown = machine.run("diff", "--color", "always").stdout.decode()
    for codes in ("\x1b[1m", "\x1b[32m", "\x1b[36m", "\x1b[m"):
        shown = shown.replace(codes, "")
    assert [letter for letter in shown if not letter.isprintable() and letter != "\n"] == []
    assert r"+\x1b]0;owned\x07\x0d\x9bA\u202e" in shown
    assert b"\x1b]0;owned\x07\r" in machine.run("diff").stdout, "a pipe gets it as it is"


def test_renames_are_seen_also_in_the_short_forms(machine: CommandLine) -> None:
    (machine.project / "old").write_text("".join(f"{n}\n" for n in range(50)))
    machine.say("exec", "--", "sh", "-c", "mkdir x; mv old x/new; echo 50 >> x/new")
    assert "R /workspace/old -> /workspace/x/new  97 % the same, 140 B -> 143 B" in machine.say("diff", "--stat")
    assert '"renamed_from": "/workspace/old"' in machine.say("diff", "--json")


def test_only_what_can_be_carried_and_cannot_lead_out_comes_home(machine: CommandLine) -> None:
    machine.say(
        *("exec", "--", "sh", "-c"),
        "mkfifo p; echo s > s; chmod 4755 s; mkdir d; ln -s /etc/passwd abs; ln -s ../.. up; ln -s d/../.. round; "
        "ln -s ../s d/fine; echo f > d/f; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('k')\"",
    )
    told = machine.say("apply")
    for name in ("p: it is a fifo", "s: it has special bits", "abs: the link leads", "up: the link", "round: the link"):
        assert f"\n  {name}" in told
    assert sorted(str(path.relative_to(machine.project)) for path in machine.project.rglob("*")) == [
        *("d", "d/f", "d/fine")
    ]
    assert not stat.S_IMODE((machine.project / "d/f").stat().st_mode) & 0o7000


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_the_file_system_refuses_is_told_in_words_and_nothing_is_applied(changed: CommandLine) -> None:
    before = _tree(changed.project)
    changed.project.chmod(0o555)
    try:
        refused = changed.run("apply")
    finally:
        changed.project.chmod(0o755)
    assert refused.returncode == 2
    assert b"Nothing applied: the file system says: permission denied" in refused.stderr
    assert _tree(changed.project) == before
