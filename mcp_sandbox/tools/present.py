"""How the outcome of a command is put to a model: one line of facts, then what it said, within a budget."""

import signal
from dataclasses import dataclass
from typing import NamedTuple

from mcp_sandbox.core.exec import ExecResult, Termination
from mcp_sandbox.service.command import Outcome
from mcp_sandbox.service.output import Captured, unfinished
from mcp_sandbox.service.paths import display
from mcp_sandbox.store.jobs import JobRecord
from mcp_sandbox.tools.terminal import as_seen

__all__ = ["MOST_CHARACTERS", "MOST_LINES", "job_table", "present"]

MOST_CHARACTERS = 30_000
"""Claude Code puts answers above 50,000 characters or 25,000 tokens into a file; others cut earlier."""
MOST_LINES = 1_900
"""opencode drops everything after line 2,000."""

_HEADER_CHARACTERS = 3_000
_HEADER_LINES = 20
_HEAD_SHARE = 0.4
_STDERR_SHARE = 0.35
"""What standard error gets at most while standard output wants more than the rest."""
_ODD_CONTROLS = bytes({*range(32)} - {*b"\a\b\t\n\v\f\r\x1b"})
_STDERR_MARK = "--- stderr ---"


@dataclass(frozen=True, slots=True)
class _Budget:
    characters: int
    lines: int


@dataclass(frozen=True, slots=True)
class _Text:
    """One stream as text, before it is cut to fit."""

    name: str
    captured: Captured
    head: str
    tail: str
    lossy: bool
    binary: bool
    reader: str
    """Name of the tool that pages the whole text."""

    @property
    def characters(self) -> int:
        return len(self.head) + len(self.tail)

    @property
    def lines(self) -> int:
        return self.head.count("\n") + self.tail.count("\n") + 1


def present(outcome: Outcome, prefix: str = "") -> str:
    """Return the whole answer: at most `MOST_CHARACTERS` and `MOST_LINES`; names of tools begin with `prefix`."""
    stdout = _decoded("stdout", outcome.stdout, prefix)
    stderr = _decoded("stderr", outcome.stderr, prefix)
    lines = [_facts(outcome), *_explanations(outcome, prefix), *_stream_notes(outcome, stdout, stderr)]
    parts = ["\n".join(" ".join(line.splitlines()) for line in lines)[:_HEADER_CHARACTERS]]
    for_stdout, for_stderr = _shares(stdout, stderr)
    if text := _fitted(stdout, for_stdout):
        parts.append(text)
    if text := _fitted(stderr, for_stderr):
        parts.append(f"{_STDERR_MARK}\n{text}")
    if len(parts) == 1:
        parts.append("(no output)" if outcome.result is not None else "(no output yet)")
    return "\n".join(parts)


def job_table(records: tuple[JobRecord, ...]) -> str:
    """Return one line a job, newest first."""
    if not records:
        return "No jobs in this sandbox."
    lines = [f"{len(records)} job{'s' * (len(records) != 1)}, newest first:"]
    for record in reversed(records[-100:]):
        how = _how(record.result) if record.result is not None else "status=running"
        command = record.command.partition("\n")[0]
        shown = command if len(command) <= 100 else f"{command[:97]}..."
        lines.append(
            f"{record.id} {how} started={record.started_at} cwd={display(record.cwd)} command={display(shown)}"
        )
    return "\n".join(lines)


def _facts(outcome: Outcome) -> str:
    how = _how(outcome.result) if outcome.result is not None else "status=running"
    if outcome.job_id:
        how = f"job_id={outcome.job_id} {how}"
    return (
        f"{how} {'duration' if outcome.result else 'elapsed'}={_seconds(outcome.elapsed_s)} cwd={display(outcome.cwd)}"
    )


def _how(result: ExecResult) -> str:
    match result.termination:
        case Termination.EXITED:
            return f"exit={result.exit_code}"
        case Termination.SIGNALED:
            return f"signal={_signal_name(result.signal)}"
        case other:
            status = "" if result.exit_code is None else f"exit={result.exit_code} "
            return f"{status}ended={other.value}"


def _seconds(value: float) -> str:
    return f"{value:.3f}s" if value < 1 else f"{value:.2f}s" if value < 100 else f"{value:.0f}s"


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return str(number)


