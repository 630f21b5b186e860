"""The way back of what came home last: what stood there before, in one transaction. Blocks."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from mcp_sandbox.core.errors import StateError
from mcp_sandbox.hostfs.host_tree import HostTree
from mcp_sandbox.hostfs.staging import Stage, new_stage_name
from mcp_sandbox.hostfs.transaction import Act, HalfDoneError, Operation, carry_out
from mcp_sandbox.service.paths import display
from mcp_sandbox.store.applied import AppliedRecord, AppliedStore

__all__ = ["undo_last"]

_NAMED: Final = 10


def undo_last(store: AppliedStore, record: AppliedRecord, project: str) -> tuple[str, ...]:
    """Put back everything that an apply changed, or nothing; return the paths. Hold the store's lock.

    Raises:
        StateError: Something of it changed since; names what.
        OSError: The file system refused.
    """
    with HostTree(Path(project)) as tree:
        _require_unchanged(tree, record)
        number = store.next_number()
        with Stage(tree, name := new_stage_name()) as stage:
            undoing = AppliedRecord(
                number=number, sandbox=record.sandbox, at=record.at, stage=name, operations=(), after={}, is_undo=True
            )
            try:
                undoing = replace(undoing, operations=tuple(_reversed(store, record, stage)))
                stage.sync()
                store.save(undoing)
                carry_out(tree, stage.descriptor, undoing.operations)
            except HalfDoneError:
                raise
            except BaseException:
                store.remove(undoing)
                stage.remove()
                raise
            store.remove(undoing)
            store.remove(record)
            stage.remove()
    return tuple(sorted(record.after))


def _require_unchanged(tree: HostTree, record: AppliedRecord) -> None:
    changed: list[str] = []
    made = {operation.path for operation in record.operations if operation.act is Act.MAKE}
    for path, entry in sorted(record.after.items()):
        found = tree.look(path)
        if found is None or entry is None or not entry.is_directory:
            if found is not entry and not (found and found.is_same_content(entry)):
                changed.append(f"{display(path)} {'was deleted' if found is None else 'changed'}")
        elif not found.is_directory:
            changed.append(f"{display(path)} is no directory any more")
        elif path in made and (others := [name for name in tree.names(path) if f"{path}/{name}" not in record.after]):
            changed.append(f"{display(path)} holds {others[0]!r}, which did not come from the sandbox")
    if changed:
        raise StateError(
            "Nothing undone", why="the project changed since then: " + ", ".join(changed[:_NAMED]),
            fix="Put back what you need by hand, or from version control",
        )  # fmt: skip


def _reversed(store: AppliedStore, record: AppliedRecord, stage: Stage) -> "Sequence[Operation]":
    operations: list[Operation] = []
    for done in reversed(record.operations):
        now, before = record.after.get(done.path), done.before
        plain = replace(done, before=now)
        match done.act:
            case Act.SWAP | Act.TAKE:
                assert before is not None
                staged = stage.bring_back(store.old(record) / done.slot, before)
                act = Act.SWAP if done.act is Act.SWAP else Act.PLACE
                operations.append(
                    replace(
                        plain, act=act, staged_inode=staged.inode, staged_bytes=staged.size_bytes,
                        staged_modified_ns=staged.modified_ns,
                    )
                )  # fmt: skip
            case Act.PLACE:
                operations.append(replace(plain, act=Act.TAKE, staged_inode=0))
            case Act.MAKE:
                operations.append(replace(plain, act=Act.CLEAR))
            case Act.CLEAR:
                assert before is not None
                uid, gid = (before.uid, before.gid) if os.geteuid() == 0 else (-1, -1)
                operations.append(Operation(act=Act.MAKE, path=done.path, mode=before.mode & 0o777, uid=uid, gid=gid))
            case Act.MODE:
                if before is not None:
                    operations.append(replace(plain, mode=before.mode))
    return operations
