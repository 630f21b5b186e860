"""Edits are exact and unique, and no byte outside of them ever changes."""

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.service.edit import EDIT_MAX_BYTES, Edit, apply_edit


def edited(data: bytes, old: str, new: str, *, replace_all: bool = False) -> bytes:
    return apply_edit(data, Edit(old=old, new=new, replace_all=replace_all)).data


def refusal(data: bytes, old: str, new: str = "anything else", *, replace_all: bool = False) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        edited(data, old, new, replace_all=replace_all)
    return str(caught.value)


def test_b049_a_line_feed_text_matches_a_crlf_file_and_is_written_back_with_crlf() -> None:
    assert edited(b"one\r\ntwo\r\nthree\r\n", "one\ntwo", "ONE\nTWO") == b"ONE\r\nTWO\r\nthree\r\n"


def test_b050_replace_all_keeps_crlf_too() -> None:
    assert edited(b"a\r\nb\r\na\r\nb\r\n", "a\nb", "x\ny\nz", replace_all=True) == b"x\r\ny\r\nz\r\nx\r\ny\r\nz\r\n"


def test_a_crlf_text_matches_a_line_feed_file_and_is_written_back_with_line_feeds() -> None:
    assert edited(b"a\nb\nc\n", "a\r\nb", "x\r\ny") == b"x\ny\nc\n"


def test_lines_put_into_a_crlf_line_end_as_it_does() -> None:
    assert edited(b"a\r\nb\r\n", "b", "b\nc") == b"a\r\nb\r\nc\r\n"
    assert edited(b"a\r\nb", "b", "b\nc") == b"a\r\nb\r\nc"


def test_mixed_line_ends_stay_where_they_are() -> None:
    assert edited(b"a\r\nb\nc\r\nd\n", "b\nc", "B\nC") == b"a\r\nB\nC\r\nd\n"
    assert edited(b"a\nb\r\nc\n", "a\nb\nc", "1\n2\n3") == b"1\n2\r\n3\n"


def test_a_file_without_line_ends_takes_those_of_the_new_text() -> None:
    assert edited(b"one", "one", "one\r\ntwo") == b"one\r\ntwo"


def test_b051_a_stray_carriage_return_is_refused_and_named() -> None:
    message = refusal(b"alpha\nbeta\n", "alpha\r", "x")
    assert "line 1 differs" in message
    assert r"'alpha\r'" in message


def test_half_of_a_line_end_is_never_matched() -> None:
    assert "not in the file" in refusal(b"a\r\r\nb\n", "a\nb")
    assert edited(b"a\r\nb\r\n", "\nb", "\nc") == b"a\r\nc\r\n"


def test_two_places_are_refused_with_their_lines() -> None:
    assert "2 times, at lines 1, 3" in refusal(b"a=1\nb\na=1\n", "a=1", "a=2")


def test_overlapping_places_are_two_places() -> None:
    assert "2 times, at lines 1, 1" in refusal(b"aaa", "aa")


def test_many_places_are_counted_up_to_a_bound() -> None:
    message = refusal(b"x\n" * 5000, "x")
    assert "more than 1,000 times" in message
    assert len(message) < 400


def test_replace_all_replaces_every_match_and_tells_where() -> None:
    result = apply_edit(b"a\nb\na\n", Edit(old="a", new="c", replace_all=True))
    assert (result.data, result.lines) == (b"c\nb\nc\n", (1, 3))


def test_the_replacement_is_literal() -> None:
    assert edited(b"X\n", "X", "cost $& $1 $$ \\1 \\n \\g<0>") == b"cost $& $1 $$ \\1 \\n \\g<0>\n"


def test_the_searched_text_is_literal() -> None:
    assert edited(b"f(x)* [a-z]+ ^$\n", "(x)* [a-z]+ ^$", "y") == b"fy\n"
    assert "no line" in refusal(b"foo bar\n", "f.*r")


