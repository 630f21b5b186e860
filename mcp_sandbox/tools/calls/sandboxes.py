"""What `sandbox_create`, `sandbox_fork`, `sandbox_list` and `sandbox_destroy` do."""

from collections.abc import Iterable, Sequence
from typing import Any

from mcp_sandbox.core.sandbox import SandboxState
from mcp_sandbox.service.forking import fork
from mcp_sandbox.service.limits import own_limits
from mcp_sandbox.service.ports import ExposedPort
from mcp_sandbox.service.quantities import seconds_of
from mcp_sandbox.service.sandboxes import LiveSandbox, SandboxSummary
from mcp_sandbox.tools.call import Answer, Call

__all__ = ["sandbox_create", "sandbox_destroy", "sandbox_fork", "sandbox_list"]

_MOST_LISTED = 100
_SHORT = 12


async def sandbox_create(call: Call) -> Answer:
    """Create sandboxes."""
    arguments = call.arguments
    made = await call.services.sandboxes.create(
        name=arguments.get("name", ""),
        provider=arguments.get("provider", ""),
        image=arguments.get("image", ""),
        from_snapshot=arguments.get("from_snapshot", ""),
        count=arguments["count"],
    )
    facts = [_created(live) for live in made]
    return Answer(text="\n".join([*map(_line, facts), _use(facts)]), structured={"sandboxes": facts})


async def sandbox_fork(call: Call) -> Answer:
    """Fork a sandbox."""
    arguments = call.arguments
    forks = await fork(
        call.services.sandboxes,
        arguments.get("sandbox", ""),
        count=arguments["count"],
        name=arguments.get("name", ""),
    )
    source, facts = forks.source, [_created(live) for live in forks.made]
    how = f"Forked from {source.record.id}" + (
        f", whose commands stood still for {forks.paused_s:.3f} s and go on." if forks.paused_s else "."
    )
    told = {"notices": list(source.notices)} if source.notices else {}
    return Answer(
        text="\n".join([*source.notices, *map(_line, facts), how, _use(facts)]),
        structured={"sandboxes": facts, "source": source.record.id, "paused_s": round(forks.paused_s, 4), **told},
    )


def _use(facts: list[dict[str, Any]]) -> str:
    return (
        f"Use it with sandbox={(facts[0]['name'] or facts[0]['id'])!r}." if len(facts) == 1 else "Use each by its id."
    )


async def sandbox_list(call: Call) -> Answer:
    """List the project's sandboxes."""
    summaries = list(await call.services.sandboxes.list())
    facts = [_listed(summary, call.services.ports.of(summary.record.id)) for summary in summaries[-_MOST_LISTED:]]
    if not facts:
        text = "No sandboxes yet. The project's own is made as soon as a tool uses it."
    else:
        left_out = len(summaries) - len(facts)
        lines = [_line(fact) for fact in facts] + [f"({left_out} older ones are not shown)"] * (left_out > 0)
        text = "\n".join([*lines, *sorted({summary.detail for summary in summaries if summary.detail})])
    return Answer(text=text, structured={"sandboxes": facts, "total": len(summaries)})


async def sandbox_destroy(call: Call) -> Answer:
    """Destroy a sandbox."""
    record = await call.services.sandboxes.destroy(call.arguments["sandbox"])
    await call.services.ports.forget(record.id)
    kept = "Its snapshots stay" + ("; the next use of a tool makes a new one" if record.is_default else "")
    return Answer(
        text=f"Destroyed {_line({'id': record.id, 'name': record.name})}. {kept}.",
        structured={"id": record.id, "name": record.name},
    )


def _created(live: LiveSandbox) -> dict[str, Any]:
    record = live.record
    return {
        "id": record.id,
        "name": record.name,
        "provider": record.provider,
        **({"image": record.image} if record.image else {}),
        "snapshot": (record.parent or "")[:_SHORT],
    }


def _listed(summary: SandboxSummary, ports: Sequence[ExposedPort]) -> dict[str, Any]:
    record = summary.record
    return {
        "id": record.id,
        "name": record.name,
        "default": summary.is_current,
        "provider": record.provider,
        **({"image": record.image} if record.image else {}),
        **({"runtime": summary.runtime} if summary.runtime else {}),
        "state": (summary.state or "unknown") if summary.state is not SandboxState.GONE else "gone",
        "created_at": seconds_of(record.created_at),
        "last_used_at": seconds_of(record.last_used_at),
        "snapshot": (record.parent or "")[:_SHORT],
        "limits": own_limits(record.limits) + " (best effort)" * record.best_effort,
        "ports": ", ".join(f"{exposed.port} as {exposed.url}" for exposed in ports),
    }


def _line(fact: dict[str, Any]) -> str:
    return " ".join(_words(fact))


def _words(fact: dict[str, Any]) -> Iterable[str]:
    for name, value in fact.items():
        if name == "id":
            yield value
        elif value is True:
            yield f"({name})"
        elif value not in ("", False):
            yield f"{name}={value}"
