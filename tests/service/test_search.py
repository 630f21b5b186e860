"""Searching: by the sandbox's ripgrep and from outside, with the same answer."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from file_world import World, open_world

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.exec import ExecRequest, Exited
from mcp_sandbox.service.findings import Findings, OutputMode, SearchQuery
from mcp_sandbox.service.ripgrep import search_with_ripgrep

open_worlds = asynccontextmanager(open_world)


async def found(world: World, pattern: str, path: str = "/workspace", **options: Any) -> str:
    return (await world.search.search(None, SearchQuery(pattern=pattern, path=path, **options))).text


@dataclass(frozen=True)
class Worlds:
    """The same files twice: where ripgrep searches them, and where the host does."""

    inside: World
    outside: World

    async def put(self, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            await self.inside.put(path, data)
            await self.outside.put(path, data)

    async def found(self, pattern: str, path: str = "/workspace", **options: Any) -> str:
        """Return the answer of both, which must be one."""
        answers = [await found(world, pattern, path, **options) for world in (self.inside, self.outside)]
        assert answers[0] == answers[1], (pattern, path, options)
        return answers[0]


@pytest.fixture
async def worlds(tmp_path: Path) -> AsyncGenerator[Worlds]:
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    async with open_worlds("local", tmp_path / "inside") as inside, open_worlds("memory", tmp_path / "outside") as out:
        async with await inside.sandbox.exec(ExecRequest(argv=("rg", "--version"))) as execution:
            while not isinstance(event := await execution.receive(), Exited):
                pass
        if event.result.exit_code:
            pytest.skip("this machine has no ripgrep, so neither has its sandbox")
        yield Worlds(inside, out)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    """A sandbox without ripgrep."""
    async with open_worlds("memory", tmp_path) as opened:
        yield opened


TREE = {
    "a.py": b"import os\n\ndef needle():\n    return 1\n\n\n\nneedle()\n",
    "a/z.py": b"needle\n",
    "a.txt": b"Needle in text\nneedle again",
    "src/deep/b.py": b"x = 'needle'\n" * 3,
    "src/crlf.py": b"one\r\nneedle\r\nthree\r\n",
    "src/utf16.txt": "\ufeffa\nneedle é\n".encode("utf-16-le"),
    "src/bom.txt": b"\xef\xbb\xbfneedle\n",
    "src/latin.txt": b"needle caf\xe9\n",
    "src/binary": b"needle\0\n",
    "src/late.bin": b"needle\n" + b"x\n" * 100_000 + b"\0\nneedle\n",
    ".env": b"needle=1\n",
    ".hidden/x.py": b"needle\n",
    ".git/config": b"needle\n",
    "node_modules/m/index.js": b"needle\n",
    "web/node_modules/n.js": b"needle\n",
    "-rf": b"needle\n",
    "two\nlines": b"needle\n",
    "bad\udcffname": b"needle\n",
    "[x]*?.py": b"needle\n",
    "empty": b"",
}


async def test_matches_are_listed_by_file_with_line_numbers(worlds: Worlds) -> None:
    await worlds.put(TREE)
    text = await worlds.found("needle", glob="*.py")
    assert text.split("\n") == [
        "matches=8 files=5 path=/workspace",
        "[x]*?.py",
        "1:needle",
        "",
        "a/z.py",
        "1:needle",
        "",
        "a.py",
        "3:def needle():",
        "8:needle()",
        "",
        "src/crlf.py",
        "2:needle",
        "",
        "src/deep/b.py",
        "1:x = 'needle'",
        "2:x = 'needle'",
        "3:x = 'needle'",
    ]


async def test_context_is_shown_once_with_gaps_marked(worlds: Worlds) -> None:
    await worlds.put(TREE)
    text = await worlds.found("needle", "/workspace/a.py", before=1, after=2)
    assert text.split("\n")[1:] == [
        "a.py",
        "2-",
        "3:def needle():",
        "4-    return 1",
        "5-",
        "--",
        "7-",
        "8:needle()",
    ]


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"case_insensitive": True},
    {"before": 2, "after": 1},
    {"before": 3, "after": 3, "case_insensitive": True},
    {"head_limit": 3},
    {"head_limit": 1, "before": 1, "after": 1},
    {"multiline": True},
    {"glob": "*.py"},
    {"glob": "!*.py"},
    {"glob": "src/**"},
    {"glob": "/src/*.{py,txt}"},
    {"glob": "**/b.py"},
    {"glob": "!src/"},
    {"glob": "!src"},
    {"glob": "src"},
    {"glob": "src/"},
    {"glob": "[a-b].p?"},
    {"glob": "[!a]*"},
    {"glob": ".hidden/**"},
    {"glob": ".*"},
    {"glob": "**/node_modules/**"},
    {"glob": "/workspace/src/*.py"},
    {"glob": "nothing"},
    {"glob": r"\[x\]*"},
    {"glob": "{a,src/deep/*}.py"},
    {"glob": "src/**/*.py"},
    {"glob": "s**/*.py"},
)


@pytest.mark.parametrize("mode", OutputMode)
async def test_both_engines_agree_on_a_tree(worlds: Worlds, mode: OutputMode) -> None:
    await worlds.put(TREE)
    for options in OPTIONS:
        await worlds.found("needle", mode=mode, **options)


async def test_both_engines_agree_on_a_path(worlds: Worlds) -> None:
    await worlds.put(TREE)
    for path in (*TREE, "src", ".git", "/workspace/", "/workspace/src/..", "src/deep/../crlf.py"):
        if path not in ("src/binary", "empty"):
            assert "files=0" not in await worlds.found("(?i)needle", path)


async def test_ripgrep_is_what_searches_inside(worlds: Worlds) -> None:
    await worlds.put(TREE)
    for options in OPTIONS:
        query = SearchQuery(pattern="needle", path="/workspace", **options)
        sandbox = worlds.inside.sandbox
        assert await search_with_ripgrep(sandbox, query, Findings(query), file_name=None, deadline_s=10), options


LINES = {
    "f": b"foo(bar)\nfoo bar  \n\tif x {\n  y = {e} ${i} items[{i}]\n}\ninterface{} = 1\nab12 \xc3\xa9t\xc3\xa9\n\n"
    b"aaa\n"
    b"x = a.b.c\n'quoted'\n\\backslash\\\nfoo\nbar\nfoo\n\n\nEND",
    "g": b"foo\r\nbar\r\n\r\nlast",
}


PATTERNS = (
    r"foo\(",
    r"foo\s+bar",
    r"^foo$",
    r"^$",
    r"^\s*if",
    r"\bfoo\b",
    r"\d+",
    r"\w+é",
    r"(foo|bar)",
    r"fo{2}",
    r"a{2,}",
    r"[[:digit:]]",
    r"[^\n]+bar",
    r"\{e\}",
    r"\$\{i\}",
    r"interface\{\}",
    r"\\backslash",
    r"'quoted'",
    r"(?i)FOO",
    r"a\.b",
    r"x*",
    r".",
    r"-e",
    r"\x{e9}",
    r"ÉT",
    r"^\t",
    r"END\z",
    r"\p{Lu}+",
)


@pytest.mark.parametrize("multiline", [False, True])
async def test_both_engines_agree_on_an_expression(worlds: Worlds, multiline: bool) -> None:
    await worlds.put(LINES)
    for pattern in PATTERNS:
        await worlds.found(pattern, multiline=multiline)
        await worlds.found(pattern, multiline=multiline, case_insensitive=True, before=1)


async def test_both_engines_agree_on_matches_across_lines(worlds: Worlds) -> None:
    await worlds.put({"f": LINES["f"], "h": b"\n\nfoo\nbar\n", "i": b"foo\nbar"})
    for pattern in (r"foo\nbar", "foo\nbar", r"bar\n\n", r"foo[\s\S]*?foo", r"foo.*bar", r"\n\n", r"bar\s+foo"):
        await worlds.found(pattern, multiline=True)
        await worlds.found(pattern, multiline=True, before=1, after=1)
        await worlds.found(pattern, multiline=True, mode=OutputMode.COUNT)


async def test_an_expression_that_ripgrep_does_not_know_is_searched_all_the_same(worlds: Worlds) -> None:
    await worlds.put(LINES)
    for pattern in ("{e}", r"items\[{i}\]", "interface{}", r"\${i}", r"(?<=foo)\(", "foo{", r"(\w)\1\1"):
        await worlds.found(pattern)


async def test_braces_that_are_no_repetition_mean_themselves(world: World) -> None:
    await world.put("f", LINES["f"])
    assert (await found(world, "{e}")).startswith("matches=1 files=1")
    assert (await found(world, r"items\[{i}\]")).startswith("matches=1 files=1")
    assert (await found(world, "interface{}")).startswith("matches=1 files=1")


async def test_a_pattern_with_a_line_feed_finds_lines_that_follow_each_other(worlds: Worlds) -> None:
    await worlds.put(LINES)
    assert (await worlds.found(r"foo\nbar")).split("\n")[1:] == ["f", "13:foo", "14:bar"]


async def test_the_other_modes_tell_files_and_counts(worlds: Worlds) -> None:
    await worlds.put({"a": b"x\nx\n", "b": b"y\n", "c": b"x\n"})
    assert await worlds.found("x", mode=OutputMode.FILES) == "files=2 path=/workspace\na\nc"
    assert await worlds.found("x", mode=OutputMode.COUNT) == "matches=3 files=2 path=/workspace\na:2\nc:1"


async def test_head_limit_ends_the_search_and_says_so(worlds: Worlds) -> None:
    await worlds.put({"a": b"x\n" * 3, "b": b"x\n" * 3})
    assert await worlds.found("x", head_limit=4) == (
        "matches=4 files=2 path=/workspace more=yes\na\n1:x\n2:x\n3:x\n\nb\n1:x\n"
        "[there are more; head_limit=4 ended the search]"
    )
    assert "more=yes" not in await worlds.found("x", head_limit=6)
    assert (await worlds.found("x", head_limit=1, mode=OutputMode.FILES)).startswith("files=1 path=/workspace more=yes")


async def test_an_answer_is_bounded_in_lines_and_characters(worlds: Worlds) -> None:
    await worlds.put({"many": b"x\n" * 5000, "wide": b"x" * 400 + b"\n" + (b"x" * 400 + b"\n") * 200})
    for path in ("many", "wide"):
        text = await worlds.found("x", path)
        assert len(text) <= 30_000
        assert text.count("\n") < 1_900
        assert "more=yes" in text
        assert "the answer is full" in text


async def test_a_long_line_is_shown_around_its_match(worlds: Worlds) -> None:
    await worlds.put({"min.js": b"a" * 50_000 + "é".encode() * 2000 + b"needle" + b"b" * 50_000 + b"\n"})
    line = (await worlds.found("needle")).split("\n")[2]
    assert line.startswith("1:[...]é")
    assert "éneedleb" in line
    assert line.endswith("b[...]")
    assert len(line) < 520


async def test_ft04_hostile_names_stay_in_one_line(worlds: Worlds) -> None:
    await worlds.put({"two\n1:fake": b"x\n", "esc\x1b[2J": b"x\n", "bad\udcff": b"x\n", " ": b"x\n"})
    text = await worlds.found("x", mode=OutputMode.FILES)
    assert text.split("\n")[1:] == ["$' '", r"$'bad\xff'", r"$'esc\e[2J'", r"$'two\n1:fake'"]


async def test_nothing_found_says_what_was_left_out(worlds: Worlds) -> None:
    await worlds.put({".git/config": b"x\n"})
    text = await worlds.found("x")
    assert text.startswith("matches=0 files=0 path=/workspace\n[hidden and dependency directories")
    assert "1:x" in await worlds.found("x", "/workspace/.git")


async def test_a_binary_file_that_is_named_is_not_searched(worlds: Worlds) -> None:
    await worlds.put({"b": b"x\0\n"})
    assert "binary file" in await worlds.found("x", "b")


async def test_ft06_a_pattern_that_backtracks_without_end_is_stopped(world: World) -> None:
    await world.put("r", b"a" * 100_000 + b"b\n")
    with anyio.fail_after(20):
        assert "the pattern is too slow" in await found(world, r"(a|aa)+$")


async def test_ft06_ripgrep_is_not_slowed_by_a_pattern(worlds: Worlds) -> None:
    await worlds.inside.put("r", b"a" * 100_000 + b"b\n")
    with anyio.fail_after(20):
        assert (await found(worlds.inside, r"(a|aa)+$")).startswith("matches=0")


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"pattern": ""}, "empty"),
    ({"pattern": "x" * 1_000_000}, "more than 4,096 characters"),
    ({"pattern": "a\0"}, "NUL"),
    ({"pattern": "("}, "not a regular expression"),
    ({"pattern": "["}, "not a regular expression"),
    ({"pattern": "a", "glob": "[a"}, "is not closed"),
    ({"pattern": "a", "head_limit": 0}, "head_limit"),
    ({"pattern": "a", "before": -1}, "count lines"),
    ({"pattern": "a", "path": "nowhere"}, "there is no nowhere"),
    ({"pattern": "a", "path": "/workspace/*/../../.."}, "there is no"),
)


async def test_what_cannot_be_searched_is_refused(worlds: Worlds) -> None:
    for query, reason in REFUSED:
        for world in (worlds.inside, worlds.outside):
            with pytest.raises(InvalidRequestError, match=reason):
                await found(world, **query)


async def test_ft06_a_pattern_that_looks_like_an_option_is_a_pattern(worlds: Worlds) -> None:
    await worlds.put({"a": b"-e foo --pre=/bin/sh\n"})
    assert "1:-e foo" in await worlds.found("-e foo --pre=/bin/sh")


async def test_ft01_what_is_no_file_is_passed_over(worlds: Worlds) -> None:
    await worlds.inside.run("mkfifo f; ln -s /dev/zero z; ln -s /etc/passwd l; echo x > a")
    with anyio.fail_after(20):
        assert (await found(worlds.inside, "x|root")).split("\n")[1:] == ["a", "1:x"]
        with pytest.raises(InvalidRequestError, match="FIFO"):
            await found(worlds.inside, "x", "f")


async def test_a_big_file_is_streamed(world: World) -> None:
    await world.put("big", b"".join(b"line %d\n" % number for number in range(200_000)))
    assert (await found(world, "line 199999$")).split("\n")[1:] == ["big", "200000:line 199999"]
    assert (await found(world, "line 199999$", multiline=True)).split("\n")[1:] == ["big", "200000:line 199999"]


async def test_a_line_over_1_mib_is_passed_over_and_counted(worlds: Worlds) -> None:
    await worlds.put({"f": b"one\n" + b"x" * 1_100_000 + b"needle\n\ntwo needle\n" + b"needle" + b"x" * 1_100_000})
    assert (await worlds.found("needle|^$")).split("\n") == [
        "matches=2 files=1 path=/workspace",
        "f",
        "3:",
        "4:two needle",
    ]