def _explanations(outcome: Outcome, prefix: str) -> list[str]:
    notes = [f"note: {note}" for note in outcome.notes]
    result = outcome.result
    if result is None:
        notes.append(
            f'note: still running; `{prefix}job` with action "wait" goes on, "kill" ends it; '
            f"whole output: {outcome.spool_path}.out (and .err)"
        )
        return notes
    why = _cause(result)
    if why:
        notes.append(f"note: {why}")
    if outcome.spool_path and not outcome.job_id:
        notes.append(
            "note: processes it left in the background still hold its output; what they write goes to "
            f"{outcome.spool_path}.out (and .err)"
        )
    return notes


def _cause(result: ExecResult) -> str:
    detail = f": {result.detail}" if result.detail else ""
    match result.termination:
        case Termination.TIMEOUT:
            limits = result.detail.partition("; ")[2]  # where they were met, a longer time would not help
            return (
                f"timeout after {_seconds(result.duration_s)}: it was killed with all it had started, and its output "
                f"up to then is below; {limits or 'for longer work give a larger timeout_s or run_in_background'}"
            )
        case Termination.OOM:
            return f"out of memory: it, or a process that it waited for, was killed{detail}"
        case Termination.PIDS:
            return f"no more processes: it failed, and could not start all that it wanted{detail}"
        case Termination.DISK:
            return f"no room on the disk: it failed or was killed because of what was written{detail}"
        case Termination.KILLED:
            return f"killed on request, with all it had started{detail}"
        case Termination.LOST:
            return f"lost: the sandbox or its server ended before the command did{detail}; files are kept"
        case Termination.SIGNALED:
            return f"a signal ended it, {_signal_name(result.signal)} ({result.signal}){detail}"
        case Termination.EXITED:
            if result.exit_code is not None and 128 < result.exit_code <= 192 and not result.detail:
                return f"exit {result.exit_code} is the shell's word for {_signal_name(result.exit_code - 128)}"
            return result.detail


def _stream_notes(outcome: Outcome, *streams: _Text) -> list[str]:
    notes: list[str] = []
    if outcome.gap:
        notes.append("note: some output was lost on the way here")
    for stream in streams:
        captured = stream.captured
        if stream.lossy:
            notes.append(f"note: {stream.name} is not valid UTF-8; wrong bytes are shown as \ufffd (lossy)")
        if stream.binary:
            where = f"all of it is in {captured.spool_path}" if captured.spool_path else "redirect it to a file"
            notes.append(f"note: {stream.name} holds binary data, which is not shown; {where}")
        if captured.spool_failure:
            notes.append(f"note: {stream.name} could not be kept whole: {captured.spool_failure}")
        elif captured.spool_cut_bytes:
            notes.append(
                f"note: {captured.spool_path} has reached its limit: "
                f"{captured.spool_cut_bytes:,} bytes of {stream.name} are not in it"
            )
    return notes


def _decoded(name: str, captured: Captured, prefix: str) -> _Text:
    is_cut = bool(captured.tail)
    head = _text(captured.head[: len(captured.head) - unfinished(captured.head) * is_cut])
    tail = _text(_without_orphans(captured.tail))
    return _Text(
        name=name, captured=captured, head=as_seen(head.text), tail=as_seen(tail.text),
        lossy=head.lossy or tail.lossy, binary=head.binary or tail.binary, reader=f"{prefix}read_file",
    )  # fmt: skip


class _Decoded(NamedTuple):
    text: str
    lossy: bool
    binary: bool


