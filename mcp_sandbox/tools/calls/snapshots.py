"""What `snapshot_create`, `snapshot_list`, `snapshot_restore` and `snapshot_delete` do."""

from collections.abc import Sequence
from typing import Any

from mcp_sandbox.core.capability import Facet
from mcp_sandbox.core.snapshot import Snapshot
from mcp_sandbox.service.paths import display
from mcp_sandbox.service.quantities import seconds_of, size
from mcp_sandbox.service.sandboxes import LiveSandbox
from mcp_sandbox.service.snapshots import Branch
from mcp_sandbox.tools.call import Answer, Call

__all__ = ["snapshot_create", "snapshot_delete", "snapshot_list", "snapshot_restore"]

_MOST_LISTED = 100
_MOST_NAMED = 10
_SHORT = 12
_NOTE_CHARACTERS = 100
_ENDED = "Commands that ran in it were ended."
_RESUMED = (
    "Commands that ran in it were ended; what ran when the snapshot was taken goes on from there, "
    "but its output is not followed."
)


async def snapshot_create(call: Call) -> Answer:
    """Take a snapshot."""
    taken = await call.services.snapshots.create(call.arguments.get("sandbox", ""), call.arguments.get("note", ""))
    snapshot, native = taken.snapshot, taken.snapshot.native
    facts = _facts(snapshot, native.size_bytes)
    facts |= {"id": snapshot.id, "paused_s": round(native.paused_s, 4), **_told(taken.sandbox)}
    words = [snapshot.id, f"sandbox={snapshot.sandbox}", *_size(native.size_bytes)]
    if native.paused_s:
        words.append(f"paused={native.paused_s:.3f}s")
    if native.method:
        words.append(f"method={native.method!r}")
    lines = [*taken.sandbox.notices, " ".join(words)]
    if Facet.MEMORY in native.holds:
        lines.append("It holds every file, and memory and processes as they ran.")
    else:
        lines.append("It holds every file, not the running processes.")
    lines.append(f'Go back with `{call.prefix}snapshot_restore`, snapshot="{snapshot.id[:_SHORT]}".')
    return Answer(text="\n".join(lines), structured=facts)


async def snapshot_list(call: Call) -> Answer:
    """List snapshots."""
    branches = await call.services.snapshots.list(call.arguments.get("sandbox", ""))
    shown = await call.services.snapshots.measured(_newest(branches))
    if not shown:
        return Answer(
            text=f"No snapshots yet. `{call.prefix}snapshot_create` takes one.",
            structured={"snapshots": [], "total": 0},
        )
    lines = [_line(branch) for branch in shown]
    if len(shown) < len(branches):
        lines.append(f"({len(branches) - len(shown)} older ones are not shown)")
    return Answer(
        text="\n".join(lines),
        structured={
            "snapshots": [{**_facts(branch.snapshot, branch.size_bytes), "here": branch.is_here} for branch in shown],
            "total": len(branches),
        },
    )


async def snapshot_restore(call: Call) -> Answer:
    """Put a sandbox back."""
    restored = await call.services.snapshots.restore(
        call.arguments["snapshot"], call.arguments.get("sandbox", ""), call.arguments.get("paths", [])
    )
    done, undo = restored.snapshot.id[:_SHORT], restored.before.id[:_SHORT]
    named = [display(path) for path in restored.paths[:_MOST_NAMED]]
    if len(restored.paths) > _MOST_NAMED:
        named.append(f"{len(restored.paths) - _MOST_NAMED} more paths")
    lines = [
        *restored.sandbox.notices,
        f"Restored {', '.join(named) or 'everything'} in sandbox {restored.sandbox.record.id} to snapshot {done}.",
        *[_ENDED if Facet.MEMORY not in restored.snapshot.native.holds else _RESUMED] * (not restored.paths),
        f'What was there before is snapshot {undo}: undo with `{call.prefix}snapshot_restore`, snapshot="{undo}".',
    ]
    return Answer(
        text="\n".join(lines),
        structured={
            "sandbox": restored.sandbox.record.id,
            "snapshot": done,
            "before": undo,
            "paths": list(restored.paths),
            **_told(restored.sandbox),
        },
    )


async def snapshot_delete(call: Call) -> Answer:
    """Delete a snapshot."""
    snapshot = await call.services.snapshots.delete(call.arguments["snapshot"])
    text = f"Deleted snapshot {snapshot.id[:_SHORT]} ({_note(snapshot)})."
    return Answer(text=text, structured=_facts(snapshot, snapshot.native.size_bytes))


def _told(live: LiveSandbox) -> dict[str, Any]:
    """Return the notices for clients that drop the text, if there are any."""
    return {"notices": list(live.notices)} if live.notices else {}


def _size(size_bytes: int | None) -> list[str]:
    return [] if size_bytes is None else [f"size={size(size_bytes)}"]


def _facts(snapshot: Snapshot, size_bytes: int | None) -> dict[str, Any]:
    facts = {
        "id": snapshot.id[:_SHORT],
        "sandbox": snapshot.sandbox[:_SHORT],
        "parent": (snapshot.parent or "")[:_SHORT],
        "created_at": seconds_of(snapshot.created_at),
        "note": snapshot.note,
    }
    return facts if size_bytes is None else {**facts, "size_bytes": size_bytes}


def _line(branch: Branch) -> str:
    snapshot = branch.snapshot
    words = [
        "  " * branch.depth + snapshot.id[:_SHORT],
        seconds_of(snapshot.created_at),
        f"sandbox={snapshot.sandbox[:_SHORT]}",
        *_size(branch.size_bytes),
        *[f"parent={(snapshot.parent or '')[:_SHORT]}"] * (snapshot.parent is not None),
        *["(here)"] * branch.is_here,
        _note(snapshot),
    ]
    return " ".join(words)


def _note(snapshot: Snapshot) -> str:
    note = display(" ".join(snapshot.note.split()) or "no note")
    return note if len(note) <= _NOTE_CHARACTERS else f"{note[: _NOTE_CHARACTERS - 3]}..."


def _newest(branches: Sequence[Branch]) -> Sequence[Branch]:
    if len(branches) <= _MOST_LISTED:
        return branches
    oldest = sorted(branch.snapshot.created_at for branch in branches)[-_MOST_LISTED]
    return [branch for branch in branches if branch.snapshot.created_at >= oldest]
