"""What a person would see of output that was written for a terminal: redraws applied, escapes gone.

Progress bars write one line a thousand times. A model should read it once.
"""

import re

__all__ = ["as_seen"]

_SPECIAL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_TOKEN = re.compile(
    # ECMA-48 5.4: control sequences, of which the last byte says what they do
    r"(?:\x1b\[|\x9b)(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~]?)"
    # OSC; one that nothing ends takes its line with it, as in a terminal, but not more
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c\x9d\n]*(?:\x07|\x1b\\|\x9c)?"
    # DCS, SOS, PM, APC: strings with an end, else only their introducer
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])(?:[^\x1b\x90\x98\x9c-\x9f]*(?:\x1b\\|\x9c))?"
    # escapes with intermediates (character sets) and of two characters
    r"|\x1b[ -/]*[0-~]?"
    r"|(?P<control>[\x00-\x08\x0b-\x1f\x7f-\x9f\n])"
)

_MOST_COLUMNS = 4_096
"""How far right a sequence can move the cursor; text itself may go further."""


def as_seen(text: str) -> str:
    """Return text without control characters other than newline and tab.

    Carriage returns, backspaces, cursor movements within what was written and erasures take effect; what else a
    terminal would do is left out. A remaining control character is shown as its Unicode picture.
    """
    text = text.replace("\r\n", "\n")
    if not _SPECIAL.search(text):
        return text
    screen = _Screen()
    position = 0
    for token in _TOKEN.finditer(text):
        if token.start() > position:
            screen.write(text[position : token.start()])
        position = token.end()
        if (final := token["final"]) is not None:
            screen.obey(final, token["parameters"])
        elif (control := token["control"]) is not None:
            screen.control(control)
    screen.write(text[position:])
    return screen.text()


class _Screen:
    """Lines without a limit in number or width, and a cursor."""

    def __init__(self) -> None:
        self._lines: list[list[str]] = [[]]
        self._row = 0
        self._column = 0

    def text(self) -> str:
        return "\n".join("".join(line) for line in self._lines)

    def write(self, text: str) -> None:
        if not text:
            return
        line = self._lines[self._row]
        if (gap := self._column - len(line)) > 0:
            line.extend(" " * gap)
        line[self._column : self._column + len(text)] = text
        self._column += len(text)

    def control(self, character: str) -> None:
        match character:
            case "\n":
                self._row += 1
                self._column = 0
                if self._row == len(self._lines):
                    self._lines.append([])
            case "\r":
                self._column = 0
            case "\b":
                self._column = max(0, self._column - 1)
            case "\a" | "\x0e" | "\x0f" | "\x7f":
                pass
            case _ if character < " ":
                self.write(chr(0x2400 + ord(character)))
            case _:
                pass

    def obey(self, final: str, parameters: str) -> None:
        first = parameters.partition(";")[0]
        count = min(int(first), _MOST_COLUMNS) if first.isascii() and first.isdecimal() and len(first) < 6 else 0
        match final:
            case "A" | "F":
                self._row = max(0, self._row - max(1, count))
            case "B" | "E":
                self._row = min(len(self._lines) - 1, self._row + max(1, count))
            case "C":
                self._column = min(self._column + max(1, count), max(_MOST_COLUMNS, self._column))
            case "D":
                self._column = max(0, self._column - max(1, count))
            case "G":
                self._column = max(0, count - 1)
            case "K":
                self._erase(count)
            case _:
                return
        if final in "EF":
            self._column = 0

    def _erase(self, what: int) -> None:
        line = self._lines[self._row]
        if what == 0:
            del line[self._column :]
        elif what == 1:
            line[: self._column] = " " * min(self._column, len(line))
        else:
            line.clear()
