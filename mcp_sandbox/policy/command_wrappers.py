"""Programs that run what their arguments say: what it is that they run, as far as the words tell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_sandbox.policy.shell_script import SimpleCommand
from mcp_sandbox.policy.shell_words import Word

__all__ = ["Inside", "look_inside"]


@dataclass(frozen=True, slots=True)
class Inside:
    """What a command runs in its turn."""

    commands: tuple[SimpleCommand, ...] = ()
    scripts: tuple[str, ...] = ()
    """Texts that it gives to a shell."""
    variables: tuple[str, ...] = ()
    """What it sets for them."""
    unclear: str = ""
    """Why what it runs cannot be told."""
    is_transparent: bool = True
    """Whether it does nothing else, so that a rule for what it runs says everything."""


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """How the command inside is found: behind options, some with a value, and operands."""

    valued: frozenset[str] = frozenset()
    operands: int = 0
    assignments: bool = False


def _with(*valued: str, operands: int = 0, assignments: bool = False) -> _Wrapper:
    return _Wrapper(frozenset(valued), operands, assignments)


_WRAPPERS: Final[Mapping[str, _Wrapper]] = {
    "builtin": _with(),
    "busybox": _with(),
    "chrt": _with("-T", "-P", "-D", operands=1),
    "command": _with(),
    "env": _with("-u", "--unset", "-C", "--chdir", assignments=True),
    "exec": _with("-a"),
    "flock": _with("-w", "--timeout", "-E", "--conflict-exit-code", operands=1),
    "ionice": _with("-c", "--class", "-n", "--classdata", "-p", "--pid"),
    "nice": _with("-n", "--adjustment"),
    "nohup": _with(),
    "setsid": _with(),
    "stdbuf": _with("-i", "--input", "-o", "--output", "-e", "--error"),
    "strace": _with("-e", "-o", "-p", "-s", "-u", "-E", "-O", "-S", "-a", "-b", "-P", "-I"),
    "taskset": _with(operands=1),
    "time": _with("-f", "--format", "-o", "--output"),
    "timeout": _with("-s", "--signal", "-k", "--kill-after", operands=1),
    "xargs": _with(
        "-a", "--arg-file", "-d", "--delimiter", "-E", "-I", "-L", "--max-lines", "-n", "--max-args",
        "-P", "--max-procs", "-s", "--max-chars", "--process-slot-var",
    ),
}  # fmt: skip
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh"})
_SHELL_VALUED: Final = frozenset({"-o", "+o", "-O", "+O"})
_FIND_ACTIONS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_OPAQUE: Final[Mapping[str, str]] = {
    "alias": "`alias` gives commands other names",
    "coproc": "`coproc` may name its command in two ways",
    "enable": "`enable` changes what names mean",
    "parallel": "`parallel` makes command lines of its input",
}


def look_inside(command: SimpleCommand) -> Inside | None:
    """Return what a command runs in its turn, `None` if it runs nothing else."""
    first, *rest = command.words
    name = first.name.text
    if name is None:
        return None
    if name in _OPAQUE:
        return Inside(unclear=_OPAQUE[name], is_transparent=False)
    if name in _SHELLS:
        return _shell(name, rest)
    if name == "eval":
        return _joined(name, rest)
    if name == "trap":
        return _joined(name, rest[:1]) if len(rest) > 1 and rest[0].text not in ("-", "--", "-l", "-p") else None
    if name == "watch":
        return Inside(unclear="`watch` joins its arguments to a command line", is_transparent=False)
    if name == "find":
        return _find(rest)
    if (wrapper := _WRAPPERS.get(name)) is not None:
        return _behind(name, wrapper, rest)
    return None


def _behind(name: str, wrapper: _Wrapper, words: Sequence[Word]) -> Inside:
    """Return the command behind a wrapper's own options and operands."""
    operands, place = wrapper.operands, 0
    variables: list[str] = []
    while place < len(words):
        word = words[place]
        text = word.text
        if text is None and (operands or word.splits or word.could_be("-")):
            return Inside(unclear=f"the arguments of `{name}` are known only when it runs")
        if text is not None and text.startswith("-") and len(text) > 1:
            if name == "command" and text in ("-v", "-V"):
                return Inside()
            if name == "env" and (text.startswith("-S") or text.startswith("--split-string")):
                return Inside(unclear="`env -S` takes a command line apart itself")
            if name == "flock" and text in ("-c", "--command"):
                return _joined(name, words[place + 1 : place + 2])
            place += 2 if text in wrapper.valued else 1
        elif wrapper.assignments and text is not None and "=" in text:
            variables.append(text.partition("=")[0])
            place += 1
        elif operands:
            operands -= 1
            place += 1
        else:
            break
    inner = tuple(words[place:])
    return Inside(commands=(SimpleCommand(inner),) if inner else (), variables=tuple(variables))


def _shell(name: str, words: Sequence[Word]) -> Inside:
    """Return the text behind `-c`; a script in a file is the file's business, and standard input is unclear."""
    place, takes_text = 0, False
    while place < len(words):
        text = words[place].text
        if text is None:
            return Inside(unclear=f"the arguments of `{name}` are known only when it runs", is_transparent=False)
        if not text.startswith(("-", "+")) or text in ("-", "--"):
            place += text in ("-", "--")
            break
        if text in ("--rcfile", "--init-file"):
            return Inside(unclear=f"`{name} {text}` reads commands from a file first", is_transparent=False)
        takes_text |= text.startswith("-") and not text.startswith("--") and "c" in text
        if text.startswith("-") and not text.startswith("--") and "s" in text:
            return Inside(unclear=f"`{name}` reads commands from its standard input", is_transparent=False)
        place += 2 if text in _SHELL_VALUED else 1
    if place >= len(words):
        if any(word.text in ("--version", "--help") for word in words):
            return Inside(is_transparent=False)
        return Inside(unclear=f"`{name}` reads commands from its standard input", is_transparent=False)
    return _joined(name, words[place : place + 1]) if takes_text else Inside(is_transparent=False)


def _joined(name: str, words: Sequence[Word]) -> Inside:
    texts = [word.text for word in words]
    if any(text is None for text in texts):
        return Inside(unclear=f"what `{name}` runs is known only when it runs")
    return Inside(scripts=(" ".join(map(str, texts)),))


def _find(words: Sequence[Word]) -> Inside | None:
    commands = tuple(_actions(words))
    return Inside(commands=commands, is_transparent=False) if commands else None


def _actions(words: Sequence[Word]) -> Iterator[SimpleCommand]:
    place = 0
    while place < len(words):
        if words[place].text in _FIND_ACTIONS:
            end = place + 1
            while end < len(words) and words[end].text not in (";", "+"):
                end += 1
            if inner := tuple(words[place + 1 : end]):
                yield SimpleCommand(inner)
            place = end
        place += 1
