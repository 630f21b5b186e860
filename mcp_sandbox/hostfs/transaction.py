"""Changes to a tree of the host that happen all or not at all, as far as a file system allows.

What is to stand in the tree is complete first, in a stage: a directory of the same file system. Then each operation is
one rename, after which the stage holds exactly what stood there, so that nothing can come in between unseen: if that is
not what was expected, it goes back. If an operation fails, those before it are reverted; after a crash `revert_all`
does the same from the list of operations, since how far each one came can be seen. Blocks.
"""

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mcp_sandbox.core.errors import SandboxError, StateError
from mcp_sandbox.hostfs.host_tree import HostEntry, HostTree
from mcp_sandbox.hostfs.renaming import exchange, rename_new

__all__ = ["Act", "HalfDoneError", "Operation", "before_of", "carry_out", "half_done", "revert_all"]

_ASIDE: Final = ".aside"
_PATH: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Act(StrEnum):
    """What is done at one path. Each one is undone by another one, or by itself."""

    SWAP = "swap"
    """A file or link takes the place of another one, which goes to the stage."""
    PLACE = "place"
    """A file or link goes from the stage to where nothing is."""
    TAKE = "take"
    """A file or link goes to the stage."""
    MAKE = "make"
    """An empty directory is made."""
    CLEAR = "clear"
    """An empty directory is removed."""
    MODE = "mode"
    """Permission bits are set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step."""

    act: Act
    path: str
    slot: str = ""
    """Name in the stage."""
    staged_inode: int = 0
    """Of what is in the stage before `SWAP` and `PLACE`."""
    staged_bytes: int = -1
    staged_modified_ns: int = 0
    """With its size: whether somebody wrote to it since then. A size of -1 is not known."""
    before: HostEntry | None = None
    """What must be there."""
    mode: int = 0
    uid: int = -1
    gid: int = -1


class HalfDoneError(StateError):
    """It failed, and so did putting back: the stage has what is missing, and is to stay."""

    code = "half_done"


def carry_out(tree: HostTree, stage: int, operations: Sequence[Operation]) -> None:
    """Do everything in this order, or nothing.

    Args:
        tree: The tree.
        stage: A descriptor of the stage.
        operations: What to do.

    Raises:
        StateError: Something was not as expected; everything was put back.
        OSError: The file system refused; everything was put back.
        HalfDoneError: Not everything could be put back; says what.
    """
    for count, operation in enumerate(operations):
        try:
            _perform(tree, stage, operation)
        except BaseException as error:
            left = revert_all(tree, stage, operations[: count + 1])
            if left:
                raise half_done(left) from error
            raise


def before_of(operations: Sequence[Operation]) -> "dict[str, HostEntry | None]":
    """Return what was there before operations, by path."""
    before: dict[str, HostEntry | None] = {}
    for operation in operations:
        before.setdefault(operation.path, operation.before)
    return before


def revert_all(tree: HostTree, stage: int, operations: Sequence[Operation]) -> list[str]:
    """Put back what was done of operations, from the last to the first; return paths where that cannot be done."""
    left: list[str] = []
    for operation in reversed(operations):
        try:
            _revert(tree, stage, operation)
        except (OSError, SandboxError):
            left.append(operation.path)
    return left


def _changed_meanwhile(path: str) -> StateError:
    return StateError(
        "Nothing applied", why=f"{path!r} was changed in the project at the same moment", fix="Look again, then retry"
    )


