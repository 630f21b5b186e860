"""What a shell script would run, read from its text and nothing else.

The grammar is tree-sitter's of bash. What only running tells is a gap in a word; what cannot be read at all is said to
be unclear. Nobody may take this for a boundary: it reads what an honest agent wrote.
"""

import re
import time
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
_PIECE_BYTES: Final = 4096
_READING_S: Final = 0.5
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_TORN: Final = re.compile(r"\S\\\n\S")
_WRITING: Final = frozenset({">", ">>", ">|", "&>", "&>>", ">&", "<>"})
_NO_FILE: Final = re.compile(r"/dev/(null|stdout|stderr|fd/[0-9]+|tty)")
_NO_FILE_OR_NUMBER: Final = re.compile(rf"[0-9]+-?|-|{_NO_FILE.pattern}")
_PLAIN_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_STRING_ESCAPE: Final = re.compile(r"\\([$`\"\\])")
_RESERVED: Final = frozenset("{ } ! if then else elif fi do done case esac while until for in select ]]".split())
_BARE: Final = frozenset({"word", "brace_expression", "number"})
_SUBSTITUTION: Final = re.compile(r"(?<!\\)(`|\$\()")
_LEAVES: Final = frozenset({"word", "regex", "heredoc_body", "heredoc_content"})
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
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > _MOST_BYTES:
        return Script((), frozenset(), (f"it is longer than {_MOST_BYTES:,} bytes",))
    unclear: list[str] = []
    if _CONTROL.search(text):
        unclear.append("it holds control characters")
    if _TORN.search(text):
        unclear.append("a line goes on in the middle of a word")
    root = _parsed(data)
    if root is None:
        return Script((), frozenset(), (f"reading it takes longer than {_READING_S:g} s",))
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
            case "declaration_command" | "unset_command":
                commands.append(SimpleCommand((literal("declare"),)))
                words = [child for child in node.named_children if child.type != "variable_assignment"]
                variables.update(map(_declared, words))
            case "variable_assignment":
                variables.add(_text(node.child_by_field_name("name")))
            case "for_statement":
                variables.add(_text(node.child_by_field_name("variable")))
            case "file_redirect":
                if (target := _written(node)) is not None:
                    commands.append(SimpleCommand((literal(REDIRECTION), target)))
            case "command_name" if node.parent is not None and node.parent.is_error:
                unclear.append(f"{_text(node)!r} is not understood")
            case _ if _hides_a_command(node):
                unclear.append("a substitution in it is not understood")
            case "word" if "\n" in _text(node):
                unclear.append("where a command of it ends is not understood")
            case _:
                pass
    return Script(tuple(commands), frozenset(variables), tuple(unclear))


def _own_text(node: "Node") -> str:
    """Return what of a node's text belongs to no part of it."""
    data, start = bytearray(node.text or b""), node.start_byte
    for child in node.named_children:
        data[child.start_byte - start : child.end_byte - start] = b" " * (child.end_byte - child.start_byte)
    return data.decode("utf-8", "surrogateescape")


def _declared(word: "Node") -> str:
    """Return the variable that an argument of `export` and the like sets; one that only running tells has a dot."""
    return _word(word).shown.partition("=")[0]


def _hides_a_command(node: "Node") -> bool:
    """Whether the grammar took a substitution for text: backquotes in `${a:-...}`, and any after `<<` and `<<-`."""
    if node.type == "command_substitution":
        return _text(node).startswith("`") and "\\`" in _text(node)
    if node.type not in _LEAVES or not _SUBSTITUTION.search(_own_text(node)):
        return False
    place = node if node.type == "heredoc_body" else node.parent
    start = place.prev_named_sibling if place is not None and place.type == "heredoc_body" else None
    while start is not None and start.type != "heredoc_start":
        start = start.prev_named_sibling
    return start is None or not re.search(r"['\"\\]", _text(start))


def _parsed(data: bytes) -> "Node | None":
    """Return the tree of a script, unless it takes too long: some nestings take the square of their length."""
    parser, until = _parser(), time.monotonic() + _READING_S

    def piece(offset: int, _: object) -> bytes:
        return data[offset : offset + _PIECE_BYTES]

    def is_late(_: int, __: bool) -> bool:
        return time.monotonic() > until

    try:  # only of what is read in pieces is progress told; whoever is called then lets other threads run
        return parser.parse(piece, progress_callback=is_late).root_node
    except ValueError:
        parser.reset()  # else the next script would be read from where this one was left
        return None


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
    parts = ([] if name is None else [name]) + node.children_by_field_name("argument") + _behind_redirections(node)
    for part in sorted(parts, key=lambda each: each.start_byte):
        if words and words[-1][-1].end_byte == part.start_byte:
            words[-1].append(part)
        else:
            words.append([part])
    return tuple(_word(*word) for word in words)


def _behind_redirections(node: "Node") -> "list[Node]":
    """Return the arguments of a command that the grammar takes for a second target of `>x` or `<<E`."""
    parent, found = node.parent, list["Node"]()
    if parent is None or parent.type != "redirected_statement":
        return found
    for redirection in parent.children_by_field_name("redirect"):
        found += redirection.children_by_field_name("destination")[1:]
        if redirection.type == "heredoc_redirect":
            found += redirection.children_by_field_name("argument")
    return found


def _written(node: "Node") -> Word | None:
    """Return the file that a redirection writes to, if it does."""
    if not any(child.type in _WRITING for child in node.children):
        return None
    target = node.child_by_field_name("destination")
    if target is None:
        return None
    word = _word(target)
    duplicates = any(child.type == ">&" for child in node.children)
    if word.text is not None and (_NO_FILE if not duplicates else _NO_FILE_OR_NUMBER).fullmatch(word.text):
        return None
    return word


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
            return _quoted(node), any("@" in _text(child) for child in node.children if "expansion" in child.type)
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
