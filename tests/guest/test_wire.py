"""Frames and payloads: what is packed is what is read, and nonsense is refused in the documented way."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.engines.carrier import error_fields
from mcp_sandbox.engines.guest_execution import command_payload
from mcp_sandbox.guest.errnos import host_errno
from mcp_sandbox.guest.pack import parse_stat
from mcp_sandbox.guest.wire import (
    FRAME_MAX,
    HEAD,
    MESSAGE_MAX,
    MORE,
    Frame,
    GuestProtocolError,
    Type,
    encode,
    fields,
    strings,
)

__all__: list[str] = []


@given(st.binary(max_size=200_000), st.sampled_from(list(Type)), st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFF))
def test_a_message_is_its_frames_put_together(payload: bytes, kind: Type, number: int, channel: int) -> None:
    frames = [Frame.decode(raw) for raw in encode(kind, number, payload, channel)]
    assert b"".join(frame.payload for frame in frames) == payload
    assert [frame.flags for frame in frames] == [MORE] * (len(frames) - 1) + [0]
    assert {(frame.type, frame.id, frame.channel) for frame in frames} == {(kind, number, channel)}
    assert all(len(frame.payload) <= FRAME_MAX for frame in frames)


def test_a_message_has_an_upper_bound() -> None:
    assert len(list(encode(Type.EXEC, 1, bytes(MESSAGE_MAX)))) == MESSAGE_MAX // FRAME_MAX
    with pytest.raises(GuestProtocolError):
        list(encode(Type.EXEC, 1, bytes(MESSAGE_MAX + 1)))


def framed(length: int, payload: bytes) -> bytes:
    """Return a head that says `length`, and a payload."""
    return HEAD.pack(length, 1, 1, 0, 0) + payload


@given(st.binary(max_size=100) | st.builds(framed, st.integers(0, 200), st.binary()))
def test_what_is_no_frame_is_refused(datagram: bytes) -> None:
    try:
        frame = Frame.decode(datagram)
    except GuestProtocolError:
        return
    assert len(datagram) == HEAD.size + len(frame.payload)


@given(st.binary(max_size=64))
def test_payloads_of_answers_are_read_or_refused(payload: bytes) -> None:
    with contextlib.suppress(GuestProtocolError):
        number, step = error_fields(payload)
        assert number > 0
        assert "\0" not in step
    with contextlib.suppress(GuestProtocolError):
        parse_stat("/x", payload)


@given(st.text())
def test_any_text_is_packed_or_refused(text: str) -> None:
    request = ExecRequest(argv=("echo", text), cwd="/")
    try:
        payload = command_payload(request, [])
    except InvalidRequestError:
        assert "\0" in text or any(0xD800 <= ord(character) <= 0xDFFF for character in text)
        return
    assert text.encode("utf-8", "surrogateescape") + b"\0" in payload


def test_bytes_that_are_no_text_survive_packing() -> None:
    assert strings(["a\udcff"]) == b"\x01\0\0\0a\xff\0"
    assert fields(1, "x") == b"\x01\0\0\0x\0"


@given(st.integers(-10, 1 << 32))
def test_every_errno_becomes_one_of_this_system(number: int) -> None:
    assert 0 < host_errno(number) < 4096
