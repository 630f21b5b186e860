"""What changed between two trees."""

from itertools import islice

from mcp_sandbox.core.differences import Change, Differences, DiffRequest, Side
from mcp_sandbox.core.files import FileKind
from mcp_sandbox.providers.memory.tree import Node, Tree

__all__ = ["compare_trees"]


def compare_trees(before: Tree, after: Tree, request: DiffRequest) -> Differences:
    """Return every path below those asked for that is not in both trees alike."""
    old, new = ({"/": tree.root, **dict(tree.walk("/", 1 << 30))} for tree in (before, after))
    found = (
        _change(path, old.get(path), new.get(path), request.text_bytes)
        for path in sorted(old.keys() | new.keys())
        if _is_asked_for(path, request.paths)
    )
    changes = tuple(islice((change for change in found if change is not None), request.limit + 1))
    return Differences(changes=changes[: request.limit], truncated=len(changes) > request.limit)


def _is_asked_for(path: str, asked: tuple[str, ...]) -> bool:
    return not asked or any(f"{path}/".startswith(f"{each.rstrip('/')}/") for each in asked)


def _change(path: str, old: Node | None, new: Node | None, text_bytes: int) -> Change | None:
    before, after = _side(old, text_bytes), _side(new, text_bytes)
    content = old is None or new is None or (old.kind, old.data, old.target) != (new.kind, new.data, new.target)
    if not content and old is not None and new is not None and old.mode == new.mode:
        return None
    return Change(path=path, before=before, after=after, content_differs=content)


def _side(node: Node | None, text_bytes: int) -> Side | None:
    if node is None:
        return None
    size = 0 if node.kind is FileKind.DIRECTORY else node.size_bytes
    text = {FileKind.FILE: node.data, FileKind.SYMLINK: node.target.encode("utf-8", "surrogateescape")}.get(node.kind)
    shown = text if text_bytes > 0 and size <= text_bytes else None
    return Side(kind=node.kind, mode=node.mode, size_bytes=size, text=shown)
