"""Output as a person would have seen it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_sandbox.tools.terminal import as_seen

__all__: list[str] = []


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("plain\ntext\t.\n", "plain\ntext\t.\n"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("  0%\r 50%\r100%\n", "100%\n"),
        ("long line\rshort\n", "shortline\n"),
        ("long line\rshort\x1b[K\n", "short\n"),
        ("typo\b\bed\n", "tyed\n"),
        ("\x1b[1;31mred\x1b[0m\n", "red\n"),
        ("\x1b[38;2;1;2;3mtrue colour\x1b[m", "true colour"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;sixel\n data\x1b\\after", "after"),
        ("\x1b(B\x1b)0text\x1b=", "text"),
        ("\x9b31mred\x9b0m", "red"),
        ("bell\a", "bell"),
        ("a\0b\x01", "a\u2400b\u2401"),
        ("unfinished \x1b[3", "unfinished "),
        ("unfinished \x1b", "unfinished "),
        ("\x1b]no end\nnext", "\nnext"),
        ("ab\x1b[Dc", "ac"),
        ("ab\x1b[3Cc", "ab   c"),
        ("abc\x1b[1Gx", "xbc"),
        ("abc\x1b[2K", ""),
        ("abc\x1b[1Kd", "   d"),
    ],
)
def test_b030_the_full_escape_grammar_is_understood(written: str, seen: str) -> None:
    assert as_seen(written) == seen


def test_b030_nested_progress_bars_are_shown_once() -> None:
    bars = "".join(f"\router {i}\n\rinner {i}\x1b[A" for i in range(50))
    assert as_seen(bars + "\n\n") == "outer 49\ninner 49\n"


@given(st.text(alphabet=st.characters(min_codepoint=0, max_codepoint=0x10F)))
def test_no_control_character_is_left_whatever_was_written(written: str) -> None:
    seen = as_seen(written)
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in seen)


@given(st.text(alphabet=st.characters(exclude_categories=["Cc"], include_characters="\n\t")))
def test_text_without_control_characters_is_not_touched(written: str) -> None:
    assert as_seen(written) == written


@pytest.mark.parametrize(
    "unit",
    [
        "\x1b",
        "\x1b[",
        "\x90",
        "\x1bP",
        "\x1b]",
        "\x9d",
        "\r",
        "\b",
        "x\r",
        "\x1b[9999C",
        "\x1b[A",
        "\n\x1b[A",
        "\x1b[999999B",
    ],
)
def test_a_hostile_stream_takes_linear_time(unit: str) -> None:
    text = unit * (98_304 // len(unit))
    started = time.process_time()
    as_seen(text)
    assert time.process_time() - started < 5
