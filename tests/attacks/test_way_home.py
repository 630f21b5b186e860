"""Categories A, H and K: changes that would do harm on the host if they came home."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attacks.world import Host
from tests.interaction.wire_client import WireClient

CONFIGURATION = (
    ".mcp-sandbox.yaml mcp-sandbox.yaml agent.manifest .mcp.json .claude/settings.json .vscode/tasks.json "
    ".cursor/mcp.json .idea/workspace.xml .git/hooks/pre-commit .git/config .git/info/attributes .git/modules/m/config "
    ".envrc .bashrc sub/.envrc .GIT/hooks/x .Vscode/tasks.json .husky/pre-commit .gitmodules .devcontainer/a"
).split()
EXCHANGE = """
import ctypes, os, sys
print("up", flush=True)
libc = ctypes.CDLL(None)
while True:
    libc.syscall(316 if os.uname().machine == "x86_64" else 276, -100, b"/workspace/d", -100, b"/workspace/l", 2)
"""


@pytest.fixture
def brave(start: Callable[..., WireClient]) -> Iterator[WireClient]:
    """A server that lets models change the project."""
    with start("--allow-apply") as client:
        yield client
        for word in client.call("sandbox_list").text.split():
            if word.startswith("sb_"):
                client.call("sandbox_destroy", sandbox=word)


def _names(project: Path) -> set[str]:
    return {str(path.relative_to(project)) for path in project.rglob("*")}


def test_ft08_nothing_is_written_through_links_of_the_project(
    brave: WireClient, project: Path, host: Host, embedded: None
) -> None:
    """FT-08, FS-04: a directory of the project leads to one of the host; a sandbox puts files into it, or behind it."""
    outside = host.secret.parent
    (project / "out").symlink_to(outside)
    (project / "file").symlink_to(host.secret)
    before = {path.name: path.read_bytes() for path in outside.iterdir() if path.is_file()}
    brave.exec("rm out file; mkdir out; echo x > out/pwned; echo x > out/secret.txt; echo x > file")
    partly = brave.call("apply_changes", paths=["out/pwned"])
    assert (partly.is_error, "'out' is a link in the project" in partly.text) == (True, True)
    for path in ("../pwned", "/etc/cron.d/x", "~/.ssh/authorized_keys", "/workspace/../../etc/x", "out/../../pwned"):
        assert brave.call("apply_changes", paths=[path]).is_error
    whole = brave.call("apply_changes")
    assert not whole.is_error, whole.text
    assert {path.name: path.read_bytes() for path in outside.iterdir() if path.is_file()} == before
    assert (project / "out").is_dir()
    assert not (project / "out").is_symlink()
    assert (project / "file").read_text() == "x\n"
    assert not (project / "file").is_symlink()


def test_fs05_a_directory_that_is_exchanged_for_a_link_leads_nowhere(
    brave: WireClient, project: Path, host: Host, embedded: None
) -> None:
    """FS-05, on the host: somebody swaps a directory of the project for a link while files come home into it."""
    (project / "d").mkdir()
    link = project / "l"
    link.symlink_to(host.secret.parent)
    brave.exec("true")
    ending = threading.Event()

    def swap() -> None:
        from mcp_sandbox.hostfs.renaming import exchange

        top = os.open(project, os.O_RDONLY)
        while not ending.is_set():
            exchange("d", top, "l", top)
        os.close(top)

    racer = threading.Thread(target=swap)
    racer.start()
    try:
        for number in range(15):
            brave.exec(f"rm -rf d l; mkdir d; echo x > d/pwned{number}")
            brave.call("apply_changes", paths=[f"d/pwned{number}"])
    finally:
        ending.set()
        racer.join()
    assert not [path for path in host.secret.parent.iterdir() if path.name.startswith("pwned")]


def test_fs05_a_sandbox_that_swaps_links_gives_away_nothing_but_its_own(
    brave: WireClient, project: Path, host: Host, embedded: None
) -> None:
    """FS-05: it exchanges a directory for a link to the host's paths while its files are read."""
    brave.exec(f"mkdir d; echo inside > d/secret.txt; ln -s {host.secret.parent} l")
    brave.exec(f"/usr/bin/python3 -c '{EXCHANGE}'", run_in_background=True)
    for _ in range(10):
        brave.call("apply_changes", paths=["d/secret.txt"])
    assert not any(host.token.encode() in path.read_bytes() for path in project.rglob("*") if path.is_file())
    brave.call("job", action="kill", job_id="j1")