def _without_orphans(data: bytes) -> bytes:
    """Return bytes without the end of a character at their beginning."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def _text(data: bytes) -> _Decoded:
    """Return bytes as text, with a mark in place of lines that are none."""
    if b"\0" not in data:
        try:
            return _Decoded(data.decode(), lossy=False, binary=False)
        except UnicodeDecodeError:
            return _Decoded(data.decode(errors="replace"), lossy=True, binary=False)
    shown: list[str] = []
    lossy, binary_bytes, found_binary = False, 0, False
    for line in _lines(data):
        if _is_binary(line):
            binary_bytes += len(line)
            found_binary = True
            continue
        if binary_bytes:
            shown.append(f"[{binary_bytes:,} bytes of binary data]\n")
            binary_bytes = 0
        text = line.decode(errors="replace")
        lossy = lossy or "\ufffd" in text
        shown.append(text)
    if binary_bytes:
        shown.append(f"[{binary_bytes:,} bytes of binary data]\n")
    return _Decoded("".join(shown), lossy, found_binary)


def _lines(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    return [*(part + b"\n" for part in parts[:-1]), *filter(None, parts[-1:])]


def _is_binary(line: bytes) -> bool:
    zeros = line.count(0)
    if zeros * 2 > len(line):
        return True
    odd = len(line) - len(line.translate(None, _ODD_CONTROLS)) - zeros
    if odd * 20 > len(line):
        return True
    try:
        line.decode()
    except UnicodeDecodeError:
        return bool(zeros or odd)
    return False


def _shares(stdout: _Text, stderr: _Text) -> tuple[_Budget, _Budget]:
    """Divide the budget: whoever needs less leaves the rest to the other."""
    characters = MOST_CHARACTERS - _HEADER_CHARACTERS
    lines = MOST_LINES - _HEADER_LINES

    def split(all_of_it: int, for_stdout: int, for_stderr: int) -> tuple[int, int]:
        if for_stdout + for_stderr <= all_of_it:
            return all_of_it - for_stderr, all_of_it - for_stdout
        least_for_stderr = min(for_stderr, int(all_of_it * _STDERR_SHARE))
        given = min(for_stdout, all_of_it - least_for_stderr)
        return given, all_of_it - given

    characters_out, characters_err = split(characters, stdout.characters, stderr.characters)
    lines_out, lines_err = split(lines, stdout.lines, stderr.lines)
    return _Budget(characters_out, lines_out), _Budget(characters_err, lines_err)


def _fitted(text: _Text, budget: _Budget) -> str:
    captured = text.captured
    if not captured.tail and text.characters <= budget.characters and text.lines <= budget.lines:
        return text.head.rstrip("\n") if text.name == "stderr" else text.head.removesuffix("\n")
    return _cut(text, budget)


def _cut(text: _Text, budget: _Budget) -> str:
    """Return head and tail with a line between them that says how much is missing."""
    room = _Budget(budget.characters - 300, budget.lines - 1)  # the mark itself
    in_head = _Budget(int(room.characters * _HEAD_SHARE), max(1, int(room.lines * _HEAD_SHARE)))
    head = _first(text.head, in_head, is_whole=not text.captured.tail)
    in_tail = _Budget(room.characters - len(head), max(1, room.lines - head.count("\n") - 1))
    source = text.tail or text.head[len(head) :]
    tail = _last(source, in_tail, is_whole=not text.captured.tail)
    return f"{head.removesuffix(chr(10))}\n{_mark(text, head, tail)}\n{tail.removesuffix(chr(10))}"


def _mark(text: _Text, head: str, tail: str) -> str:
    captured = text.captured
    where = f"; all of it: {captured.spool_path} (page it with `{text.reader}`)" if captured.spool_path else ""
    shown = head.count("\n") + tail.count("\n")
    if captured.total_lines is not None and head.endswith("\n") and captured.total_lines > shown:
        missing = f"{captured.total_lines - shown:,} of {captured.total_lines:,} lines"
    else:
        shown_bytes = len(head.encode(errors="replace")) + len(tail.encode(errors="replace"))
        missing = f"{max(0, captured.total_bytes - shown_bytes):,} bytes"
    return f"[... {missing} of {text.name} omitted, {captured.total_bytes:,} bytes in all{where} ...]"


def _first(text: str, budget: _Budget, *, is_whole: bool) -> str:
    """Return the first lines that fit; if not even one does, the beginning of it."""
    end = _end_of_line(text, budget.lines)
    kept = text[: min(end, budget.characters)]
    if len(kept) < len(text) or not is_whole:
        last_line_end = kept.rfind("\n")
        if last_line_end >= 0:
            return kept[: last_line_end + 1]
    return kept


def _last(text: str, budget: _Budget, *, is_whole: bool) -> str:
    """Return the last lines that fit; if not even one does, the end of it."""
    body = text.removesuffix("\n")
    start = len(body)
    for _ in range(max(0, budget.lines)):
        start = body.rfind("\n", 0, max(0, start))
        if start < 0:
            break
    kept = text[max(start + 1, len(text) - budget.characters, 0) :]
    if len(kept) < len(text) or not is_whole:
        begins_line = start >= 0 and len(kept) == len(text) - start - 1
        first_line_end = kept.find("\n")
        if not begins_line and 0 <= first_line_end < len(kept) - 1:
            return kept[first_line_end + 1 :]
    return kept


def _end_of_line(text: str, count: int) -> int:
    position = 0
    for _ in range(count):
        position = text.find("\n", position) + 1
        if position == 0:
            return len(text)
    return position
