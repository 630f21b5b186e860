"""Deleted and added files that are one renamed file."""

from mcp_sandbox.core.differences import Change, Side
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.service.change_lines import diff_of, summary_line, visible
from mcp_sandbox.service.renames import Entry, candidates, with_renames

__all__: list[str] = []

LINES = "".join(f"line {n}\n" for n in range(20)).encode()


def _side(text: bytes, mode: int = 0o644) -> Side:
    return Side(kind=FileKind.FILE, mode=mode, size_bytes=len(text), text=text)


def _gone(name: str, text: bytes) -> Change:
    return Change(path=f"/workspace/{name}", before=_side(text), after=None)


def _new(name: str, text: bytes, mode: int = 0o644) -> Change:
    return Change(path=f"/workspace/{name}", before=None, after=_side(text, mode))


def _pairs(*changes: Change) -> dict[str, tuple[str, int]]:
    return {
        entry.change.path.removeprefix("/workspace/"): (entry.source.removeprefix("/workspace/"), entry.similarity)
        for entry in with_renames(sorted(changes, key=lambda change: change.path))
    }


def test_equal_content_is_a_rename_and_the_same_name_comes_first() -> None:
    assert _pairs(_gone("a/x", LINES), _gone("b/y", LINES), _new("c/y", LINES), _new("d/x", LINES)) == {
        "c/y": ("b/y", 100),
        "d/x": ("a/x", 100),
    }


def test_content_that_is_much_the_same_is_a_rename_and_what_is_not_is_none() -> None:
    assert _pairs(_gone("a", LINES), _new("b", LINES + b"more\n"))["b"][0] == "a"
    assert _pairs(_gone("a", LINES), _new("b", b"something else\n" * 20)) == {"a": ("", 100), "b": ("", 100)}
    assert _pairs(_gone("a", b""), _new("b", b"")) == {"a": ("", 100), "b": ("", 100)}, "empty files are alike"


def test_every_file_is_renamed_once() -> None:
    found = _pairs(_gone("a", LINES), _new("b", LINES), _new("c", LINES))
    assert sorted(source for source, _ in found.values()) == ["", "a"]


def test_too_many_are_not_looked_at() -> None:
    changes = [_gone(f"a{n}", LINES) for n in range(1500)] + [_new(f"b{n}", LINES) for n in range(1500)]
    assert candidates(changes) == []
    assert len(with_renames(changes)) == 3000


def test_a_rename_is_told_in_both_forms() -> None:
    (entry,) = with_renames([_gone("old", LINES), _new("sub/new", LINES + b"more\n", 0o755)])
    assert diff_of(entry).startswith(
        "diff --git a/old b/sub/new\nold mode 100644\nnew mode 100755\nsimilarity index 96%\n"
        "rename from old\nrename to sub/new\n--- a/old\n+++ b/sub/new\n@@ -18,3 +18,4 @@\n"
    )
    assert summary_line(entry) == (
        "R /workspace/old -> /workspace/sub/new  96 % the same, 150 B -> 155 B, mode 0644 -> 0755"
    )


def test_binary_and_large_files_say_how_large_they_are() -> None:
    assert diff_of(Entry(change=_new("b", b"\0" * 9))).endswith("Binary files /dev/null and b/b differ\n# 9 B\n")
    large = Change(path="/workspace/l", before=None, after=Side(kind=FileKind.FILE, mode=0o644, size_bytes=1 << 20))
    assert diff_of(Entry(change=large)).endswith("# 1 MiB, too large to be shown\n")


def test_out01_no_character_of_a_line_can_hide() -> None:
    assert visible("plain\ttext ü 漢") == "plain\ttext ü 漢"
    assert visible("\x1b[2J\r\u202e\u200b\udcff\U000e0041") == r"\x1b[2J\x0d\u202e\u200b\udcff\U000e0041"