def test_no_final_newline_is_added() -> None:
    assert edited(b"no newline at end", "end", "END") == b"no newline at END"


def test_a_byte_order_mark_stays() -> None:
    assert edited(b"\xef\xbb\xbfhello\n", "hello", "bye") == b"\xef\xbb\xbfbye\n"


@pytest.mark.parametrize(("bom", "encoding"), [(codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")])
def test_a_utf16_file_stays_utf16(bom: bytes, encoding: str) -> None:
    data = bom + "naïve\r\n𝄞 old\r\n".encode(encoding)
    assert edited(data, "𝄞 old\n", "𝄞 new\nmore\n") == bom + "naïve\r\n𝄞 new\r\nmore\r\n".encode(encoding)


def test_utf16_matches_only_whole_characters_and_keeps_an_odd_last_byte() -> None:
    data = codecs.BOM_UTF16_LE + b"\x00\x41\x42\x00" + b"\xd8"
    assert "no line" in refusal(data, "A") or "not in the file" in refusal(data, "A")
    assert edited(data, "B", "C") == codecs.BOM_UTF16_LE + b"\x00\x41\x43\x00" + b"\xd8"


def test_latin1_bytes_survive_an_edit_beside_them() -> None:
    assert edited(b"caf\xe9 one\nkeep\n", "keep", "kept") == b"caf\xe9 one\nkept\n"


def test_latin1_text_is_matched_and_written_in_its_own_encoding() -> None:
    assert edited(b"caf\xe9\n\x80 5\n", "café\n€", "thé à\n€€") == b"th\xe9 \xe0\n\x80\x80 5\n"
    assert edited(b"caf\xe9\nkeep\n", "keep", "gardé") == b"caf\xe9\ngard\xe9\n"


def test_a_character_that_the_encoding_cannot_hold_is_refused() -> None:
    assert "'→', which the file's encoding windows-1252 cannot hold" in refusal(b"caf\xe9\nkeep\n", "keep", "a → b")


def test_utf8_with_a_bad_byte_is_edited_as_utf8() -> None:
    assert edited("naïve\n".encode() + b"\xff\nkeep\n", "keep", "→") == "naïve\n".encode() + b"\xff\n\xe2\x86\x92\n"


def test_identical_texts_are_refused() -> None:
    assert "identical" in refusal(b"a", "a", "a")


def test_a_change_of_line_ends_alone_is_refused_with_the_way_to_do_it() -> None:
    assert "sed" in refusal(b"a\r\nb", "a\r\nb", "a\nb")


def test_half_a_surrogate_pair_is_refused() -> None:
    assert "surrogate" in refusal(b"a", "\ud800", "b")
    assert "surrogate" in refusal(b"a", "a", "\udc80")


def test_an_edit_that_would_grow_beyond_bounds_is_refused() -> None:
    assert "replacements would make" in refusal(b"a" * 100_000, "a", "b" * (EDIT_MAX_BYTES // 50_000), replace_all=True)


def test_a_mismatch_in_indentation_is_named_with_both_lines() -> None:
    message = refusal(b"def f():\n\treturn 1\n", "def f():\n    return 1\n")
    assert "indentation" in message
    assert r"line 2 is '\treturn 1' and old_string has '    return 1'" in message


def test_a_mismatch_in_trailing_blanks_is_named() -> None:
    assert "blanks at the end of lines: line 1 is 'a  '" in refusal(b"a  \nb\n", "a\nb")


def test_a_mismatch_in_quotes_is_named() -> None:
    assert "look alike" in refusal("say “hi”\n".encode(), 'say "hi"')
    assert "look alike" in refusal(b"a\xc2\xa0b\nc\n", "a b\nc") or "blanks" in refusal(b"a\xc2\xa0b\nc\n", "a b\nc")


def test_a_mismatch_in_letter_case_is_named() -> None:
    assert "letter case: line 2 is 'Beta'" in refusal(b"x\nBeta\n", "beta")


def test_line_numbers_in_the_searched_text_are_recognised() -> None:
    message = refusal(b"x\nalpha\nbeta\n", "     2\talpha\n     3\tbeta")
    assert "line numbers" in message
    assert "line 2" in message


def test_escapes_in_the_searched_text_are_recognised() -> None:
    assert "escapes" in refusal(b'a\nb "c"\n', 'a\\nb \\"c\\"')
    assert "entities" in refusal(b"if a < b:\n", "if a &lt; b:")


def test_blanks_around_the_searched_text_are_recognised() -> None:
    assert "at its start or end" in refusal(b"alpha\nbeta", "beta\n")


def test_the_nearest_lines_are_shown_where_a_line_differs() -> None:
    message = refusal(b"a\ndef f(x):\n    y = 1\n    return y\n", "def f(x):\n    y = 2\n    return y\n")
    assert "line 3 is '    y = 1' where old_string has '    y = 2'" in message


def test_the_most_similar_line_is_shown_where_none_is_equal() -> None:
    assert "most like it is line 2" in refusal(b"x\ncompute_total(price, 3)\n", "compute_total(price, 4)")


def test_nothing_similar_is_said_plainly() -> None:
    assert "no line of the file resembles" in refusal(b"alpha\n", "zzzz 0123456789")
    assert "the file is empty" in refusal(b"", "a")


def test_a_mismatch_in_a_big_file_is_explained_in_bounded_text() -> None:
    data = b"".join(b"line %d %s\n" % (i, b"x" * 200) for i in range(20_000))
    assert len(refusal(data, "line 5000 " + "y" * 5000)) < 900


TEXT = st.text(alphabet="ab\r\n é€\t", max_size=30)


@settings(deadline=None)
@given(before=st.binary(max_size=40), after=st.binary(max_size=40), new=TEXT)
def test_no_byte_outside_the_match_changes(before: bytes, after: bytes, new: str) -> None:
    marker = "<<old>>"
    data = b"#" + before + marker.encode() + after
    if data.count(marker.encode()) != 1 or new == marker:
        return
    try:
        result = edited(data, marker, new)
    except InvalidRequestError as error:
        assert "cannot hold" in str(error)
        return
    assert result.startswith(b"#" + before)
    assert result.endswith(after)


@settings(deadline=None)
@given(lines=st.lists(st.sampled_from(["a", "b", "", " c"]), min_size=2, max_size=12), new=st.text("xy\n", max_size=8))
def test_a_file_with_one_kind_of_line_end_keeps_it(lines: list[str], new: str) -> None:
    old = "\n".join([lines[0], "mark", lines[1]])
    text = "\n".join([*lines, old, *lines, ""])
    if old == new:
        return
    expected = text.replace(old, new, 1)
    for end in ("\n", "\r\n"):
        data = text.replace("\n", end).encode()
        assert edited(data, old, new) == expected.replace("\n", end).encode()


@settings(deadline=None)
@given(data=st.text("ab\n\r", max_size=40), old=st.text("ab\n", min_size=1, max_size=3), new=st.text("z\n", max_size=3))
def test_replace_all_agrees_with_plain_replacement_on_normalised_text(data: str, old: str, new: str) -> None:
    plain = data.replace("\r", "")
    if old == new:
        return
    if old not in plain:
        refusal(plain.encode(), old, new)
    else:
        assert edited(plain.encode(), old, new, replace_all=True) == plain.replace(old, new).encode()


@settings(deadline=None)
@given(data=st.binary(max_size=60), old=st.text(min_size=1, max_size=3), new=st.text(max_size=3))
def test_any_bytes_are_edited_or_refused_with_a_reason(data: bytes, old: str, new: str) -> None:
    try:
        apply_edit(data, Edit(old=old, new=new))
    except InvalidRequestError as error:
        assert error.why
        assert error.fix
