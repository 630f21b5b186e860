"""The preamble between two pipes, with nothing behind it: what it takes, what it leaves, and that nothing is lost."""

import gc
import json
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from handshakes import ENVELOPES, INITIALIZED, initialize, line, request
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_sandbox.transport.claim import Wire
from mcp_sandbox.transport.opening import Announcement
from mcp_sandbox.transport.preamble import Handover, Preparation, answer_at_once

__all__: list[str] = []

_CALL = line(request(7, "tools/call", {"name": "exec", "arguments": {"command": "true"}}))
_PING = line(request("p", "ping"))
_FIRST = [line(initialize()), line(INITIALIZED), line(request(2, "tools/list"))]


class Outcome(NamedTuple):
    """What a client heard, and what is left to the real server."""

    answers: list[dict[str, Any]]
    handover: Handover | None
    prepared: bool

    @property
    def ids(self) -> list[Any]:
        """The ids of the answers."""
        return [answer["id"] for answer in self.answers]


def _announcement() -> Announcement:
    return Announcement(name="n", title="T", version="1", instructions="Do.", tools=[], ttl_ms=1)


class Conversation:
    """A preamble in a thread, where it leaves the signals alone; its preparation lasts until it is told to end."""

    def __init__(self, *, starts: bool = True) -> None:
        input_read, self.input = os.pipe()
        self.output, output_write = os.pipe()
        self._wire = Wire(input=input_read, output=output_write, parent=os.getppid())
        self.begun, self.may_end = threading.Event(), threading.Event()
        self._preparation = Preparation(self._prepare)
        self._handover: list[Handover | None] = []
        self._thread = threading.Thread(target=self._run)
        if starts:
            self._thread.start()

    def _prepare(self) -> None:
        self.begun.set()
        self.may_end.wait(20)

    def _run(self) -> None:
        self._handover.append(answer_at_once(self._wire, _announcement(), self._preparation))
        os.close(self._wire.output)

    def outcome(self, *, ends: bool = True) -> Outcome:
        """Close the input, if it is to end, and return what happened."""
        if ends:
            os.close(self.input)
        if self._thread.ident is None:
            self._thread.start()
        with open(self.output, "rb") as output:
            answers = [json.loads(answer) for answer in output]
        self._thread.join()
        self.may_end.set()
        prepared = self.begun.is_set()
        self._preparation.finish()
        gc.unfreeze()
        os.close(self._wire.input)
        if not ends:
            os.close(self.input)
        return Outcome(answers, self._handover[0], prepared)


def _said(*lines: bytes) -> Outcome:
    """Say everything before anybody listens."""
    conversation = Conversation(starts=False)
    os.write(conversation.input, b"".join(lines))
    return conversation.outcome()


def _rest(outcome: Outcome) -> bytes:
    assert outcome.handover is not None
    return outcome.handover.begun


def test_a_client_that_only_looks_is_answered_without_preparation() -> None:
    outcome = _said(*_FIRST, _PING)
    assert outcome.ids == [1, 2, "p"]
    assert outcome.handover is None
    assert not outcome.prepared


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n \n", b"  "])
def test_nothing_is_asked_by_a_client_that_goes(data: bytes) -> None:
    outcome = _said(data)
    assert outcome.answers == []
    assert outcome.handover is None


def test_the_handshake_is_left_to_the_real_server_with_everything_from_the_first_other_request_on() -> None:
    outcome = _said(*_FIRST, _CALL, _PING, b'{"jsonrpc"')
    assert outcome.ids == [1, 2]
    assert _rest(outcome) == _FIRST[0] + _FIRST[1] + _CALL + _PING + b'{"jsonrpc"'
    assert outcome.handover is not None
    assert outcome.handover.answered == (1,)


def test_whatever_came_first_decides_what_follows_and_is_left_too() -> None:
    outcome = _said(_PING, *_FIRST, _PING, _CALL)
    assert outcome.ids == ["p", 1, 2, "p"]
    assert _rest(outcome) == _PING + _FIRST[0] + _FIRST[1] + _CALL
    assert outcome.handover is not None
    assert outcome.handover.answered == ("p", 1)


def test_without_a_handshake_the_first_request_is_left() -> None:
    listing = line(request(3, "tools/list", {"_meta": ENVELOPES["nothing"]}))
    discovery = line(request(4, "server/discover", {"_meta": ENVELOPES["nothing"]}))
    outcome = _said(listing, discovery, _CALL)
    assert outcome.ids == [3, 4]
    assert _rest(outcome) == listing + _CALL


