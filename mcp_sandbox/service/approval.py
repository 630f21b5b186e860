"""Questions to the person: what is shown, what may be answered, and what an answer is good for."""

import abc
import hashlib
import json
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from types import MappingProxyType
from typing import ClassVar, Final

__all__ = ["MOST_CHARACTERS", "ApplyQuestion", "Approval", "Ask", "CommandQuestion", "Question", "visible"]

MOST_CHARACTERS: Final = 4_000
"""What nobody reads to its end is not asked."""
_MANY_SPACES: Final = re.compile(r" {17,}")
_MOST_EMPTY: Final = 3
_BLANK: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that look like nothing."""
_SHORT_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}


class Approval(Enum):
    """What the person said."""

    ONCE = "once"
    SESSION = "session"
    """Whenever the same is asked for in this session."""
    NO = "no"
    CANNOT_ASK = "cannot ask"
    """Nobody can be asked through this client."""
    TOO_OFTEN = "too often"
    """The person was asked too many questions in too short a time."""
    NO_ANSWER = "no answer"
    """The person dismissed the question, or did not answer in time."""


class Question(abc.ABC):
    """Something that happens only if the person says so."""

    choices: ClassVar[Mapping[str, Approval]]
    """What may be answered."""

    @property
    @abc.abstractmethod
    def text(self) -> str:
        """What is shown: all of it, and nothing that could pass for something else."""

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """What an answer is bound to: the exact bytes of everything that decides what happens."""

    @property
    def is_readable(self) -> bool:
        """Whether a person can be expected to read it."""
        return len(self.text) <= MOST_CHARACTERS


@dataclass(frozen=True, kw_only=True)
class CommandQuestion(Question):
    """Whether a command may run."""

    choices = MappingProxyType(
        {
            "Run it once": Approval.ONCE,
            "Run it whenever it is asked for in this session": Approval.SESSION,
            "Do not run it": Approval.NO,
        }
    )

    command: str
    cwd: str
    sandbox: str
    why: str
    layer: str
    """Who has it asked."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    stdin: str | None = None
    goes_on: bool = False
    """Whether it is a job from the start, which can be given more input later."""

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
        if self.goes_on:
            parts += ["", "It goes on in the background, and the agent can give it more input later without asking."]
        return "\n".join([*parts, "", f"You are asked because {visible(self.why)}, says {self.layer}."])

    @property
    def digest(self) -> str:
        """What an answer is bound to: the exact bytes of everything that decides what runs."""
        where = (self.cwd, self.sandbox, sorted(self.env.items()))
        bound = (self.command, *where, self.stdin, self.goes_on, self.why, self.layer)
        return hashlib.sha256(json.dumps(bound).encode("utf-8")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ApplyQuestion(Question):
    """Whether changes of a sandbox may come home into the project."""

    choices = MappingProxyType({"Apply them": Approval.ONCE, "Do not apply them": Approval.NO})

    project: str
    """What the project is called."""
    sandbox: str
    changes: tuple[str, ...]
    """A line for each path."""
    content: str
    """A digest of all that comes home."""

    @property
    def text(self) -> str:
        """Every path; what is in them is a command away."""
        head = f"An agent wants to bring these changes home from sandbox {visible(self.sandbox)} into your project "
        shown = _quoted("\n".join(self.changes))
        return "\n".join([f"{head}{visible(self.project)}:", "", *shown, "", "`mcp-sandbox diff` shows them whole."])

    @property
    def digest(self) -> str:
        """The paths, and all that they will hold."""
        bound = (self.project, self.sandbox, self.changes, self.content)
        return hashlib.sha256(json.dumps(bound).encode("utf-8")).hexdigest()


Ask = Callable[[Question], Awaitable[Approval]]
"""Asks the person; a client of the newest protocol is asked by the answer of the call, which it then repeats."""


def visible(text: str) -> str:
    """Return text in which everything that has no shape of its own, or moves what stands beside it, is escaped."""
    return "".join(character if _is_plain(character) else _escaped(character) for character in text)


def _quoted(text: str) -> list[str]:
    """Return its lines, marked so that no line of it can be taken for ours, and none pushed out of sight by nothing."""
    lines = [_MANY_SPACES.sub(_counted, visible(line)) for line in text.split("\n")]
    shown: list[str] = []
    for line, same in groupby(lines):
        count = len(list(same))
        shown += [f"  | {line}"] * count if line or count <= _MOST_EMPTY else [f"  | \\n{{{count}}}"]
    return shown


def _counted(spaces: re.Match[str]) -> str:
    return f"\\u{{20}}{{{len(spaces[0])}}}"


def _is_plain(character: str) -> bool:
    if character == " ":
        return True
    is_shown = character.isprintable() and character not in _BLANK
    return is_shown and unicodedata.category(character) not in ("Cf", "Co", "Cn", "Mn", "Me")


def _escaped(character: str) -> str:
    return _SHORT_ESCAPES.get(character) or f"\\u{{{ord(character):x}}}"
