"""Answers a client at once, while what it will need is loaded in a thread.

Everything here runs before the first answer, so it loads next to nothing: `json`, `typing`, `signal` and `threading`
cost between a third and all of the time in which the interpreter starts. Windows has no preamble.
"""

import gc
import os
import select
import sys

from mcp_sandbox.transport.claim import Wire
from mcp_sandbox.transport.opening import Announcement, Opening, is_plain_message
from mcp_sandbox.transport.plain_json import dump, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Handover", "Preparation", "answer_at_once"]

_READ_BYTES = 65_536
_MOST_LINE_BYTES = 65_536
_MOST_KEPT = 16
"""How many messages wait for the real server: each notification, the first request and the handshake."""
_QUIET_MS = 10
"""How long a client may be silent before loading begins, which slows down the answers."""
_USUAL_SWITCH_S = sys.getswitchinterval()
_SWITCH_S = 0.000_5
"""How long loading may keep the interpreter from an answer."""


class Handover:
    """What the real server must know of a connection that began without it."""

    __slots__ = ("answered", "begun")

    def __init__(self, *, begun: bytes, answered: "tuple[int | str, ...]") -> None:
        self.begun = begun
        """What it must read first: messages that have been seen to, but decide what follows, and then the others."""
        self.answered = answered
        """Ids of the requests in there that have their answer."""


class Preparation:
    """Work in a thread that begins when there is time for it.

    Args:
        work: Imports what will be needed.
    """

    def __init__(self, work: "Callable[[], object]") -> None:
        self._work = work
        self._failure: BaseException | None = None
        self.ended, self._end = os.pipe()
        """A descriptor that is at its end when the work is done."""
        self.begun = False
        """Whether the work has begun."""

    def begin(self) -> None:
        """Begin."""
        self.begun = True
        import threading  # here and not in the thread, which it would take for the main one

        # The collector would go again and again through what is loaded, and find nothing: a seventh of the time.
        gc.disable()
        sys.setswitchinterval(_SWITCH_S)
        threading.Thread(target=self._run, name="preparation", daemon=True).start()

    def finish(self) -> None:
        """Return when the work is done, and raise what it raised."""
        if not self.begun:
            self.begin()
        os.read(self.ended, 1)
        os.close(self.ended)
        sys.setswitchinterval(_USUAL_SWITCH_S)
        gc.freeze()
        gc.enable()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 (raised again in the main thread)
            self._failure = error
        os.close(self._end)


def answer_at_once(wire: Wire, announcement: Announcement, preparation: Preparation) -> Handover | None:
    """Answer what can be answered without the SDK. SIGTERM, SIGINT and SIGHUP end the process meanwhile.

    Returns:
        What is left to the real server, as soon as the preparation is done or something else is asked for; `None` if
        the client went away.
    """
    _end_on_signals()
    try:
        return _Preamble(wire, announcement, preparation).run()
    except OSError:  # nobody listens any more
        return None


def _end_on_signals() -> None:
    # The builtin part of `signal`: the other one loads `enum`.
    signals = sys.modules.get("_signal") or __import__("signal")
    try:
        for number in (signals.SIGTERM, signals.SIGINT, signals.SIGHUP):
            signals.signal(number, _exit)
    except ValueError:  # not in the main thread: somebody else minds the signals
        pass


def _exit(*_: object) -> None:
    os._exit(0)


class _Preamble:
    def __init__(self, wire: Wire, announcement: Announcement, preparation: Preparation) -> None:
        self._wire = wire
        self._opening = Opening(announcement)
        self._preparation = preparation
        self._buffer = b""
        self._kept: list[bytes] = []
        self._answered: list[int | str] = []

    def run(self) -> Handover | None:
        while self._answer_lines() and self._input_comes():
            try:
                data = os.read(self._wire.input, _READ_BYTES)
            except BlockingIOError:
                continue
            if not data and not self._buffer.strip():
                return None
            self._buffer += data
            if not data:
                break
        return Handover(begun=b"".join([*self._kept, self._buffer]), answered=tuple(self._answered))

    def _answer_lines(self) -> bool:
        """Return whether all whole lines are answered; else the buffer begins with the first that is not."""
        while (end := self._buffer.find(b"\n") + 1) > 0:
            if not self._take(self._buffer[:end]):
                return False
            self._buffer = self._buffer[end:]
        return len(self._buffer) <= _MOST_LINE_BYTES

    def _input_comes(self) -> bool:
        """Wait for input or the end of the preparation, and return whether it is input."""
        poll = select.poll()
        poll.register(self._wire.input, select.POLLIN)
        if not self._preparation.begun:
            if poll.poll(0 if self._opening.listed else _QUIET_MS):
                return True
            self._preparation.begin()
        poll.register(self._preparation.ended, select.POLLIN)
        return any(descriptor == self._wire.input for descriptor, _ in poll.poll())

    def _take(self, line: bytes) -> bool:
        """Return whether a line has been seen to."""
        if line.isspace():
            return True
        if len(line) > _MOST_LINE_BYTES:
            return False
        try:
            message = parse(line)
        except ValueError:
            return False
        if not is_plain_message(message):
            return False
        if "id" not in message:
            return self._keep(message["method"], line)
        decides = self._opening.decides(message)
        answer = self._opening.answer(message)
        if answer is None:
            return False
        if decides:
            self._kept.append(line)
            self._answered.append(message["id"])
        self._write(dump(answer).encode() + b"\n")
        return True

    def _keep(self, notification: str, line: bytes) -> bool:
        if notification == "notifications/cancelled":
            return True  # everything is answered: there is nothing to cancel
        if len(self._kept) == _MOST_KEPT:
            return False
        self._kept.append(line)
        return True

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._wire.output, data) :]
            except BlockingIOError:
                poll = select.poll()
                poll.register(self._wire.output, select.POLLOUT)
                poll.poll()
