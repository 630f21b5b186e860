"""Unified diffs: what they say turns one text into the other."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_sandbox.core.differences import Change, Side
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.service.unified import unified

__all__: list[str] = []

_TEXTS = st.lists(st.sampled_from(["a", "b", "c", "", "d\r", "e\f"]), max_size=30).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "\n".join(lines) + "\n"])
)


def _side(text: str | bytes, mode: int = 0o644, kind: FileKind = FileKind.FILE) -> Side:
    data = text.encode() if isinstance(text, str) else text
    return Side(kind=kind, mode=mode, size_bytes=len(data), text=data)


def _diff(old: Side | None, new: Side | None, path: str = "/workspace/src/x") -> str:
    return unified(Change(path=path, before=old, after=new))


def _patched(old: str, diff: str) -> str:
    """Return what a diff makes of a text, checking every line that it says is there."""
    lines, at, made = old.split("\n"), 0, list[str]()
    ends_open = "\n\\ No newline" in diff
    for hunk in re.split(r"^@@ ", diff, flags=re.MULTILINE)[1:]:
        head, _, body = hunk.partition("\n")
        start, _, count = head.split()[0][1:].partition(",")
        first = int(start) - (count != "0")
        made += lines[at:first]
        at = first
        for line in body.removesuffix("\n").split("\n"):
            if line.startswith("\\"):
                continue
            if line[:1] in (" ", "-"):
                assert lines[at] == line[1:]
                at += 1
            if line[:1] in (" ", "+"):
                made.append(line[1:])
    rest = lines[at:]
    if not rest and not ends_open:
        rest = [""]
    return "\n".join([*made, *rest])


@given(_TEXTS, _TEXTS)
def test_the_new_text_comes_out(old: str, new: str) -> None:
    diff = _diff(_side(old), _side(new))
    if old == new:
        assert "@@" not in diff
    elif old.endswith("\n") and new.endswith("\n"):
        assert _patched(old, diff) == new


def test_a_change_stands_among_three_lines_of_its_surroundings() -> None:
    old = "".join(f"{number}\n" for number in range(20))
    assert _diff(_side(old), _side(old.replace("9\n", "nine\n", 1))) == (
        "diff --git a/src/x b/src/x\n--- a/src/x\n+++ b/src/x\n@@ -7,7 +7,7 @@\n 6\n 7\n 8\n-9\n+nine\n 10\n 11\n 12\n"
    )


def test_new_deleted_and_unfinished_files_look_as_git_has_them() -> None:
    assert _diff(None, _side("a\nb", 0o755)) == (
        "diff --git a/src/x b/src/x\nnew file mode 100755\n--- /dev/null\n+++ b/src/x\n@@ -0,0 +1,2 @@\n+a\n+b\n"
        "\\ No newline at end of file\n"
    )
    assert "deleted file mode 100644\n--- a/src/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n" in _diff(_side("a\n"), None)
    assert "@@" not in _diff(None, _side(""))


def test_modes_links_and_kinds() -> None:
    chmod = Change(path="/etc/x", before=_side("a"), after=_side("a", 0o600), content_differs=False)
    assert unified(chmod) == "# diff --git a/etc/x b/etc/x\n# old mode 100644\n# new mode 100600\n"
    link = _side("target", 0o777, FileKind.SYMLINK)
    assert "new file mode 120000" in _diff(None, link)
    both = _diff(_side("a\n"), link)
    assert both.index("deleted file mode 100644") < both.index("new file mode 120000")
    assert _diff(None, Side(kind=FileKind.DIRECTORY, mode=0o755, size_bytes=0)) == ""


@pytest.mark.parametrize("data", [b"\0", b"\xff", None])
def test_what_is_no_text_is_only_said_to_differ(data: bytes | None) -> None:
    odd = Side(kind=FileKind.FILE, mode=0o644, size_bytes=1, text=data)
    assert _diff(_side("a"), odd).endswith("Binary files a/src/x and b/src/x differ\n")


def test_a_name_cannot_imitate_a_line() -> None:
    assert _diff(None, _side("a\n"), "/workspace/x\n+++ b/evil").count("\n+++ ") == 1


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("there is no git here")
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


def _applied(tree: Path, *changes: Change) -> str:
    """Have git apply a diff to a tree, and return what it says."""
    diff = os.fsencode("".join(map(unified, changes)))
    done = subprocess.run(["git", "apply", "-"], cwd=tree, input=diff, capture_output=True, check=False)
    assert done.returncode == 0, (diff, done.stderr)
    return done.stderr.decode()


_NAMES = (
    *("plain", "with space", " leading", "trailing ", "tab\there", "line\nfeed", "\r", "\x1b[31m", "\x01", "\x7f"),
    *('quote"d', "'single'", "back\\slash", "\\n", "Zürich", "日本", "\u202eright to left", "\udcff\udcfe", "a b/c\td"),
    *("$'x'", "x\n--- a/y\n+++ b/y\n@@ -0,0 +1 @@\n+z", "#x", "-x", "a => b", "b/a", "\u2028"),
)


@pytest.mark.parametrize("name", _NAMES)
def test_git_takes_any_name(tree: Path, name: str) -> None:
    path = f"/workspace/{name}"
    _applied(tree, Change(path=path, before=None, after=_side("one\n")))
    assert (tree / name).read_text() == "one\n"
    _applied(tree, Change(path=path, before=_side("one\n"), after=_side("one\ntwo", 0o755)))
    assert (tree / name).read_text() == "one\ntwo"
    assert (tree / name).stat().st_mode & 0o111
    link = _side("target", 0o777, FileKind.SYMLINK)
    _applied(tree, Change(path=path, before=_side("one\ntwo", 0o755), after=link))
    assert (tree / name).readlink() == Path("target")
    _applied(tree, Change(path=path, before=link, after=None))
    assert [path for path in tree.rglob("*") if not path.is_dir()] == []
    _applied(tree, Change(path=path, before=None, after=_side("")))
    assert (tree / name).read_bytes() == b""


def test_git_passes_over_what_is_not_in_the_workspace(tree: Path) -> None:
    evil = "x\n--- a/y\n+++ b/y\n@@ -0,0 +1 @@\n+z\n"
    outside = [Change(path=path, before=None, after=_side(evil)) for path in ("/etc/x", "/root/a\nb", "/workspace.old")]
    _applied(tree, outside[0], Change(path="/workspace/in", before=None, after=_side("in\n")), *outside[1:])
    assert [path.name for path in tree.iterdir()] == ["in"]


def test_texts_that_have_nothing_in_common_are_replaced_in_time() -> None:
    old, new = ("".join(f"{word} {number}\n" for number in range(20_000)) for word in ("old", "new"))
    diff = _diff(_side(old), _side(new))
    assert diff.count("\n-old ") == diff.count("\n+new ") == 20_000
