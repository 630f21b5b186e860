"""Rules for commands, which decide before one starts: allow it, ask the person, deny it.

They are advisory. Rules keep honest agents on the road; they do not stop hostile code, which the sandbox does.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.policy.command_wrappers import look_inside
from mcp_sandbox.policy.shell_script import REDIRECTION, SimpleCommand, read_script
from mcp_sandbox.policy.shell_words import Word

__all__ = ["CommandPolicy", "Decision", "Rule", "Verdict", "judge", "may_mislead"]

_DEEPEST: Final = 8
_ANY: Final = "*"
_HARMLESS: Final = frozenset(
    (
        ": true false test [ echo printf pwd cd pushd popd dirs exit return break continue shift declare local set "
        "unset read mapfile let wait umask type hash getopts times jobs fg bg disown shopt"
    ).split()
)
"""Builtins that change nothing but their shell; an allow list need not name them."""
_SAFE_VARIABLES: Final = frozenset(
    (
        "LANG LANGUAGE TZ TERM COLUMNS LINES NO_COLOR FORCE_COLOR CLICOLOR CI NODE_ENV DEBUG VERBOSE PYTHONUNBUFFERED "
        "PYTHONDONTWRITEBYTECODE PYTHONHASHSEED RUST_BACKTRACE RUST_LOG CARGO_TERM_COLOR DEBIAN_FRONTEND"
    ).split()
)
"""Variables that do not change which program runs, or what it runs; so are those in small letters, which are a script's
own, and those that begin with `LC_`."""


_VALUED_OF_GIT: Final = frozenset(
    {"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"}
)


class Decision(IntEnum):
    """What is to be done; of several the highest holds."""

    ALLOW = 0
    ASK = 1
    DENY = 2


class _Match(IntEnum):
    NO = 0
    MAYBE = 1
    YES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A decision for the commands that begin with certain words.

    A token is a word, some words with `|` between them, or `*` for any one; the last one may be `*` for any number. The
    first one means a program of that name wherever it lies, unless it holds a `/`.
    """

    tokens: tuple[str, ...]
    decision: Decision
    reason: str = ""
    """What whoever meets it should know."""
    match: tuple[str, ...] = ()
    """Command lines that it must decide, and"""
    no_match: tuple[str, ...] = ()
    """those that it must not: checked when the rule is made."""

    @classmethod
    def of(
        cls, text: str, decision: Decision, *, reason: str = "", match: Sequence[str] = (), no_match: Sequence[str] = ()
    ) -> "Rule":
        """Read a rule's tokens.

        Raises:
            ConfigError: There are none, or an example proves the rule wrong.
        """
        try:
            tokens = tuple(shlex.split(text))
        except ValueError as error:
            raise ConfigError(f"Rule {text!r} refused", why=str(error), fix="Close the quotes") from error
        if not tokens:
            raise ConfigError("An empty rule was refused", why="it would match everything", fix="Name a command")
        rule = cls(tokens=tokens, decision=decision, reason=reason, match=tuple(match), no_match=tuple(no_match))
        rule._check()
        return rule

    @property
    def shown(self) -> str:
        """The rule as it is written."""
        return shlex.join(self.tokens).replace("'*'", "*")

    def matches(self, command: SimpleCommand) -> _Match:
        """Whether it is about this command; `MAYBE` if only running tells."""
        found = self._compared(command.words)
        if self.decision is not Decision.ALLOW and command.words[0].name.text == "git":
            found = max(found, self._compared(_without_own_options(command.words)))
        return found

    def _compared(self, words: Sequence[Word]) -> _Match:
        tokens = self.tokens[:-1] if len(self.tokens) > 1 and self.tokens[-1] == _ANY else self.tokens
        sure = _Match.YES
        for place, token in enumerate(tokens):
            if place >= len(words):
                return _Match.NO
            word = words[place]
            if place == 0 and "/" not in token:
                word = word.name
            if token != _ANY and not any(word.could_be(choice) for choice in token.split("|")):
                return _Match.NO
            if word.splits:
                return _Match.MAYBE
            if token != _ANY and word.text is None:
                sure = _Match.MAYBE
        return sure

    def _check(self) -> None:
        for examples, wanted in ((self.match, True), (self.no_match, False)):
            for line in examples:
                found = any(self.matches(command) is _Match.YES for command in _Reading(line).commands)
                if found is not wanted:
                    raise ConfigError(
                        f"Rule {self.shown!r} refused",
                        why=f"its example {line!r} is {'not matched' if wanted else 'matched'}",
                        fix="Correct the rule, or the example",
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPolicy:
    """What one layer of the configuration says about commands."""

    rules: tuple[Rule, ...] = ()
    default: Decision = Decision.ALLOW
    """For commands that no rule is about."""
    when_unclear: Decision = Decision.ASK
    """For what cannot be decided from the text; never `ALLOW`."""
    layer: str = "project"
    """Who said so."""

    def __post_init__(self) -> None:
        if self.when_unclear is Decision.ALLOW:
            raise ConfigError(
                "`undecidable: allow` refused", why="then every rule could be gone around by quoting",
                fix="Choose `ask` or `deny`",
            )  # fmt: skip

    @property
    def decides(self) -> bool:
        """Whether there is anything that it does not allow."""
        return self.default is not Decision.ALLOW or any(rule.decision is not Decision.ALLOW for rule in self.rules)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the layers say together, and the one that said it."""

    decision: Decision
    why: str = ""
    layer: str = ""


class _Reading:
    """Everything that a command line may run, however deep inside of other commands."""

    def __init__(self, line: str) -> None:
        self.commands: list[SimpleCommand] = []
        self.variables: set[str] = set()
        self.unclear: list[str] = []
        self._add(line, 0)

    def _add(self, text: str, depth: int) -> None:
        script = read_script(text)
        self.variables |= script.variables
        self.unclear += script.unclear
        for command in script.commands:
            self._add_command(command, depth)

    def _add_command(self, command: SimpleCommand, depth: int) -> None:
        self.commands.append(command)
        if (inside := look_inside(command)) is None:
            return
        if depth == _DEEPEST:
            self.unclear.append(f"commands are nested more than {_DEEPEST} deep")
            return
        self.variables.update(inside.variables)
        if inside.unclear:
            self.unclear.append(inside.unclear)
        for inner in inside.commands:
            self._add_command(inner, depth + 1)
        for text in inside.scripts:
            self._add(text, depth + 1)


def judge(policies: Sequence[CommandPolicy], line: str, env: Iterable[str] = ()) -> Verdict:
    """Decide on a command line for a shell; the strictest layer wins.

    Args:
        policies: What each layer says.
        line: The command line.
        env: Names of the variables that its caller adds.
    """
    deciding = [policy for policy in policies if policy.decides]
    if not deciding:
        return Verdict(Decision.ALLOW)
    reading = _Reading(line)
    reading.variables.update(env)
    return max((_judged(policy, reading) for policy in deciding), key=lambda verdict: verdict.decision)


def _judged(policy: CommandPolicy, reading: _Reading) -> Verdict:
    verdicts = [_of_command(policy, command) for command in reading.commands]
    if reading.unclear:
        verdicts.append(Verdict(policy.when_unclear, f"it cannot be decided: {reading.unclear[0]}", policy.layer))
    if policy.default is not Decision.ALLOW:  # an allow rule vouches for a command as it is written
        strange = [name for name in reading.variables if not _is_safe(name)]
        if strange:
            why = f"the variable {min(strange)} may change what an allowed command does"
            verdicts.append(Verdict(policy.when_unclear, why, policy.layer))
    return max(verdicts, key=lambda verdict: verdict.decision, default=Verdict(Decision.ALLOW))


def _without_own_options(words: Sequence[Word]) -> Sequence[Word]:
    """Return a call of git without what stands before its verb: `git -C x push` is a push as well."""
    place = 1
    while place < len(words) and (text := words[place].text) is not None and text.startswith("-"):
        place += 2 if text in _VALUED_OF_GIT else 1
    return (words[0], *words[place:])


_MISLEADING: Final = re.compile(
    r"PATH|HOME|IFS|ENV|BASH.*|SHELL.*|PS[0-9]|PROMPT_COMMAND|CDPATH|GLOBIGNORE|EDITOR|VISUAL|.*PAGER|BROWSER|LD_.*|GIT_.*|"
    r"SSH_.*|PYTHON.*|NODE_.*|NPM_.*|npm_.*|PERL.*|RUBY.*|GEM_.*|BUNDLE_.*|JAVA_.*|_JAVA_.*|MAVEN_.*|GRADLE_.*|CARGO_.*|"
    r"RUST.*|GO[A-Z]*|CC|CXX|[A-Z]*FLAGS|MAKE.*|PIP_.*|UV_.*|CURL_.*|WGETRC|LESS.*|XDG_.*|TMPDIR|.*_(proxy|PROXY)"
)


def may_mislead(variable: str) -> bool:
    """Whether a variable is known for changing what well-known programs do, or run."""
    return _MISLEADING.fullmatch(variable) is not None and variable not in _SAFE_VARIABLES


def _is_safe(variable: str) -> bool:
    if variable in _SAFE_VARIABLES or variable.startswith(("LC_", "-")):
        return True
    return variable.islower() and not variable.endswith("_proxy")


def _of_command(policy: CommandPolicy, command: SimpleCommand) -> Verdict:
    matches = [(rule, rule.matches(command)) for rule in policy.rules]
    for decision in (Decision.DENY, Decision.ASK):
        for rule, match in matches:
            if match is _Match.YES and rule.decision is decision:
                reason = f" ({rule.reason})" if rule.reason else ""
                return Verdict(decision, f"`{command.shown}` meets the rule `{rule.shown}`{reason}", policy.layer)
    for rule, match in matches:
        if match is _Match.MAYBE and rule.decision is not Decision.ALLOW:
            why = f"whether `{command.shown}` meets the rule `{rule.shown}` is known only when it runs"
            return Verdict(policy.when_unclear, why, policy.layer)
    if any(match is _Match.YES for _, match in matches) or policy.default is Decision.ALLOW:
        return Verdict(Decision.ALLOW)
    name = command.words[0].name.text
    if name is None:
        return Verdict(
            max(policy.default, policy.when_unclear), f"which command `{command.shown}` is, is known only when it runs",
            policy.layer,
        )  # fmt: skip
    inside = look_inside(command)
    if name in _HARMLESS or (inside is not None and inside.is_transparent):
        return Verdict(Decision.ALLOW)
    if name == REDIRECTION and len(command.words) > 1:
        why = f"it writes to `{command.words[1].shown}`, and no rule allows redirections (`{REDIRECTION}`)"
    else:
        allowed = sorted({rule.tokens[0] for rule in policy.rules if rule.decision is Decision.ALLOW})
        why = f"`{name}` is not among the commands that are allowed ({', '.join(allowed) or 'none'})"
        if any(rule.tokens[0] == name for rule in policy.rules):
            why = f"`{command.shown}` meets no rule that allows it"
    return Verdict(policy.default, why, policy.layer)
