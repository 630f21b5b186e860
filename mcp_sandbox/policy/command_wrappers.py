"""Programs that run what their arguments say: what it is that they run, as far as the words tell."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_sandbox.policy.shell_script import SimpleCommand
from mcp_sandbox.policy.shell_words import Gap, Word

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
    "choom": _with("-n", "--adjust", "-p", "--pid"),
    "chrt": _with("-T", "-P", "-D", operands=1),
    "command": _with(),
    "env": _with("-u", "--unset", "-C", "--chdir", assignments=True),
    "doas": _with("-u", "-C"),
    "exec": _with("-a"),
    "fakeroot": _with("-l", "-s", "-i", "-b", "--lib", "--faked"),
    "flock": _with("-w", "--timeout", "-E", "--conflict-exit-code", operands=1),
    "ionice": _with("-c", "--class", "-n", "--classdata", "-p", "--pid"),
    "nice": _with("-n", "--adjustment"),
    "nohup": _with(),
    "prlimit": _with("-p", "--pid", "-o", "--output"),
    "setpriv": _with("--reuid", "--regid", "--groups", "--inh-caps", "--ambient-caps", "--bounding-set", "--pdeathsig"),
    "setsid": _with(),
    "stdbuf": _with("-i", "--input", "-o", "--output", "-e", "--error"),
    "strace": _with("-e", "-o", "-p", "-s", "-u", "-E", "-O", "-S", "-a", "-b", "-P", "-I"),
    "sudo": _with(*"-u -g -h -p -C -D -R -T -U -r -t --user --group --host --prompt".split(), assignments=True),
    "taskset": _with(operands=1),
    "time": _with("-f", "--format", "-o", "--output"),
    "timeout": _with("-s", "--signal", "-k", "--kill-after", operands=1),
    "xargs": _with(
        "-a", "--arg-file", "-d", "--delimiter", "-E", "-I", "-L", "--max-lines", "-n", "--max-args",
        "-P", "--max-procs", "-s", "--max-chars", "--process-slot-var",
    ),
}  # fmt: skip
_SHELLS: Final = frozenset({"sh", "bash", "rbash", "dash", "zsh", "ksh", "ash", "mksh"})
_FIND_ACTIONS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_CALLING: Final = {"compgen": "-C", "complete": "-C", "hash": "-p", "mapfile": "-C", "readarray": "-C"}
"""Builtins, and the option by which each of them names something to run."""
_STRONGER: Final = frozenset({"sudo", "doas"})
"""What these run is not the same as without them: an allow rule must name them."""
_OPAQUE: Final[Mapping[str, str]] = {
    **{
        name: f"`{name}` runs what its arguments say in a way of its own"
        for name in (
            "su runuser chroot unshare nsenter script setarch linux32 linux64 x86_64 dbus-run-session ssh-agent ltrace "
            "systemd-run start-stop-daemon screen tmux expect unbuffer"
        ).split()
    },
    "alias": "`alias` gives commands other names",
    "coproc": "`coproc` may name its command in two ways",
    "enable": "`enable` changes what names mean",
    "parallel": "`parallel` makes command lines of its input",
}


_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_INPUT: Final = re.compile(r"/dev/stdin|/dev/fd/.*|/proc/[^/]*/fd/.*|-")
_ANY: Final = Word((Gap.ANYTHING,), splits=True)
_FILLED: Final[Mapping[str, frozenset[str]]] = {
    "getopts": frozenset(), "mapfile": frozenset("dnOsuCc"), "printf": frozenset(), "read": frozenset("dinNptu"),
    "readarray": frozenset("dnOsuCc"), "unset": frozenset(),
}  # fmt: skip
"""Builtins that fill the variables that they name, and their options with a value."""


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
    if name in ("eval", "trap"):
        return _evaluated(name, [word for word in rest if word.text != "--"])
    if name in (".", "source"):
        is_file = bool(rest) and rest[0].text is not None and not _INPUT.fullmatch(rest[0].text)
        return None if is_file or not rest else Inside(unclear=f"`{name}` reads no file", is_transparent=False)
    if name == "watch":
        return Inside(unclear="`watch` joins its arguments to a command line", is_transparent=False)
    if name == "find":
        return _find(rest)
    if any(word.text is not None and word.text.startswith(_CALLING.get(name, "\0")) for word in rest):
        return Inside(unclear=f"`{name} {_CALLING[name]}` names another program", is_transparent=False)
    if name in _FILLED:
        return Inside(variables=tuple(_filled(name, rest)), is_transparent=False)
    if (wrapper := _WRAPPERS.get(name)) is not None:
        return _behind(name, wrapper, [word for word in rest if name != "time" or word.text != "!"])
    return None


def _behind(name: str, wrapper: _Wrapper, words: Sequence[Word]) -> Inside:
    """Return the command behind a wrapper's own options and operands."""
    operands, place = wrapper.operands, 0
    variables: list[str] = []
    replaced = ""
    while place < len(words):
        word = words[place]
        text = word.text
        if wrapper.assignments and (variable := _assigned(word)):
            variables.append(variable)
            place += 1
        elif text is None and (operands or word.splits or word.could_be("-")):
            return Inside(unclear=f"the arguments of `{name}` are known only when it runs")
        elif text is not None and text.startswith("-") and len(text) > 1:
            if name == "command" and text in ("-v", "-V"):
                return Inside()
            if name == "env" and (text.startswith("--s") or (not text.startswith("--") and "S" in text)):
                return Inside(unclear="`env -S` takes a command line apart itself")
            if name == "flock" and text in ("-c", "--command"):
                return _joined(name, words[place + 1 : place + 2])
            is_valued = text in wrapper.valued or (not text.startswith("--") and f"-{text[-1]}" in wrapper.valued)
            if name == "xargs" and text.startswith(("-I", "-i", "--replace")):
                value = words[place + 1].text if text == "-I" and place + 1 < len(words) else text[2:]
                replaced = value or "{}"
            place += 2 if is_valued else 1
        elif operands:
            operands -= 1
            place += 1
        else:
            break
    inner = tuple(words[place:])
    if name == "xargs":
        inner = tuple(_replaced(word, replaced) for word in inner) if replaced else (*inner, _ANY)
    is_transparent = name not in _STRONGER
    if not inner:
        return Inside(variables=tuple(variables), is_transparent=is_transparent)
    return Inside(commands=(SimpleCommand(inner),), variables=tuple(variables), is_transparent=is_transparent)