def test_notifications_are_left_in_order_and_cancelling_what_is_answered_is_nothing() -> None:
    changed = line({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
    late = line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
    cancelled = line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
    outcome = _said(changed, *_FIRST, late, changed, _CALL, cancelled)
    assert _rest(outcome) == changed + _FIRST[0] + _FIRST[1] + changed + _CALL + cancelled


def test_not_more_than_a_few_notifications_are_kept() -> None:
    changed = line({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
    outcome = _said(*[changed] * 100, *_FIRST)
    assert outcome.answers == []
    assert _rest(outcome) == changed * 100 + b"".join(_FIRST)


@pytest.mark.parametrize("odd", [b"not json\n", b"[]\n", b"\xff\n", b"{}\n", b'{"jsonrpc":"2.0","id":null}\n'])
def test_a_line_that_is_no_message_is_left(odd: bytes) -> None:
    outcome = _said(*_FIRST, odd, _PING)
    assert outcome.ids == [1, 2]
    assert _rest(outcome) == _FIRST[0] + _FIRST[1] + odd + _PING


def test_a_last_message_that_nothing_ends_is_left() -> None:
    assert _rest(_said(_PING.rstrip())) == _PING.rstrip()


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_long_lines_are_left(end: bytes) -> None:
    conversation = Conversation()
    long = line(request(1, "ping", {"padding": "x" * 100_000})).rstrip() + end
    written = 0

    def write() -> None:
        nonlocal written
        while written < len(long):
            written += os.write(conversation.input, long[written:])

    writer = threading.Thread(target=write)
    writer.start()
    conversation.may_end.set()
    outcome = conversation.outcome(ends=False)
    writer.join()
    assert outcome.answers == []
    assert len(_rest(outcome)) > 65_536
    assert long.startswith(_rest(outcome))


def test_a_silent_client_is_left_to_the_real_server_when_that_is_ready() -> None:
    conversation = Conversation()
    assert conversation.begun.wait(10)
    os.write(conversation.input, b"".join(_FIRST))
    heard = b""
    while heard.count(b"\n") < 2:
        heard += os.read(conversation.output, 65_536)
    os.write(conversation.input, b'{"half":')
    conversation.may_end.set()
    outcome = conversation.outcome(ends=False)
    assert outcome.prepared
    assert _rest(outcome) in (_FIRST[0] + _FIRST[1], _FIRST[0] + _FIRST[1] + b'{"half":')


def test_a_client_that_does_not_listen_is_gone() -> None:
    conversation = Conversation()
    os.close(conversation.output)
    conversation.output = os.open(os.devnull, os.O_RDONLY)
    os.write(conversation.input, _PING)
    assert conversation.outcome().handover is None


def test_what_goes_wrong_in_the_preparation_is_raised_where_it_is_needed() -> None:
    def fail() -> None:
        raise ImportError("mcp")

    preparation = Preparation(fail)
    with pytest.raises(ImportError, match="mcp"):
        preparation.finish()
    gc.unfreeze()


_MESSAGES: Sequence[Callable[[int], bytes]] = (
    lambda number: line(request(number, "ping")),
    lambda number: line(request(str(number), "tools/list")),
    lambda _: line(INITIALIZED),
    lambda _: b"\r\n",
    lambda number: line(request(number, "tools/call", {"name": "exec"})),
    lambda _: b"nonsense\n",
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(_MESSAGES), max_size=8), st.data())
def test_nothing_is_lost_twice_or_out_of_order_however_the_input_is_cut(
    makers: list[Callable[[int], bytes]], data: st.DataObject
) -> None:
    lines = [line(initialize(request_id="hello")), *(make(number) for number, make in enumerate(makers))]
    stream = b"".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    conversation = Conversation()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        os.write(conversation.input, stream[start:end])
    outcome = conversation.outcome()
    easy = [makers.index(maker) for maker in makers if maker in _MESSAGES[4:]][:1]
    taken = lines[: 1 + (easy[0] if easy else len(makers))]
    assert outcome.ids == [message["id"] for message in map(json.loads, filter(bytes.strip, taken)) if "id" in message]
    if easy:
        kept = [one for one in taken if b"initialize" in one]
        assert _rest(outcome) == b"".join([*kept, *lines[len(taken) :]])
    else:
        assert outcome.handover is None
