"""Asks the person at the terminal about a command, whatever standard input and output are used for."""

import os
import sys
from typing import Final

from anyio import to_thread

from mcp_sandbox.service.approval import Approval, Question

__all__ = ["ask_at_terminal"]

_TERMINAL: Final = "/dev/tty"


async def ask_at_terminal(question: Question) -> Approval:
    """Return the answer; without a terminal there is nobody to ask."""
    return await to_thread.run_sync(_ask, question, abandon_on_cancel=True)


def _ask(question: Question) -> Approval:
    if sys.platform == "win32":
        return Approval.CANNOT_ASK
    import termios

    try:
        terminal = os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return Approval.CANNOT_ASK
    try:
        termios.tcflush(terminal, termios.TCIFLUSH)  # what was typed before the question answers nothing
        os.write(terminal, f"{question.text}\nRun it? [y/N] ".encode())
        answer = os.read(terminal, 1024).decode("utf-8", "replace").strip()
    except (OSError, termios.error):  # a process in the background may not read it
        return Approval.NO_ANSWER
    finally:
        os.close(terminal)
    return Approval.ONCE if answer.casefold() in ("y", "yes") else Approval.NO