def _assigned(word: Word) -> str:
    """Return the variable that a word `NAME=...` sets."""
    first = word.pieces[0]
    found = _ASSIGNMENT.match(first) if isinstance(first, str) and not word.splits else None
    return found[1] if found is not None else ""


def _replaced(word: Word, placeholder: str) -> Word:
    return Word((Gap.ANYTHING,)) if placeholder in word.shown else word


def _filled(name: str, words: Sequence[Word]) -> Iterator[str]:
    """Yield the variables that a builtin fills; what is none of them does no harm there."""
    skipped = False
    for word in words:
        text = word.shown
        if skipped:
            skipped = False
        elif text.startswith("-") and len(text) > 1:
            skipped = text[-1] in _FILLED[name] and len(text) == 2
            if name == "printf" and text.startswith("-v") and len(text) > 2:
                yield text[2:]
        elif name != "printf" or (words[0].shown == "-v" and word is words[1]):
            yield text.partition("[")[0]


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
        is_cluster = not text.startswith("--")
        takes_text |= is_cluster and text.startswith("-") and "c" in text
        if is_cluster and text.startswith("-") and "s" in text:
            return Inside(unclear=_reads_input(name), is_transparent=False)
        place += 1 + (sum(map(text.count, "oO")) if is_cluster else 0)
    if place >= len(words):
        if any(word.text in ("--version", "--help") for word in words):
            return Inside(is_transparent=False)
        return Inside(unclear=_reads_input(name), is_transparent=False)
    if takes_text:
        return _joined(name, words[place : place + 1])
    script = words[place].text
    unclear = _reads_input(name) if script is None or _INPUT.fullmatch(script) else ""
    return Inside(unclear=unclear, is_transparent=False)


def _reads_input(name: str) -> str:
    return f"`{name}` reads commands from its standard input"


def _evaluated(name: str, words: Sequence[Word]) -> Inside | None:
    """Return the text that `eval` joins, or that `trap` keeps for later."""
    if name == "eval":
        return _joined(name, words)
    return _joined(name, words[:1]) if len(words) > 1 and words[0].text not in ("-", "-l", "-p") else None


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
