"""Questions to the person: what is shown, what may be answered, and what an answer is good for."""

import hashlib
import json
import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

__all__ = ["MOST_CHARACTERS", "Approval", "Ask", "Question", "visible"]

MOST_CHARACTERS: Final = 4_000
"""What nobody reads to its end is not asked."""
_SHORT_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}


class Approval(Enum):
    """What the person said."""

    ONCE = "Run it once"
    SESSION = "Run it whenever it is asked for in this session"
    NO = "Do not run it"
    CANNOT_ASK = "cannot ask"
    """Nobody can be asked through this client."""
    TOO_OFTEN = "too often"
    """The person was asked too many questions in too short a time."""
    NO_ANSWER = "no answer"
    """The person dismissed the question, or did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Whether a command may run."""

    command: str
    cwd: str
    sandbox: str
    why: str
    layer: str
    """Who has it asked."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    stdin: str | None = None

    @property
    def text(self) -> str:
        """What is shown: all of it, and nothing that could pass for something else."""
        parts = [f"An agent wants to run this in sandbox {visible(self.sandbox)}, in {visible(self.cwd)}:", ""]
        parts += _quoted(self.command)
        if self.env:
            parts += [
                "",
                "with these variables:",
                *(line for pair in self.env.items() for line in _quoted("=".join(pair))),
            ]
        if self.stdin is not None:
            parts += ["", "and this on its standard input:", *_quoted(self.stdin)]
        return "\n".join([*parts, "", f"You are asked because {visible(self.why)}, says {self.layer}."])

    @property
    def is_readable(self) -> bool:
        """Whether a person can be expected to read it."""
        return len(self.text) <= MOST_CHARACTERS

    @property
    def digest(self) -> str:
        """What an answer is bound to: the exact bytes of everything that decides what runs."""
        bound = (self.command, self.cwd, self.sandbox, sorted(self.env.items()), self.stdin, self.why, self.layer)
        return hashlib.sha256(json.dumps(bound).encode("utf-8")).hexdigest()


Ask = Callable[[Question], Awaitable[Approval]]
"""Asks the person; a client of the newest protocol is asked by the answer of the call, which it then repeats."""


def visible(text: str) -> str:
    """Return text in which everything that has no shape of its own, or moves what stands beside it, is escaped."""
    return "".join(character if _is_plain(character) else _escaped(character) for character in text)


def _quoted(text: str) -> list[str]:
    """Return its lines, marked so that no line of it can be taken for ours."""
    return [f"  | {visible(line)}" for line in text.split("\n")]


def _is_plain(character: str) -> bool:
    return character == " " or (
        character.isprintable() and unicodedata.category(character) not in ("Cf", "Co", "Cn", "Mn")
    )


def _escaped(character: str) -> str:
    return _SHORT_ESCAPES.get(character) or f"\\u{{{ord(character):x}}}"
