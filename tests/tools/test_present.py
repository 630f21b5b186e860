"""How outcomes are put: facts first, everything within the budget, cuts that say what is missing."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_sandbox.core.exec import ExecResult, Termination
from mcp_sandbox.service.command import Outcome
from mcp_sandbox.service.output import Captured, Window
from mcp_sandbox.tools.present import MOST_CHARACTERS, MOST_LINES, job_table, present

__all__: list[str] = []


def _captured(data: bytes, path: str = "/var/spool/mcp-sandbox/c-1.out") -> Captured:
    window = Window()
    for start in range(0, len(data), 50_000):
        window.add(data[start : start + 50_000])
    found = window.take(final=True)
    return Captured(
        head=found.head, tail=found.tail, total_bytes=found.total_bytes, total_lines=found.total_lines, spool_path=path
    )


def _outcome(stdout: bytes = b"", stderr: bytes = b"", **result: Any) -> Outcome:
    return Outcome(
        cwd="/workspace",
        elapsed_s=2.31,
        result=replace(ExecResult(exit_code=0, duration_s=2.31), **result),
        stdout=_captured(stdout),
        stderr=_captured(stderr, "/var/spool/mcp-sandbox/c-1.err"),
    )


def test_the_first_line_has_the_facts_then_come_stdout_and_marked_stderr() -> None:
    assert present(_outcome(b"out\n", b"err\n", exit_code=1)) == (
        "exit=1 duration=2.31s cwd=/workspace\nout\n--- stderr ---\nerr"
    )


def test_a_timeout_that_the_sandbox_sets_is_not_answered_with_a_longer_one() -> None:
    limit = "no command in this sandbox may run longer than 2 s"
    told = present(_outcome(exit_code=None, termination=Termination.TIMEOUT, detail=f"killed after 2 s; {limit}"))
    assert limit in told
    assert "timeout_s" not in told
    assert "run_in_background" not in told


def test_b021_a_command_without_output_says_so() -> None:
    assert present(_outcome(exit_code=1)).endswith("\n(no output)")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"exit_code": None, "signal": 11, "termination": Termination.SIGNALED}, ["signal=SIGSEGV", "(11)"]),
        ({"exit_code": None, "termination": Termination.TIMEOUT}, ["ended=timeout", "timeout_s", "run_in_background"]),
        ({"exit_code": None, "termination": Termination.OOM}, ["ended=oom", "out of memory"]),
        ({"exit_code": None, "termination": Termination.KILLED}, ["ended=killed", "on request"]),
        (
            {"exit_code": None, "termination": Termination.LOST, "detail": "why"},
            ["ended=lost", "why", "files are kept"],
        ),
        ({"exit_code": 137}, ["exit=137", "SIGKILL"]),
        ({"exit_code": 126, "detail": "cannot enter directory"}, ["exit=126", "cannot enter directory"]),
    ],
)
def test_b037_the_cause_of_death_is_named_and_explained(result: dict[str, Any], words: list[str]) -> None:
    text = present(_outcome(b"kept\n", **result))
    assert all(word in text for word in words)
    assert "kept" in text


def test_b035_head_and_tail_are_kept_and_the_cut_says_how_many_lines_are_missing() -> None:
    data = b"".join(b"line %d\n" % number for number in range(100_000))
    text = present(_outcome(data))
    shown = re.findall(r"^line (\d+)$", text, re.MULTILINE)
    (missing,) = re.findall(r"\[\.\.\. ([\d,]+) of 100,000 lines of stdout omitted, ([\d,]+) bytes in all", text)
    assert shown[0] == "0"
    assert shown[-1] == "99999"
    assert int(missing[0].replace(",", "")) == 100_000 - len(shown)
    assert int(missing[1].replace(",", "")) == len(data)
    assert "/var/spool/mcp-sandbox/c-1.out" in text
    assert len(text) <= MOST_CHARACTERS
    assert text.count("\n") < MOST_LINES


def test_a_single_endless_line_is_cut_within_it() -> None:
    text = present(_outcome(b"a" * 200_000 + b"z"))
    (missing,) = re.findall(r"([\d,]+) bytes of stdout omitted, 200,001 bytes in all", text)
    body = text.split("\n", 1)[1]
    assert body.startswith("aaaa")
    assert body.endswith("az")
    assert int(missing.replace(",", "")) == 200_001 - len(re.sub(r"\n\[.*\]\n|\n", "", body))


def test_much_standard_error_leaves_room_for_standard_output_and_the_other_way_round() -> None:
    lines = b"".join(b"%06d\n" % number for number in range(50_000))
    text = present(_outcome(lines, lines))
    out, err = text.split("--- stderr ---")
    assert out.count("\n") > 1_000
    assert err.count("\n") > 500
    only_err = present(_outcome(b"short\n", lines))
    assert only_err.count("\n") > 1_800


def test_b026_bytes_that_are_not_utf8_are_replaced_and_the_rest_is_kept() -> None:
    text = present(_outcome(b"ok\n\x85\n"))
    assert "ok\n\ufffd" in text
    assert "lossy" in text


def test_b027_binary_output_is_described_and_the_text_around_it_shown() -> None:
    text = present(_outcome(b"ok\n\x85\n" + bytes(range(256)) * 100 + b"\nend\n"))
    assert text.splitlines()[1:] == [
        "note: stdout is not valid UTF-8; wrong bytes are shown as \ufffd (lossy)",
        "note: stdout holds binary data, which is not shown; all of it is in /var/spool/mcp-sandbox/c-1.out",
        "ok",
        "\ufffd",
        "[25,601 bytes of binary data]",
        "end",
    ]


def test_names_between_zeros_are_text() -> None:
    assert present(_outcome(b"./one file\0./another\0")).endswith("\n./one file\u2400./another\u2400")


def test_a_character_that_the_cut_would_split_is_left_out_whole() -> None:
    text = present(_outcome("é漢🙂".encode() * 40_000))
    assert "\ufffd" not in text
    assert "lossy" not in text


def test_a_running_job_says_how_to_go_on() -> None:
    text = present(Outcome(cwd="/workspace", elapsed_s=45.0, job_id="j3", spool_path="/var/spool/mcp-sandbox/j3"))
    assert text.startswith("job_id=j3 status=running elapsed=45.00s")
    assert "/var/spool/mcp-sandbox/j3.out" in text
    assert "(no output yet)" in text


def test_notes_cannot_forge_lines() -> None:
    text = present(Outcome(cwd="/work\nexit=0", elapsed_s=0.0, notes=("a\nb",), result=ExecResult(exit_code=1)))
    assert text.splitlines()[0] == "exit=1 duration=0.000s cwd=$'/work\\nexit=0'"
    assert "note: a b" in text


def test_no_jobs_is_said() -> None:
    assert job_table(()) == "No jobs in this sandbox."


PIECES = st.lists(
    st.sampled_from([b"word ", b"\n", b"\r", b"\r\n", b"\x1b[31m", b"\xc3\xa9", b"\xff", b"x" * 5_000, b"y\n" * 3_000]),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(PIECES, PIECES)
def test_b033_whatever_was_written_the_answer_is_within_the_budget(stdout: list[bytes], stderr: list[bytes]) -> None:
    text = present(_outcome(b"".join(stdout), b"".join(stderr)))
    assert len(text) <= MOST_CHARACTERS
    assert text.count("\n") < MOST_LINES
    assert "\x1b" not in text
    assert "\r" not in text
