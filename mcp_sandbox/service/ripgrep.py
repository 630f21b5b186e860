"""Search with the sandbox's own ripgrep. What it prints is as untrusted as everything that runs there."""

import base64
import binascii
import json
import os
import posixpath
from typing import Any, cast

from mcp_sandbox.core.exec import ExecRequest, Exited, StreamName, Termination
from mcp_sandbox.core.globs import asks_for_hidden, pruned_for
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.service.findings import LINE_MAX_BYTES, Findings, FoundLine, OutputMode, SearchQuery

__all__ = ["search_with_ripgrep"]

_EVENT_MAX_BYTES = 16 << 20
_ERROR_MAX_BYTES = 4_096
_KERNEL_TREES = ("/proc", "/sys", "/dev")


async def search_with_ripgrep(
    sandbox: Sandbox, query: SearchQuery, findings: Findings, *, file_name: str | None, deadline_s: float
) -> bool:
    """Search below `query.path`, or in one file of its directory; return whether ripgrep could do it at all.

    It cannot where there is none, and with expressions that only the other engine knows; nothing is found then.
    """
    root = query.path if file_name is None else posixpath.dirname(query.path)
    request = ExecRequest(argv=_argv(query, root, file_name), cwd=root, timeout_s=deadline_s)
    parser = _Parser(query, findings, root)
    errors = b""
    async with await sandbox.exec(request) as execution:
        while not isinstance(event := await execution.receive(), Exited):
            if event.stream is StreamName.STDERR:
                errors = (errors + event.data)[:_ERROR_MAX_BYTES]
            else:
                parser.feed(event.data)
            if findings.full:
                parser.close()
                return True
    result = event.result
    parser.close()
    if result.termination is Termination.TIMEOUT:
        findings.note(f"stopped after {deadline_s:.0f} s; narrow path or glob")
        return True
    if result.exit_code not in (0, 1, 2) or (result.exit_code == 2 and errors and not parser.begun):
        return False
    if result.exit_code == 2:
        findings.unreadable += 1
    return True


def _argv(query: SearchQuery, root: str, file_name: str | None) -> tuple[str, ...]:
    words = ["rg", "--no-config", "--json", "--sort", "path", "--no-messages", "--no-ignore", "--hidden", "--no-mmap"]
    words.append("--ignore-case" if query.case_insensitive else "--case-sensitive")
    words += ["--multiline", "--multiline-dotall"] if query.multiline else ["--crlf"]
    if query.mode is OutputMode.CONTENT:
        words += ["--before-context", str(query.before), "--after-context", str(query.after)]
    elif query.mode is OutputMode.FILES:
        words += ["--max-count", "1"]
    words += ["--text"] if file_name is not None else _globs(query, root)
    return (*words, f"--regexp={query.pattern}", "--", "./" if file_name is None else f"./{file_name}")


def _globs(query: SearchQuery, root: str) -> list[str]:
    components = query.filter.components
    globs = [query.glob] if query.glob else []
    if not asks_for_hidden(components):
        globs.append("!.*/")
    globs += [f"!{name}/" for name in sorted(pruned_for(components))]
    if root == "/":
        globs += [f"!{tree}/" for tree in _KERNEL_TREES]
    return [f"--glob={glob}" for glob in globs]


class _Parser:
    """Reads ripgrep's JSON lines, and believes nothing about them."""

    def __init__(self, query: SearchQuery, findings: Findings, root: str) -> None:
        self._query, self._findings, self._root = query, findings, root
        self._buffer = bytearray()
        self._skipping = False
        self._open = False
        self.begun = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the output."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._buffer += line
            if not self._skipping and not self._findings.full:
                self._take(bytes(self._buffer))
            self._buffer.clear()
            self._skipping = False
        self._buffer += rest
        if len(self._buffer) > _EVENT_MAX_BYTES:
            self._buffer.clear()
            self._skipping = True

    def close(self) -> None:
        """Turn away from the file that the output broke off in, if it did."""
        if self._open:
            self._open = False
            self._findings.end()

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            kind, data = event["type"], event["data"]
            if kind == "begin":
                self.begun = self._open = True
                self._findings.begin(posixpath.join(self._root, _name(data["path"]).removeprefix("./")))
            elif kind == "end" and self._open:
                self._open = False
                self._findings.end(is_cut=isinstance(data.get("binary_offset"), int))
            elif kind in ("match", "context") and self._open:
                self._lines(data, is_match=kind == "match")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return

    def _lines(self, data: Any, *, is_match: bool) -> None:
        number = data["line_number"]
        column = data["submatches"][0]["start"] if is_match else None
        if not isinstance(number, int) or not isinstance(column, int | None):
            return
        raw = _raw(data["lines"])
        for offset, line in enumerate(raw.removesuffix(b"\n").split(b"\n")):
            if len(line) <= LINE_MAX_BYTES:
                place = None if column is None else min(column, len(line)) if not offset else 0
                self._findings.add(FoundLine(number + offset, line, place))


def _raw(field: Any) -> bytes:
    """Return the bytes of a field that is text, or base64 where it is not UTF-8."""
    if "text" in field:
        return cast("str", field["text"]).encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(field["bytes"], validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error


def _name(field: Any) -> str:
    return os.fsdecode(_raw(field))
