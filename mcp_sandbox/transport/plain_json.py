"""JSON for the first messages of a connection, without `json`, whose import costs almost as much as the interpreter.

`parse` takes the JSON that clients send when they begin and refuses the rest of it, right or wrong, with `ValueError`:
whoever gets that leaves the message to a real parser. What it takes, it reads as every parser does.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["dump", "parse"]

_MOST_DEPTH = 32
_MOST_DIGITS = 15
_SPACE = " \t\n\r"
_WORDS = (("true", True), ("false", False), ("null", None))
_UNESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPED = {code: f"\\u{code:04x}" for code in range(32)} | {
    ord(character): f"\\{letter}" for letter, character in _UNESCAPED.items() if letter != "/"
}


def dump(value: "Any") -> str:
    """Return a value of dicts, lists, strings, integers, booleans and None as compact JSON."""
    kind: object = value.__class__
    if kind is str:
        return f'"{value.translate(_ESCAPED)}"'
    if kind is dict:
        return f"{{{','.join([f'{dump(name)}:{dump(field)}' for name, field in value.items()])}}}"
    if kind is list or kind is tuple:
        return f"[{','.join([dump(item) for item in value])}]"
    if kind is int:
        return str(value)
    for word, constant in _WORDS:
        if value is constant:
            return word
    raise TypeError(f"no plain JSON: {type(value).__name__}")


def parse(line: bytes) -> "Any":
    """Return the value that a line holds.

    Raises:
        ValueError: It is no JSON, or not as plain as clients write it: numbers other than integers below 10^15,
            surrogates, a name twice in one object, more than 32 levels.
    """
    parser = _Parser(line.decode())
    value = parser.value(0)
    if parser.next():
        raise ValueError("more than one value")
    return value


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def next(self) -> str:
        """Return the next character that is no space, empty at the end, without passing it."""
        while (character := self._text[self._at : self._at + 1]) and character in _SPACE:
            self._at += 1
        return character

    def value(self, depth: int) -> "Any":
        character = self.next()
        if depth > _MOST_DEPTH:
            raise ValueError("too deep")
        if character == '"':
            return self._string()
        if character == "{":
            return self._object(depth + 1)
        if character == "[":
            return self._array(depth + 1)
        for word, constant in _WORDS:
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return constant
        return self._integer()

    def _passed(self, character: str) -> bool:
        if self.next() != character:
            return False
        self._at += 1
        return True

    def _expect(self, character: str) -> None:
        if not self._passed(character):
            raise ValueError(f"no {character} at {self._at}")

    def _object(self, depth: int) -> "dict[str, Any]":
        fields: dict[str, Any] = {}
        self._expect("{")
        if self._passed("}"):
            return fields
        while True:
            self.next()
            name = self._string()
            self._expect(":")
            if name in fields:
                raise ValueError(f"{name!r} twice")
            fields[name] = self.value(depth)
            if not self._passed(","):
                self._expect("}")
                return fields

    def _array(self, depth: int) -> "list[Any]":
        items: list[Any] = []
        self._expect("[")
        if self._passed("]"):
            return items
        while True:
            items.append(self.value(depth))
            if not self._passed(","):
                self._expect("]")
                return items

    def _string(self) -> str:
        self._expect('"')
        parts: list[str] = []
        while True:
            quote = self._text.index('"', self._at)
            escape = self._text.find("\\", self._at, quote)
            end = quote if escape < 0 else escape
            part = self._text[self._at : end]
            if part and min(part) < " ":
                raise ValueError("a control character")
            parts.append(part)
            self._at = end + 1
            if escape < 0:
                return "".join(parts)
            parts.append(self._escaped())

    def _escaped(self) -> str:
        letter = self._text[self._at : self._at + 1]
        self._at += 1
        if letter != "u":
            if letter not in _UNESCAPED:
                raise ValueError("an unknown escape")
            return _UNESCAPED[letter]
        digits = self._text[self._at : self._at + 4]
        if len(digits) < 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise ValueError("a broken escape")
        self._at += 4
        code = int(digits, 16)
        if 0xD800 <= code <= 0xDFFF:
            raise ValueError("a surrogate")
        return chr(code)

    def _integer(self) -> int:
        start = self._at
        if self._text.startswith("-", start):
            self._at += 1
        first = self._at
        while self._text[self._at : self._at + 1] in tuple("0123456789"):
            self._at += 1
        digits = self._at - first
        if not 0 < digits <= _MOST_DIGITS or (self._text[first] == "0" and self._at - start > 1):
            raise ValueError(f"no value at {start}")
        return int(self._text[start : self._at])
