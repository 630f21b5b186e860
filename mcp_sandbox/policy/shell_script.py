"""What a shell script would run, read from its text and nothing else.

The grammar is tree-sitter's of bash. What only running tells is a gap in a word; what cannot be read at all is said to
be unclear. Nobody may take this for a boundary: it reads what an honest agent wrote.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from mcp_sandbox.policy.shell_words import Gap, Piece, Word, literal

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

__all__ = ["REDIRECTION", "Script", "SimpleCommand", "read_script"]

REDIRECTION: Final = ">"
"""The name of the command that a redirection into a file counts as."""

_MOST_BYTES: Final = 128 * 1024
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_TORN: Final = re.compile(r"\S\\\n\S")
_WRITING: Final = frozenset({">", ">>", ">|", "&>", "&>>", ">&", "<>"})
_NO_FILE: Final = re.compile(r"[0-9]+-?|-|/dev/(null|stdout|stderr|fd/[0-9]+|tty)")
_PLAIN_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_STRING_ESCAPE: Final = re.compile(r"\\([$`\"\\])")
_RESERVED: Final = frozenset("{ } ! if then else elif fi do done case esac while until for in select ]]".split())
_BARE: Final = frozenset({"word", "brace_expression", "number"})
_GLOB: Final = re.compile(r"(\\.|[*?\[])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """A program or builtin with its arguments."""

    words: tuple[Word, ...]
    """Its name first."""

    @property
    def shown(self) -> str:
        """How a message shows it."""
        return " ".join(word.shown for word in self.words)


@dataclass(frozen=True, slots=True)
class Script:
    """All that a script may run, whichever way it takes."""

    commands: tuple[SimpleCommand, ...]
    variables: frozenset[str]
    """Variables that it sets, for itself or for one command."""
    unclear: tuple[str, ...]
    """Why not all of it could be read."""


def read_script(text: str) -> Script:
    """Read a script; nothing is refused, for what cannot be read is unclear."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > _MOST_BYTES:
        return Script((), frozenset(), (f"it is longer than {_MOST_BYTES:,} bytes",))
    unclear: list[str] = []
    if _CONTROL.search(text):
        unclear.append("it holds control characters")
    if _TORN.search(text):
        unclear.append("a line goes on in the middle of a word")
    root = _parser().parse(data).root_node
    if root.has_error:
        unclear.append("it is not understood as shell")
    commands: list[SimpleCommand] = []
    variables: set[str] = set()
    for node in _all_below(root):
        match node.type:
            case "command":
                command = SimpleCommand(_words(node))
                commands.append(command)
                if command.words and command.words[0].text in _RESERVED:  # the grammar has gaps
                    unclear.append(f"the {command.words[0].text!r} in it is not understood")
            case "test_command":
                commands.append(SimpleCommand((literal("test"),)))
            case "declaration_command":
                commands.append(SimpleCommand((literal("declare"),)))
            case "variable_assignment":
                variables.add(_text(node.child_by_field_name("name")))
            case "for_statement":
                variables.add(_text(node.child_by_field_name("variable")))
            case "file_redirect":
                if (target := _written(node)) is not None:
                    commands.append(SimpleCommand((literal(REDIRECTION), target)))
            case "command_name" if node.parent is not None and node.parent.is_error:
                unclear.append(f"{_text(node)!r} is not understood")
            case "word" if "\n" in _text(node):
                unclear.append("where a command of it ends is not understood")
            case _:
                pass
    return Script(tuple(commands), frozenset(variables), tuple(unclear))


@cache
def _parser() -> "Parser":
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def _all_below(root: "Node") -> "Iterator[Node]":
    """Every node, in the order of the text; deep nesting is no danger."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))


def _text(node: "Node | None") -> str:
    return "" if node is None or node.text is None else node.text.decode("utf-8", "surrogateescape")


def _words(node: "Node") -> tuple[Word, ...]:
    """Return the words of a command. The grammar tears some apart: what touches is one word."""
    name = node.child_by_field_name("name")
    words: list[list[Node]] = []
    for part in ([] if name is None else [name]) + node.children_by_field_name("argument"):
        if words and words[-1][-1].end_byte == part.start_byte:
            words[-1].append(part)
        else:
            words.append([part])
    return tuple(_word(*word) for word in words)


def _written(node: "Node") -> Word | None:
    """Return the file that a redirection writes to, if it does."""
    if not any(child.type in _WRITING for child in node.children):
        return None
    target = node.child_by_field_name("destination")
    if target is None:
        return None
    word = _word(target)
    return None if word.text is not None and _NO_FILE.fullmatch(word.text) else word


def _word(*nodes: "Node") -> Word:
    """Return a word of which the grammar has one part or several."""
    parts = list(_parts(nodes))
    bare = "".join(_text(part) for part in parts if part.type in _BARE)
    if "{" in bare and ("," in bare or ".." in bare):
        return Word((Gap.ANYTHING,), splits=True)
    pieces: list[Piece] = []
    splits = False
    for part in parts:
        more, several = _pieces(part)
        pieces += more
        splits |= several
    if bare.startswith("~") and isinstance(pieces[0], str):
        _, slash, rest = pieces[0].partition("/")
        pieces[:1] = [Gap.ANYTHING, slash + rest]
    if "[" in bare and "]" in bare:  # a set of characters, which may be parts of several pieces
        return Word((Gap.ANYTHING,), splits=True)
    return Word(tuple(pieces), splits or Gap.NAMES in pieces)


def _parts(nodes: "Iterable[Node]") -> "Iterator[Node]":
    for node in nodes:
        if node.type in ("command_name", "concatenation") and node.children:
            yield from _parts(node.children)
        else:
            yield node


def _pieces(node: "Node") -> tuple[list[Piece], bool]:
    """Return what one part of a word contributes, and whether it may become several words."""
    text = _text(node)
    match node.type:
        case "word" | "number" | "variable_name":
            return _unescaped(text), False
        case "raw_string":
            return [text[1:-1]], False
        case "ansi_c_string":
            return ([text[2:-1]] if "\\" not in text else [Gap.ANYTHING]), False
        case "string" | "translated_string":
            return _quoted(node), False
        case _:
            return [Gap.ANYTHING], True


def _unescaped(text: str) -> list[Piece]:
    pieces: list[Piece] = []
    for part in _GLOB.split(text):
        if part.startswith("\\"):
            pieces.append(_PLAIN_ESCAPE.sub(r"\1", part))
        elif part in ("*", "?", "["):
            pieces.append(Gap.NAMES if part != "[" else part)
        elif part:
            pieces.append(part)
    return pieces or [""]


def _quoted(node: "Node") -> list[Piece]:
    """Return the pieces of a text in double quotes; what lies between the nodes is text, too."""
    pieces: list[Piece] = []
    position = None
    data = node.text or b""
    for child in node.children:
        start, end = child.start_byte - node.start_byte, child.end_byte - node.start_byte
        if position is not None and start > position:
            pieces.append(_in_string(data[position:start]))
        position = end
        if child.type == "string_content":
            pieces.append(_in_string(data[start:end]))
        elif child.is_named:
            pieces.append(Gap.ANYTHING)
    return pieces or [""]


def _in_string(data: bytes) -> str:
    return _STRING_ESCAPE.sub(r"\1", data.decode("utf-8", "surrogateescape"))
