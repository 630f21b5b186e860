"""Words of a command line as they are known before it runs: literal text, and gaps that only running fills."""

import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

__all__ = ["Gap", "Piece", "Word", "literal"]


class Gap(Enum):
    """What only running fills."""

    ANYTHING = ".*"
    """An expansion."""
    NAMES = "[^/]*"
    """A glob: a part of a file's name."""


Piece = str | Gap


@dataclass(frozen=True)
class Word:
    """One word."""

    pieces: tuple[Piece, ...]
    splits: bool = False
    """Whether it may become several words, or none: an expansion without quotes."""

    @cached_property
    def text(self) -> str | None:
        """What it is, if that is known."""
        return "".join(map(str, self.pieces)) if all(isinstance(piece, str) for piece in self.pieces) else None

    @cached_property
    def shown(self) -> str:
        """How a message shows it."""
        return "".join(piece if isinstance(piece, str) else "…" for piece in self.pieces)

    def could_be(self, text: str) -> bool:
        """Whether running may make it this text, or the first of its words this one."""
        return self._pattern.fullmatch(text) is not None

    @cached_property
    def name(self) -> "Word":
        """The last part of a path, which is how programs are called."""
        for place in range(len(self.pieces) - 1, -1, -1):
            piece = self.pieces[place]
            if isinstance(piece, str) and "/" in piece:
                return Word((piece.rpartition("/")[2], *self.pieces[place + 1 :]), self.splits)
        return self

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pieces = self.pieces
        if self.splits and Gap.ANYTHING in pieces:
            pieces = pieces[: pieces.index(Gap.ANYTHING) + 1]
        known = [piece for piece in pieces if piece]  # two gaps in a row are one: the search for both never ends
        once = [
            piece for place, piece in enumerate(known)
            if isinstance(piece, str) or not place or piece is not known[place - 1]
        ]  # fmt: skip
        parts = (piece.value if isinstance(piece, Gap) else re.escape(piece) for piece in once)
        return re.compile("".join(parts), re.DOTALL)


def literal(text: str) -> Word:
    """Return a word that is exactly this."""
    return Word((text,))