def half_done(paths: Sequence[str]) -> HalfDoneError:
    """Return the error for paths that could not be put back."""
    named = ", ".join(repr(path) for path in paths[:5])
    return HalfDoneError(
        "Applied in part", why=f"it failed, and so did putting back {named}",
        fix="What stood there is in the directory .mcp-sandbox-apply-* of the project: put it back by hand",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- forwards


def _perform(tree: HostTree, stage: int, operation: Operation) -> None:
    with tree.parent(operation.path) as (directory, name):
        match operation.act:
            case Act.SWAP:
                _swap(stage, operation, directory, name)
            case Act.PLACE:
                rename_new(operation.slot, stage, name, directory)
            case Act.TAKE:
                os.rename(name, operation.slot, src_dir_fd=directory, dst_dir_fd=stage)
                _require_expected(stage, operation.slot, operation)
            case Act.MAKE:
                _make(operation, directory, name)
            case Act.CLEAR:
                os.rmdir(name, dir_fd=directory)
            case Act.MODE:
                _set_mode(operation, operation.mode, directory, name)


def _swap(stage: int, operation: Operation, directory: int, name: str) -> None:
    if not exchange(operation.slot, stage, name, directory):
        # A moment without the file, on file systems that cannot exchange names (NFS).
        aside = f"{operation.slot}{_ASIDE}"
        os.rename(name, aside, src_dir_fd=directory, dst_dir_fd=stage)
        _require_expected(stage, aside, operation)
        rename_new(operation.slot, stage, name, directory)
        os.rename(aside, operation.slot, src_dir_fd=stage, dst_dir_fd=stage)
    _require_expected(stage, operation.slot, operation)


def _require_expected(stage: int, slot: str, operation: Operation) -> None:
    found = _look(stage, slot)
    if found is None or not found.is_same_content(operation.before):
        raise _changed_meanwhile(operation.path)


def _make(operation: Operation, directory: int, name: str) -> None:
    os.mkdir(name, 0o700, dir_fd=directory)
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        if operation.uid >= 0:
            os.fchown(descriptor, operation.uid, operation.gid)
        inherited = os.fstat(descriptor).st_mode & stat.S_ISGID
        os.fchmod(descriptor, operation.mode | inherited)
    finally:
        os.close(descriptor)


def _set_mode(operation: Operation, mode: int, directory: int, name: str) -> None:
    descriptor = os.open(name, _PATH, dir_fd=directory)
    try:
        found = HostEntry.of(os.fstat(descriptor))
        before = operation.before
        if before is not None and (found.type, found.inode) != (before.type, before.inode):
            raise _changed_meanwhile(operation.path)
        if not stat.S_ISLNK(found.type):
            os.chmod(f"/proc/self/fd/{descriptor}", mode)  # noqa: PTH101 (of a descriptor that may not be readable)
    finally:
        os.close(descriptor)


def _look(directory: int, name: str) -> HostEntry | None:
    try:
        return HostEntry.of(os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return None


# ---------------------------------------------------------------------------------------------- backwards


def _revert(tree: HostTree, stage: int, operation: Operation) -> None:
    """Put one path back as it was, if it is not so anyway."""
    if not _may_be_done(stage, operation):
        return
    gone = (FileNotFoundError, NotADirectoryError) if operation.act in (Act.MAKE, Act.MODE) else ()
    with suppress(*gone), tree.parent(operation.path) as (directory, name):
        match operation.act:
            case Act.SWAP:
                _revert_swap(stage, operation, directory, name)
            case Act.PLACE:
                _require_ours(operation, directory, name)
                os.rename(name, operation.slot, src_dir_fd=directory, dst_dir_fd=stage)
            case Act.TAKE:
                rename_new(operation.slot, stage, name, directory)
            case Act.MAKE:
                os.rmdir(name, dir_fd=directory)
            case Act.CLEAR:
                _make_again(operation, directory, name)
            case Act.MODE:
                if operation.before is not None:
                    with suppress(StateError):  # something else is there by now: it stays as it is
                        _set_mode(operation, operation.before.mode, directory, name)


def _may_be_done(stage: int, operation: Operation) -> bool:
    """Whether the stage shows that it was done, in part or whole; of what leaves nothing there nobody knows."""
    staged = _look(stage, operation.slot) if operation.slot else None
    match operation.act:
        case Act.SWAP:
            is_new = staged is not None and staged.inode == operation.staged_inode
            return not is_new or _look(stage, f"{operation.slot}{_ASIDE}") is not None
        case Act.PLACE:
            return staged is None
        case Act.TAKE:
            return staged is not None
        case _:
            return True


def _make_again(operation: Operation, directory: int, name: str) -> None:
    before = operation.before
    if before is not None and _look(directory, name) is None:
        uid, gid = (before.uid, before.gid) if os.geteuid() == 0 else (-1, -1)
        again = Operation(act=Act.MAKE, path=operation.path, mode=before.mode, uid=uid, gid=gid)
        _make(again, directory, name)


def _revert_swap(stage: int, operation: Operation, directory: int, name: str) -> None:
    aside = f"{operation.slot}{_ASIDE}"
    if _look(stage, aside) is not None:  # it ended in the middle of a swap in three steps
        if _look(directory, name) is not None:
            _require_ours(operation, directory, name)
            os.rename(name, operation.slot, src_dir_fd=directory, dst_dir_fd=stage)
        rename_new(aside, stage, name, directory)
        return
    found = _look(directory, name)
    if found is not None and found.is_same_content(operation.before):  # that is the old one: put back before
        return
    _require_ours(operation, directory, name)
    if not exchange(operation.slot, stage, name, directory):
        os.rename(operation.slot, name, src_dir_fd=stage, dst_dir_fd=directory)


def _require_ours(operation: Operation, directory: int, name: str) -> None:
    """Return if what is at the path is what the operation put there: something newer is not to be lost."""
    found = _look(directory, name)
    if found is None or found.inode != operation.staged_inode:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), name)
    ours = (operation.staged_bytes, operation.staged_modified_ns)
    if operation.staged_bytes >= 0 and (found.size_bytes, found.modified_ns) != ours:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), name)
