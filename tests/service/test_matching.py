"""Matching lines on the host."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.service.findings import Findings, SearchQuery
from mcp_sandbox.service.matching import FileMatcher, compile_pattern
from mcp_sandbox.service.patterns import breaks_lines


def test_a_line_feed_in_the_pattern_asks_for_matches_across_lines() -> None:
    assert breaks_lines(r"a\nb")
    assert breaks_lines("a\nb")
    assert not breaks_lines(r"a[^\n]b")
    assert not breaks_lines(r"a\\nb")


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("{e}", "{e}", "e"),
        ("items[{i}]", "items{", "items[x]"),
        ("a{2}b{,1}c{1,}", "aac", "abc"),
        (r"\x{e9}\u{20ac}", "é€", "e"),
        (r"end\z", "end", "endz"),
        (r"[[:alpha:]{]{2}", "a{", "a1"),
        (r"\{e}", "{e}", "e"),
    ],
)
def test_a_pattern_means_what_ripgrep_users_mean(pattern: str, matching: str, others: str) -> None:
    expression = compile_pattern(SearchQuery(pattern=pattern, path="/"))
    assert expression.search(matching)
    assert not expression.search(others)


@pytest.mark.parametrize("pattern", ["(", "[", "a**", r"\x{zz}", r"\x{ffffffffff}", "(?P<a", "*", "\\"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequestError, match="not a regular expression"):
        compile_pattern(SearchQuery(pattern=pattern, path="/"))


@settings(deadline=None)
@given(pattern=st.text(alphabet=r"ab\[](){}*+?|^$.-:&~,1ex", max_size=12))
def test_any_pattern_is_compiled_or_refused(pattern: str) -> None:
    query = SearchQuery(pattern=pattern, path="/f")
    try:
        expression = compile_pattern(query)
    except InvalidRequestError:
        return
    matcher = FileMatcher(expression, query, Findings(query))
    matcher.begin(query.path)
    matcher.feed(b"ab{1}[e]\n(x)\n")
    matcher.end()


@settings(deadline=None)
@given(
    lines=st.lists(st.sampled_from(["a", "b", "", "ab", "b\r"]), max_size=12),
    pattern=st.sampled_from(["a", "b$", "^$", "ab?", "[^a]", "[^b]*b$", r"\ba\b", r"\s", "(?<!a)b", r"\Aab", "^.b|zz"]),
    before=st.integers(0, 2),
    after=st.integers(0, 2),
    size=st.integers(1, 9),
)
def test_lines_found_are_those_that_match_however_the_bytes_come(
    lines: list[str], pattern: str, before: int, after: int, size: int
) -> None:
    data = "\n".join([*lines, ""]).encode()
    query = SearchQuery(pattern=pattern, path="/workspace/f", before=before, after=after)
    findings = Findings(query)
    matcher = FileMatcher(compile_pattern(query), query, findings)
    matcher.begin(query.path)
    for start in range(0, len(data), size):
        matcher.feed(data[start : start + size])
    matcher.end()
    shown = [line for line in findings.text().split("\n")[2:] if line != "--"] if findings.matches else []
    hits = {number for number, line in enumerate(lines, 1) if re.search(pattern, line.removesuffix("\r"))}
    expected = [
        f"{number}{':' if number in hits else '-'}{line.removesuffix(chr(13))}"
        for number, line in enumerate(lines, 1)
        if any(number - after <= hit <= number + before for hit in hits)
    ]
    assert shown == expected
