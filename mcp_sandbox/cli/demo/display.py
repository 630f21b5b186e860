"""What a person sees of the demo: lines that stay and, on a terminal, one line at the bottom that moves."""

import os
import shutil
import textwrap
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, TextIO

import anyio

__all__ = ["Display", "duration", "is_lively"]

_WIDEST: Final = 88
_NARROWEST: Final = 40
_TOOL: Final = 17
_LABEL: Final = 13
_TIME: Final = 9
_MOST_LINES: Final = 6
_TICK_S: Final = 0.08
_BAR: Final = 20

_BOLD, _DIM, _RED, _GREEN, _CYAN = "1", "2", "31", "32", "36"
_ERASE_LINE: Final = "\r\x1b[K"
_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII: Final = str.maketrans({"│": "|", "✔": "+", "✘": "x", "…": "~"})


def is_lively(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a stream is a terminal that takes colours and a line that is drawn again and again."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM", "") not in ("", "dumb")


def duration(seconds: float) -> str:
    """Return a time with three digits: `1.25 ms`."""
    amount, unit = (seconds, "s") if seconds >= 1 else (seconds * 1000, "ms")
    return f"{amount:.0f} {unit}" if amount >= 99.95 else f"{amount:#.3g} {unit}"


class Display:
    """Writes to one stream.

    Args:
        stream: Where to.
        lively: Whether to use colours and a moving line.
        scenes: How many scenes there will be.
        quiet: Whether to show nothing that stays, but failures.
    """

    def __init__(self, stream: TextIO, *, lively: bool, scenes: int, quiet: bool = False) -> None:
        self._stream = stream
        self._lively = lively
        self._quiet = quiet
        self._scenes = scenes
        self._scene = 0
        self._doing = ""
        self._moving = False
        self._began_s = time.monotonic()
        self._unicode = _can_say(f"│✔✘…█░{_SPINNER}", stream)
        self._width = max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((80, 24)).columns - 1))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began_s

    @asynccontextmanager
    async def moving(self) -> AsyncGenerator[None]:
        """Keep the line at the bottom moving, and take it away in the end."""
        if not self._lively:
            yield
            return
        async with anyio.create_task_group() as tasks:
            self._moving = True
            tasks.start_soon(self._move)
            try:
                yield
            finally:
                self._moving = False
                tasks.cancel_scope.cancel()
                self._write(_ERASE_LINE)

    async def _move(self) -> None:
        while True:
            self._draw()
            await anyio.sleep(_TICK_S)

    def _draw(self) -> None:
        if not self._moving:
            return
        full, empty, turning = ("█", "░", _SPINNER) if self._unicode else ("#", ".", "-\\|/")
        done = round(_BAR * max(0, self._scene - 1) / self._scenes)
        turn = turning[int(self.elapsed_s / _TICK_S) % len(turning)]
        bar = self._styled(full * done, _GREEN) + self._styled(empty * (_BAR - done), _DIM)
        doing = _fitted(self._doing, self._width - _BAR - 14)
        self._write(f"{_ERASE_LINE} {self._styled(turn, _CYAN)} {bar} {self.elapsed_s:4.1f} s  {doing}")

    def doing(self, what: str) -> None:
        """Say in the moving line what is going on."""
        self._doing = what
        self._draw()

    def line(self, text: str = "") -> None:
        """Print a line that stays."""
        if not self._quiet:
            self._print(text)

    def title(self, name: str, rest: str) -> None:
        """Print the first line."""
        self.line(f"{self._styled(name, _BOLD)}  {rest}")

    def scene(self, title: str) -> None:
        """Begin a scene."""
        self._scene += 1
        self._doing = title
        self.line()
        self.line(self._styled(f"{self._scene:2}  {title}", _BOLD))

    def command(self, text: str) -> None:
        """Print a command line of the host, whole."""
        self.line(f"    $ {text}")

    def call(self, tool: str, what: str, taken_s: float) -> None:
        """Print a tool call and how long it took, at the client."""
        room = self._width - 5 - _TOOL - _TIME
        name = self._styled(tool.ljust(_TOOL), _CYAN)
        self.line(f"    {name}{_fitted(what, room).ljust(room)} {duration(taken_s):>{_TIME}}")

    def output(self, text: str) -> None:
        """Print what a tool answered."""
        lines = [line.expandtabs().rstrip() for line in text.rstrip().splitlines()]
        if len(lines) > _MOST_LINES:
            lines = [*lines[: _MOST_LINES - 1], f"… {len(lines) - _MOST_LINES + 1} more lines"]
        for shown in lines:
            self.line(self._styled(f"    │ {_fitted(shown, self._width - 6)}", _DIM))

    def note(self, text: str) -> None:
        """Print something beside the point, on as many lines as it needs."""
        for part in textwrap.wrap(text, self._width - 4):
            self.line(self._styled(f"    {part}", _DIM))

    def proof(self, text: str) -> None:
        """Print what was checked and held."""
        self._marked(self._styled("✔", _GREEN), text)

    def fact(self, label: str, text: str) -> None:
        """Print something that was found out."""
        name = self._styled(label.ljust(_LABEL), _CYAN)
        self.line(f"    {name} {_fitted(text, self._width - 5 - _LABEL)}")

    def failure(self, text: str) -> None:
        """Print what went wrong, also where nothing else is shown."""
        self._quiet = False
        self._marked(self._styled("✘", _RED), text)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int]) -> None:
        """Print aligned columns; those whose numbers are in `right` end at the same place."""
        widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
        for number, row in enumerate([header, *rows]):
            cells = [
                cell.rjust(width) if column in right else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            text = "  ".join(cells).rstrip()
            self.line(f"    {text if number else self._styled(text, _DIM)}")

    def _marked(self, mark: str, text: str) -> None:
        for number, part in enumerate(textwrap.wrap(text, self._width - 6) or [""]):
            self.line(f"    {' ' if number else mark} {part}")

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._lively and text else text

    def _print(self, text: str) -> None:
        said = text if self._unicode else text.translate(_ASCII)
        self._write(f"{_ERASE_LINE if self._moving else ''}{said}\n")
        self._draw()

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _can_say(characters: str, stream: TextIO) -> bool:
    try:
        characters.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return os.environ.get("TERM") != "linux"  # the font of the console has no such characters


def _fitted(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
