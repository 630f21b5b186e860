"""A page does not depend on the pieces in which the file came."""

import random

import pytest

from mcp_sandbox.service.paging import LINE_MAX_CHARS, LinePager, Page

__all__: list[str] = []

LINES = [
    b"", b"plain", b"x" * 60, "日本語 é".encode(), b"carriage\r", b"\xe9 in windows-1252", b"\xff\xc3\xa9 mixed",
    b"a\0b", b"y" * LINE_MAX_CHARS, b"y" * (LINE_MAX_CHARS + 1), b"z" * 9_000,
]  # fmt: skip


def _page(data: bytes, pieces: list[int], first: int, count: int) -> Page:
    pager = LinePager(first=first, count=count)
    at = 0
    while at < len(data):
        size = pieces[at % len(pieces)]
        pager.feed(data[at : at + size])
        at += size
    return pager.finish()


@pytest.mark.parametrize("seed", range(12))
def test_a_page_does_not_depend_on_the_pieces_in_which_the_file_came(seed: int) -> None:
    chance = random.Random(seed)
    weights = [1, 30, 30, *[chance.choice([0, 0, 1])] * (len(LINES) - 3)]
    data = b"\n".join(chance.choices(LINES, weights, k=chance.choice([0, 1, 40, 2500]))) + chance.choice([b"", b"\n"])
    for first, count in ((1, 2000), (2, 5), (37, 1), (2400, 2000)):
        whole = _page(data, [1 << 20], first, count)
        assert _page(data, [1 if len(data) < 5000 else 997], first, count) == whole
        assert _page(data, [7, 4096, 65_536], first, count) == whole