def test_cfg04_what_programs_of_the_host_obey_never_comes_home_by_itself(
    brave: WireClient, project: Path, embedded: None
) -> None:
    """CFG-04, CVE-2026-25725: also where it was absent, in other letters, and in directories further down."""
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / "bare").mkdir()
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    made = " ".join(CONFIGURATION)
    brave.exec(f"for f in {made}; do mkdir -p $(dirname $f); echo evil > $f; done; echo fine > fine; "
               "cd bare && mkdir objects refs hooks && echo 'ref: refs/heads/x' > HEAD && echo evil > config && "
               "echo evil > hooks/post-checkout; cd ..; mkdir -p nested/.git; echo x > nested/.git/index; "
               "echo 'gitdir: /tmp' > bare/.git; rm .git/description")  # fmt: skip
    told = brave.call("apply_changes")
    assert not told.is_error, told.text
    assert {path: path.read_bytes() for path in before} == before
    assert {name for name in _names(project) if not name.startswith(".git/")} == {
        *(".git", "fine", "bare", "sub", "nested")
    }
    for name in (".mcp.json", ".vscode", ".git/hooks/pre-commit", "bare/HEAD", "nested/.git"):
        assert f"\n  {name}: " in told.text, told.text
    refused = brave.call("apply_changes", paths=[".mcp.json"])
    assert (refused.is_error, "stays in the sandbox" in refused.text) == (True, True)
    unknown = brave.call("apply_changes", paths=[".mcp.json"], protected=True)
    assert (unknown.is_error, "protected" in unknown.text) == (True, True), "no argument of a model allows it"


def test_fs10_what_the_sandbox_must_not_see_is_neither_replaced_nor_removed_nor_shown(
    start: Callable[..., WireClient], project: Path, embedded: None
) -> None:
    """FS-10, FS-11: files at denied paths that a sandbox makes itself, and directories around them that it removes."""
    (project / "mcp-sandbox.yaml").write_text("capabilities: {filesystem: {denied: [.env, '**/*.pem']}}\n")
    (project / "d").mkdir()
    for name in (".env", "d/k.pem", "d/plain"):
        (project / name).write_text(f"CANARY of {name}\n")
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    with start("--allow-apply") as client:
        client.exec("echo mine > .env; mkdir sub; echo mine > sub/new.pem; echo fine > fine")
        assert "CANARY" not in client.call("changes").text
        told = client.call("apply_changes")
        assert not told.is_error, told.text
        for name in (".env", "sub/new.pem"):
            assert f"\n  {name}: it is denied" in told.text, told.text
        assert {path: path.read_bytes() for path in before} == before
        assert (project / "fine").exists()
        assert not (project / "sub/new.pem").exists()
        client.exec("rm -rf d; echo mine > d")
        refused = client.call("apply_changes")
        assert (refused.is_error, "which the sandbox has not seen" in refused.text) == (True, True), refused.text
        assert {path: path.read_bytes() for path in before} == before
        client.call("sandbox_destroy", sandbox=client.call("sandbox_list").text.split()[0])


def test_cmd03_a_model_alone_brings_nothing_home(start: Callable[..., WireClient], project: Path) -> None:
    """CMD-03: where nobody can be asked the answer is no, and says what a person can do."""
    with start() as client:
        client.exec("echo x > f")
        for arguments in ({}, {"paths": ["f"]}):
            refused = client.call("apply_changes", **arguments)
            assert (refused.is_error, "mcp-sandbox apply" in refused.text) == (True, True)
        assert _names(project) == set()


def test_out01_names_and_contents_of_changes_cannot_imitate_lines_or_obey_terminals(
    brave: WireClient, project: Path, embedded: None
) -> None:
    """OUT-01, FT-04: line feeds, escapes, bidirectional marks and bytes that are no text."""
    brave.exec(r"""printf '\033]0;x\007\r\302\233\342\200\256evil\n' > plain; echo x > "$(printf 'a\nA secret  1 B')";
        echo x > "$(printf 'e\033[2Jf')"; echo x > "$(printf '\377\376')"; ln -s "$(printf 'x\ny')" link""")
    for arguments in ({"summary": True}, {}):
        shown = brave.call("changes", **arguments).text
        assert [letter for letter in shown if not letter.isprintable() and letter != "\n"] == []
        assert "\nA secret" not in shown
    assert not brave.call("apply_changes").is_error
    assert len(_names(project)) == 5


def test_res03_what_does_not_fit_or_never_ends_leaves_the_project_as_it_was(
    brave: WireClient, project: Path, embedded: None
) -> None:
    """RES-03: a sparse file of a terabyte, and more files than come home at a time."""
    brave.exec("truncate -s 1T huge; echo x > f")
    refused = brave.call("apply_changes")
    assert (refused.is_error, "is the most at a time" in refused.text) == (True, True)
    brave.exec("rm huge; mkdir m; cd m; seq 20001 | xargs touch")
    refused = brave.call("apply_changes")
    assert (refused.is_error, "more than 20,000 changes" in refused.text) == (True, True)
    assert _names(project) == set()
    assert brave.call("changes", summary=True).text.count("\n") < 1_900
