"""What a sandbox changed, seen page by page, and brought home into the project, through the tools."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, ElicitResult, TextContent

from tests.interaction.wire_client import Reply, WireClient

FILE_CLOCK = 5
"""`CLOCK_REALTIME_COARSE`, from which files get their times, in steps of a few milliseconds."""
PROJECT = {
    "a": "one\ntwo\nthree\n",
    "keep": "kept\n",
    "gone": "z\n",
    "d/e": "deep\n",
    "long": "".join(f"{n}\n" for n in range(100)),
}


@pytest.fixture
def filled(project: Path) -> Path:
    """A project with a few files."""
    for name, text in PROJECT.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    (project / "link").symlink_to("a")
    return project


@pytest.fixture
def allowed(start: Callable[..., WireClient], filled: Path) -> Iterator[WireClient]:
    """A server whose user lets models change the project."""
    with start("serve", "--project", str(filled), "--allow-apply") as client:
        yield client
        client.call("sandbox_destroy", sandbox=_sandbox(client))


def _sandbox(client: WireClient) -> str:
    return next(word for word in client.call("sandbox_list").text.split() if word.startswith("sb_"))


def _done(reply: Reply) -> str:
    assert not reply.is_error, reply.text
    return reply.text


def _look(client: WireClient) -> None:
    """Have the workspace compared with the project, as every apply begins."""
    refused = client.call("apply_changes", paths=["nothing"])
    assert refused.is_error


def _tree(project: Path) -> dict[str, str]:
    """Return everything in a project, with modes."""
    found: dict[str, str] = {}
    for directory, _, names in os.walk(project):
        for path in (Path(directory), *(Path(directory) / name for name in names)):
            if path.is_symlink():
                shown = f"-> {path.readlink()}"
            else:
                shown = "directory" if path.is_dir() else path.read_bytes().decode("latin-1")
                shown = f"{path.stat().st_mode & 0o7777:o} {shown}"
            found[str(path.relative_to(project))] = shown
    return found


def test_changes_are_a_diff_that_git_takes(allowed: WireClient, filled: Path) -> None:
    allowed.exec("echo four >> a; rm gone; chmod 755 keep; mv long longer; echo 100 >> longer; ln -sfn keep link; "
                 "mkdir new; printf 'n' > new/f; printf 'x\\000y' > binary; mkdir empty")  # fmt: skip
    reply = _done(allowed.call("changes"))
    assert reply.splitlines()[0].startswith("changes=9 (4 added, 1 deleted, 3 modified, 1 renamed) lines=1-")
    diff = reply.partition("\n")[2]
    assert "rename from long\nrename to longer\n" in diff
    assert "old mode 100644\nnew mode 100755\n" in diff
    assert "Binary files /dev/null and b/binary differ\n# 3 B" in diff
    if shutil.which("git"):
        copy = filled.parent / "copy"
        shutil.copytree(filled, copy, symlinks=True)
        without = "\n".join(line for line in diff.split("\n") if not line.startswith("# "))
        whole = [f"diff --git {part}" for part in without.split("diff --git ")[1:] if "Binary" not in part]
        text = "".join(part if part.endswith("\n") else f"{part}\n" for part in whole)
        subprocess.run(["git", "apply", "-"], cwd=copy, input=text.encode(), check=True)
        assert (copy / "longer").read_text() == f"{PROJECT['long']}100\n"
        assert (copy / "link").readlink() == Path("keep")


def test_a_summary_has_a_line_for_each_path_and_paths_choose(allowed: WireClient) -> None:
    allowed.exec("echo four >> a; mkdir new; echo n > new/f; mkfifo p")
    assert _done(allowed.call("changes", summary=True)).splitlines() == [
        "changes=4 (3 added, 1 modified) lines=1-4",
        *("M a  14 B -> 19 B", "A new  directory", "A new/f  2 B", "A p  fifo"),
    ]
    assert _done(allowed.call("changes", paths=["new"])).splitlines()[1] == "diff --git a/new/f b/new/f"
    assert _done(allowed.call("changes", paths=["nothing"])).splitlines() == ["changes=0 (nothing changed)"]


def test_changes_since_a_snapshot(allowed: WireClient) -> None:
    allowed.exec("echo four >> a")
    taken = _done(allowed.call("snapshot_create")).split()[0]
    allowed.exec("echo new > b")
    assert _done(allowed.call("changes", since=taken[:8], summary=True)).splitlines()[1:] == ["A b  4 B"]


def test_however_many_and_however_large_an_answer_stays_small_and_the_rest_can_be_paged(allowed: WireClient) -> None:
    allowed.exec("mkdir m; for i in $(seq 3000); do echo line $i > m/f$i; done; seq 45000 > large; "
                 "head -c 5000 /dev/zero | tr '\\0' y > wide")  # fmt: skip
    seen: list[str] = []
    offset = 1
    for _ in range(30):
        reply = _done(allowed.call("changes", paths=["m", "wide"], offset=offset))
        assert len(reply) <= 30_000
        lines = reply.splitlines()
        more = lines[-1].startswith("(there is more: call `changes` again with offset=")
        page = lines[1:-1] if more else lines[1:]
        seen += page
        offset += len(page)
        if not more:
            break
    assert sum(line.startswith("diff --git ") for line in seen) == 3001
    assert sum(line.startswith("+line ") for line in seen) == 3000
    assert max(map(len, seen)) < 2_100
    whole = _done(allowed.call("changes", paths=["large"]))
    assert len(whole) <= 30_000
    assert "(there is more" in whole


def test_changes_come_home_all_of_them(allowed: WireClient, filled: Path) -> None:
    inode = (filled / "keep").stat().st_ino
    allowed.exec("echo four >> a; rm gone; chmod 700 keep; mv long longer; ln -sfn keep link; rm -r d; "
                 "mkdir -p new/er; echo n > new/er/f; chmod 500 new/er; ln -s er/f new/l; rm a; mkdir a; "
                 "echo x > a/in")  # fmt: skip
    assert _done(allowed.call("apply_changes")).startswith("Applied to the project: ")
    assert _tree(filled) == {
        ".": _tree(filled)["."], "keep": "700 kept\n", "longer": f"644 {PROJECT['long']}", "link": "-> keep",
        "new": "755 directory", "new/er": "700 directory", "new/er/f": "644 n\n", "new/l": "-> er/f",
        "a": "755 directory", "a/in": "644 x\n",
    }  # fmt: skip
    assert (filled / "keep").stat().st_ino == inode, "its mode alone changed"
    # Whoever owns a directory can use it in the project: else nothing could be put back into it.
    assert _done(allowed.call("changes", summary=True)).splitlines()[1:] == ["M new/er  directory, mode 0700 -> 0500"]
    assert _done(allowed.call("apply_changes")).splitlines() == ["There is nothing to apply."]


def test_chosen_paths_come_home_alone_also_into_directories_that_are_not_there(
    allowed: WireClient, filled: Path
) -> None:
    allowed.exec("echo four >> a; mkdir -p x/y/z; echo 1 > x/y/z/f; echo 2 > x/y/g; rm d/e")
    _done(allowed.call("apply_changes", paths=["x/y/z", "/workspace/d/e"]))
    assert (filled / "x/y/z/f").read_text() == "1\n"
    assert not (filled / "x/y/g").exists()
    assert (filled / "a").read_text() == PROJECT["a"]
    assert [path.name for path in (filled / "d").iterdir()] == []
    refused = allowed.call("apply_changes", paths=["keep"])
    assert (refused.is_error, "nothing changed at" in refused.text) == (True, True)


@pytest.mark.parametrize(
    ("command", "on_host", "how"),
    [
        ("echo mine >> a", "echo theirs >> a", "changed in the project"),
        ("rm a", "echo theirs >> a", "changed in the project"),
        ("echo mine >> a", "cp a b && mv b a", "changed in the project"),
        ("echo mine >> a", "chmod 600 a", "changed in the project"),
        ("echo mine > new", "echo theirs > new", "in the project"),
        ("rm -r d", "echo theirs > d/other", "in the project"),
        ("echo mine > a.tmp; mv a.tmp a", "touch -d 2001-01-01 a; echo theirs >> a; touch -d 2001-01-01 a", "changed"),
    ],
)
def test_an_apply_that_meets_a_changed_file_changes_nothing_and_says_which_and_how(
    allowed: WireClient, filled: Path, command: str, on_host: str, how: str
) -> None:
    allowed.exec(f"{command}; echo fine > innocent")
    subprocess.run(["sh", "-c", on_host], cwd=filled, check=True)
    before = _tree(filled)
    refused = allowed.call("apply_changes")
    assert refused.is_error
    assert how in refused.text
    assert any(f" {name} (" in refused.text for name in ("a", "new", "d", "d/other")), refused.text
    assert _tree(filled) == before
    _done(allowed.call("apply_changes", paths=["innocent"]))
    assert (filled / "innocent").read_text() == "fine\n"


def test_a_file_that_was_deleted_in_the_project_is_a_conflict_once_it_was_seen(
    allowed: WireClient, filled: Path
) -> None:
    allowed.exec("echo mine >> a")
    _look(allowed)
    (filled / "a").unlink()
    refused = allowed.call("apply_changes")
    assert (refused.is_error, "a (it was deleted in the project)" in refused.text) == (True, True)


def test_what_the_project_changed_before_the_sandbox_did_is_no_conflict(allowed: WireClient, filled: Path) -> None:
    """The sandbox shows it, and so it rests on it: a session or a look at the changes in between is enough."""
    allowed.exec("cat a")
    (filled / "a").write_text("rewritten\n")
    while time.clock_gettime_ns(FILE_CLOCK) <= (filled / "a").stat().st_ctime_ns:
        pass
    _look(allowed)
    allowed.exec("echo mine >> a")
    _done(allowed.call("apply_changes"))
    assert (filled / "a").read_text() == "rewritten\nmine\n"


def test_what_came_home_can_go_on_in_the_sandbox_and_in_the_project(allowed: WireClient, filled: Path) -> None:
    allowed.exec("echo mine >> a; echo first > b")
    _done(allowed.call("apply_changes"))
    allowed.exec("echo more >> a")
    _done(allowed.call("apply_changes"))
    assert (filled / "a").read_text() == f"{PROJECT['a']}mine\nmore\n"
    (filled / "b").write_text("theirs\n")
    allowed.exec("echo another > c")
    told = _done(allowed.call("apply_changes"))
    assert "Newer in the project, and as it came home in the sandbox:\n  b" in told
    assert ((filled / "b").read_text(), (filled / "c").read_text()) == ("theirs\n", "another\n")
    allowed.exec("echo again >> b")
    assert "b (" in allowed.call("apply_changes").text


def test_a_restored_snapshot_does_not_bring_back_what_the_project_left_behind(
    allowed: WireClient, filled: Path
) -> None:
    allowed.exec("echo mine >> a")
    taken = _done(allowed.call("snapshot_create")).split()[0]
    clean = _done(allowed.call("snapshot_list"))
    assert clean
    allowed.exec("printf 'one\\ntwo\\nthree\\n' > a")
    (filled / "a").write_text("theirs\n")
    _look(allowed)
    _done(allowed.call("snapshot_restore", snapshot=taken))
    refused = allowed.call("apply_changes")
    assert (refused.is_error, "a (" in refused.text) == (True, True)
    assert (filled / "a").read_text() == "theirs\n"


def test_a_sandbox_from_a_snapshot_brings_home_what_differs_from_the_project(allowed: WireClient, filled: Path) -> None:
    allowed.exec("echo mine >> a")
    taken = _done(allowed.call("snapshot_create")).split()[0]
    _done(allowed.call("sandbox_create", name="copy", from_snapshot=taken))
    allowed.exec("echo more > b", sandbox="copy")
    assert _done(allowed.call("changes", sandbox="copy", summary=True)).splitlines()[1:] == ["A b  5 B"]
    _done(allowed.call("apply_changes", sandbox="copy"))
    assert (filled / "a").read_text() == f"{PROJECT['a']}mine\n"
    assert (filled / "b").read_text() == "more\n"
    _done(allowed.call("sandbox_destroy", sandbox="copy"))


def test_directories_that_nobody_may_enter_come_home_and_go_again(allowed: WireClient, filled: Path) -> None:
    """Else what came home with them could not be put back, or what stood there be kept."""
    before = _tree(filled)
    allowed.exec("mkdir z y; echo x > z/f; echo x > y/f; chmod 000 z; chmod 555 y; echo more >> a")
    _done(allowed.call("apply_changes"))
    assert (filled / "z/f").read_text() == "x\n"
    undone = subprocess.run(
        [sys.executable, "-m", "mcp_sandbox", "apply", "--undo"], cwd=filled, capture_output=True, text=True,
        env={**os.environ, "MCP_SANDBOX_HOME": str(filled.parent / "state")}, check=False,
    )  # fmt: skip
    assert undone.returncode == 0, undone.stderr
    assert {name: seen for name, seen in _tree(filled).items() if name != "."} == {
        name: seen for name, seen in before.items() if name != "."
    }


def test_pieces_of_a_repository_do_not_come_home_one_after_the_other(allowed: WireClient, filled: Path) -> None:
    """FS-05: git obeys a directory as soon as HEAD, objects and refs are in it, whichever came last."""
    allowed.exec("mkdir -p d/objects/a d/refs/a; echo 'ref: refs/heads/x' > d/HEAD; echo evil > d/config")
    allowed.call("apply_changes", paths=["d/HEAD", "d/config"])
    allowed.call("apply_changes", paths=["d/objects", "d/refs", "d/objects/a", "d/refs/a"])
    assert not all((filled / "d" / name).exists() for name in ("HEAD", "objects", "refs"))


def test_models_cannot_apply_unless_the_user_said_so(start: Callable[..., WireClient], filled: Path) -> None:
    with start("serve", "--project", str(filled)) as client:
        client.exec("echo mine >> a")
        refused = client.call("apply_changes")
        assert refused.is_error
        assert "mcp-sandbox apply" in refused.text
        assert "--allow-apply" in refused.text
        assert (filled / "a").read_text() == PROJECT["a"]
        client.call("sandbox_destroy", sandbox=_sandbox(client))


def test_a_sandbox_without_a_project_has_no_way_home(start: Callable[..., WireClient]) -> None:
    with start("serve", "--allow-apply") as client:
        early = client.call("changes")
        assert (early.is_error, "no sandbox yet" in early.text) == (True, True)
        client.exec("echo x > f")
        assert "A f  2 B" in _done(client.call("changes", summary=True))
        refused = client.call("apply_changes")
        assert (refused.is_error, "did not begin as a project" in refused.text) == (True, True)
        client.call("sandbox_destroy", sandbox=_sandbox(client))


@pytest.mark.parametrize("provider", ["docker"], indirect=True)
def test_changes_come_home_from_a_container_unless_the_project_changed_since_it_was_copied(
    start: Callable[..., WireClient], filled: Path
) -> None:
    with start("serve", "--project", str(filled), "--allow-apply") as client:
        client.exec("echo mine >> a; rm gone; mkdir new; echo n > new/f")
        (filled / "keep").write_text("theirs\n")
        _done(client.call("apply_changes"))
        assert (filled / "a").read_text() == f"{PROJECT['a']}mine\n"
        assert ((filled / "new/f").read_text(), (filled / "gone").exists()) == ("n\n", False)
        assert (filled / "keep").read_text() == "theirs\n"
        client.exec("echo mine >> keep; echo more >> a")
        refused = client.call("apply_changes")
        assert (refused.is_error, "keep (it changed in the project" in refused.text) == (True, True)
        _done(client.call("apply_changes", paths=["a"]))
        assert (filled / "a").read_text() == f"{PROJECT['a']}mine\nmore\n"
        client.call("sandbox_destroy", sandbox=_sandbox(client))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_cmd04_a_person_says_yes_to_these_paths_with_this_content_and_to_nothing_else(
    warm_state: Callable[[Path], Path], tmp_path: Path, filled: Path, mode: Literal["auto", "legacy"]
) -> None:
    home = warm_state(tmp_path / "state")
    environment = {"MCP_SANDBOX_HOME": str(home), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    asked: list[str] = []
    meanwhile: list[str] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        assert context is not None
        asked.append(params.message)
        if meanwhile:
            command = [sys.executable, "-m", "mcp_sandbox", "exec", "--", "sh", "-c", meanwhile.pop()]
            await anyio.run_process(command, cwd=filled, env={**os.environ, **environment}, stdin=subprocess.DEVNULL)
        decision = "Apply them" if len(asked) < 3 else "Do not apply them"
        return ElicitResult(action="accept", content={"decision": decision})

    async def say(tool: str, **arguments: object) -> str:
        result = await client.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        assert isinstance(result.content[0], TextContent)
        return result.content[0].text

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "mcp_sandbox", "serve", "--project", str(filled)], env=environment
    )
    async with Client(server, mode=mode, elicitation_callback=answer) as client:
        await say("exec", command="echo mine >> a; echo new > 'n\x1bw'")
        assert "Applied to the project" in await say("apply_changes")
        assert r"  | A $'n\ew'" in asked[0]
        assert f"into your project {filled.name}:" in asked[0]
        assert (filled / "a").read_text() == f"{PROJECT['a']}mine\n"

        await say("exec", command="echo good > b")
        meanwhile.append("echo evil > b")
        said = await say("apply_changes")
        if mode == "legacy":  # what was shown is staged already
            assert "Applied to the project" in said
            assert (filled / "b").read_text() == "good\n"
        else:
            assert "the user said no" in said
            assert len(asked) == 3, "other content is another question"
            assert not (filled / "b").exists()
        assert not [name for name in os.listdir(filled) if name.startswith(".mcp-sandbox")]
