"""What changed between two stacks of layers, found by the guest agent's role `compare` without mounting anything."""

import asyncio
import os
import secrets
import shutil
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from mcp_sandbox.core.differences import Change, Differences, Side
from mcp_sandbox.core.errors import ProviderError, UnsupportedError
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.engines.embedded import EmbeddedEngine
from mcp_sandbox.engines.image_store import is_image
from mcp_sandbox.engines.layer_store import BEING_MADE, VOLUMES, StoredSnapshot
from mcp_sandbox.engines.masking import fill_mask

__all__ = ["compare_layers"]

OUTPUT_BYTES: Final = 16 << 20
TEXTS_BYTES: Final = 8 << 20
RECORD: Final = struct.Struct("<BBBBIIQQIII")
_CONTENT, _OWNER, _TEXT, _UNSEEN = 1, 4, 8, 16
_KINDS: Final = {
    "f": FileKind.FILE,
    "d": FileKind.DIRECTORY,
    "l": FileKind.SYMLINK,
    "p": FileKind.FIFO,
    "c": FileKind.DEVICE,
}


async def compare_layers(
    engine: EmbeddedEngine,
    before: StoredSnapshot,
    after: StoredSnapshot,
    *,
    paths: Sequence[str],
    limit: int,
    text_bytes: int,
    exact: bool = False,
) -> Differences:
    """Compare two stacks. Whoever calls keeps their layers from being collected.

    Raises:
        UnsupportedError: Only one of them has a /usr of its own.
    """
    if is_image(before.base) != is_image(after.base):
        raise UnsupportedError(
            "Nothing compared", why="one state started from an image, the other one from the host's programs",
            fix="Compare states that started alike",
        )  # fmt: skip
    identity = engine.identity
    arguments = [
        engine.marks, str(limit), str(OUTPUT_BYTES), str(text_bytes), str(TEXTS_BYTES if text_bytes else 0),
        str(identity.start), str(identity.count), str(int(exact)),
    ]  # fmt: skip
    masks = await asyncio.to_thread(_masks, engine, (before, after))
    for volume, target in VOLUMES.items():
        arguments.append(target)
        for stack in (before, after):
            layers = _layers(engine, stack, volume, masks.get((stack.project, stack.denied)))
            arguments += [str(len(layers)), *layers]
    asked = sorted({os.fsencode(path.rstrip("/") or "/") for path in paths})
    try:
        output = await engine.launcher.run("compare", *arguments, data=b"".join(path + b"\0" for path in asked))
    finally:
        for mask in masks.values():
            shutil.rmtree(engine.store.root / mask, ignore_errors=True)
    changes: list[Change] = []
    unseen: set[str] = set()
    complete = False
    for found in _parsed(output):
        if isinstance(found, Change):
            changes.append(found)
        elif isinstance(found, str):
            unseen.add(found)
        else:
            complete = True
    changes.sort(key=lambda change: change.path)
    return Differences(changes=tuple(changes), truncated=not complete, exact=exact, unseen=tuple(sorted(unseen)))


def _masks(engine: EmbeddedEngine, stacks: Sequence[StoredSnapshot]) -> "dict[tuple[str | None, tuple[str, ...]], str]":
    """Make a layer for what each stack must not show of its project, which is compared, too. Blocks."""
    made: dict[tuple[str | None, tuple[str, ...]], str] = {}
    for stack in stacks:
        key = (stack.project, stack.denied)
        if stack.project and stack.denied and key not in made:
            made[key] = f"trash/{BEING_MADE}{secrets.token_hex(8)}"
            fill_mask(engine.store.root / made[key], stack.project, stack.denied, engine.identity)
    return made


def _layers(engine: EmbeddedEngine, stack: StoredSnapshot, volume: str, mask: str | None) -> list[str]:
    """Return the layers of a volume from the top, each with where its owners come from."""
    layers = [f"llayers/{layer}/{volume}" for layer in reversed(stack.layers)]
    base = f"bbase/{stack.base}"
    if volume == "usr":
        return layers if is_image(stack.base) else [*layers, f"{base}/usr", "r/usr"]
    if volume == "workspace":
        layers += [f"l{mask}"] if mask else []
        return [*layers, f"r{stack.project}" if stack.project else f"{base}/root/workspace"]
    return [*layers, f"{base}/root"]


def _parsed(data: bytes) -> Iterator[Change | str | None]:
    """Yield the changes, paths that could not be looked at, and `None` at the end if that is all there is."""
    at = 0
    while at + RECORD.size <= len(data):
        old, new, what, _, old_mode, new_mode, old_size, new_size, *lengths = RECORD.unpack_from(data, at)
        at += RECORD.size
        if not old and not new and what != _UNSEEN:
            if not what:
                yield None
            return
        pieces: list[bytes] = []
        for length in lengths:
            pieces.append(data[at : at + length])
            at += length
        path = pieces[0].decode("utf-8", "surrogateescape")
        if what == _UNSEEN:
            yield path
            continue
        texts = pieces[1:] if what & _TEXT else [None, None]
        yield Change(
            path=path,
            before=_side(old, old_mode, old_size, texts[0]),
            after=_side(new, new_mode, new_size, texts[1]),
            content_differs=bool(what & _CONTENT),
            owner_differs=bool(what & _OWNER),
        )
    raise ProviderError("Nothing compared", why="the comparison broke off", fix="Check the disk, then try again")


def _side(kind: int, mode: int, size: int, text: bytes | None) -> Side | None:
    if not kind:
        return None
    found = _KINDS[chr(kind)]
    has_text = found in (FileKind.FILE, FileKind.SYMLINK)
    return Side(kind=found, mode=mode, size_bytes=size, text=text if has_text else None)
