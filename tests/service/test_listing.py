"""Finding files by a glob."""

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from file_world import World, open_world

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.globs import GlobFilter, glob_regex, split_glob


@pytest.fixture(params=["memory", "local"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[World]:
    async for opened in open_world(request.param, tmp_path):
        yield opened


async def test_a_glob_finds_files_newest_first_and_marks_directories(world: World) -> None:
    for name in ("old.py", "src/mid.py", "src/deep/new.py", "src/note.txt"):
        await world.put(name, b"")
        await anyio.sleep(0.01)  # file times have the kernel's tick
    assert await world.listed("**/*.py") == ["path=/workspace entries=3", "src/deep/new.py", "src/mid.py", "old.py"]
    assert sorted((await world.listed())[1:]) == ["old.py", "src/"]
    assert sorted((await world.listed("src"))[1:]) == ["src/deep/", "src/mid.py", "src/note.txt"]
    assert sorted((await world.listed("*", "src"))[1:]) == ["src/deep/", "src/mid.py", "src/note.txt"]
    assert (await world.listed("src/*.{py,txt}"))[0] == "path=src entries=2"
    assert (await world.listed("/workspace/src/**/"))[1:] == ["src/deep/"]
    assert (await world.listed("old.py")) == ["path=old.py entries=1", "old.py"]


async def test_hidden_and_heavy_directories_are_not_entered_unless_named(world: World) -> None:
    for name in (".git/config", "node_modules/x/index.js", ".github/ci.yml", "a.js", ".env", "web/node_modules/y.js"):
        await world.put(name, b"")
    found = await world.listed("**")
    assert sorted(found[1:-1]) == [".env", ".git/", ".github/", "a.js", "node_modules/", "web/", "web/node_modules/"]
    assert found[-1] == (
        "[not entered: .git/, .github/, node_modules/, web/node_modules/; name one in the pattern to look inside]"
    )
    assert (await world.listed("node_modules/**/*.js"))[1:] == ["node_modules/x/index.js"]
    assert (await world.listed("**/node_modules/*.js"))[1:2] == ["web/node_modules/y.js"]
    assert (await world.listed(".github/*"))[1:] == [".github/ci.yml"]
    assert (await world.listed("*", ".git"))[1:] == [".git/config"]


async def test_a_long_list_is_bounded_and_says_what_is_missing(world: World) -> None:
    for number in range(2100):
        await world.put(f"many/{number}.txt", b"")
    found = await world.listed("many/*")
    assert found[0] == "path=many entries=2100"
    assert len(found) <= 1900
    assert f"[{2100 - len(found) + 2:,} older entries not shown; narrow the pattern]" in found[-1]


async def test_nothing_found_is_said(world: World) -> None:
    assert await world.listed("*.rs") == ["path=/workspace entries=0", "[nothing matches]"]
    assert "there is no nowhere in /workspace" in await world.refused(lambda: world.listed("nowhere/*.py"))
    assert "cannot be used" in await world.refused(lambda: world.listed("*/../x"))
    assert "'[' is not closed" in await world.refused(lambda: world.listed("[a"))


@pytest.mark.parametrize(
    ("glob", "matching", "others"),
    [
        ("*.py", ["a.py", ".py"], ["d/a.py", "a.pyc"]),
        ("**/*.py", ["a.py", "d/a.py", "d/e/a.py"], ["a.txt"]),
        ("d/**", ["d/a", "d/e/f"], ["d", "e/d/a"]),
        ("d/**/a", ["d/a", "d/e/a", "d/e/f/a"], ["da", "d/b"]),
        ("?", ["a", "é"], ["ab", "/"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "x"]),
        ("[!a]", ["b", "!"], ["a", "/"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("{a,b*}.{x,y}", ["a.x", "bb.y"], ["c.x", "a.z"]),
        ("{d/**,e}", ["d/f/g", "e"], ["d"]),
        (r"\*", ["*"], ["a"]),
        ("a+(b)$", ["a+(b)$"], ["aab"]),
        ("two\nlines*", ["two\nlines\n"], ["two"]),
    ],
)
def test_a_glob_matches_as_shells_and_ripgrep_do(glob: str, matching: list[str], others: list[str]) -> None:
    regex = glob_regex(glob)
    assert [name for name in matching if not regex.fullmatch(name)] == []
    assert [name for name in others if regex.fullmatch(name)] == []


@pytest.mark.parametrize("glob", ["[", "[a", "{a", "{a,{b}", "a}", "a\\", "[z-a]", "x" * 1001])
def test_a_glob_that_is_none_is_refused(glob: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be used"):
        glob_regex(glob)


def test_braces_keep_their_slashes() -> None:
    assert split_glob("/src/./{a/b,c}/*.py") == ["src", "{a/b,c}", "*.py"]


@pytest.mark.parametrize(
    ("glob", "admitted", "others"),
    [
        ("", ["a", "d/a"], []),
        ("*.py", ["a.py", "d/e/a.py"], ["a"]),
        ("/*.py", ["a.py"], ["d/a.py"]),
        ("d/*.py", ["d/a.py"], ["a.py", "e/d/a.py"]),
        ("!*.py", ["a", "d/a"], ["a.py", "d/a.py", "x.py/a"]),
        ("!d/", ["a", "e/a", "d"], ["d/a", "e/d/a"]),
        ("d/", [], ["d/a"]),
    ],
)
def test_a_filter_is_for_names_at_any_depth_unless_it_has_a_slash(
    glob: str, admitted: list[str], others: list[str]
) -> None:
    compiled = GlobFilter(glob).compiled()
    assert [path for path in admitted if not compiled.admits(path)] == []
    assert [path for path in others if compiled.admits(path)] == []
