"""The check that every provider makes before it creates anything: can the engine enforce what the spec asks for?"""

from collections.abc import Mapping
from dataclasses import fields

from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.errors import UnsupportedError
from mcp_sandbox.core.sandbox import Limits, SandboxSpec, WorkspaceMode
from mcp_sandbox.core.wording import limit_option, limit_text, limit_word

__all__ = ["require_enforceable", "weak_limits"]


def require_enforceable(provider: str, capabilities: Capabilities, spec: SandboxSpec) -> None:
    """Refuse a spec that asks for a network mode or a limit that the engine cannot enforce.

    Raises:
        UnsupportedError: Names the field, why, and what would be accepted.
    """
    if spec.network not in capabilities.network:
        raise UnsupportedError(
            f"Network mode {spec.network.value!r} refused",
            why=f"provider {provider!r} enforces only {', '.join(sorted(capabilities.network))}",
            fix="Ask for a mode it enforces, or use another provider",
        )
    if (mode := spec.workspace.mode) not in capabilities.workspaces:
        raise UnsupportedError(
            f"Workspace mode {mode.value!r} refused",
            why=f"provider {provider!r} can do only {', '.join(sorted(capabilities.workspaces))}",
            fix="Use one of them, or provider 'docker', which can do each of them",
        )
    if spec.denied and mode is not WorkspaceMode.EMPTY and mode not in capabilities.denies:
        can = ", ".join(sorted(capabilities.denies))
        raise UnsupportedError(
            f"capabilities.filesystem.denied refused: {', '.join(spec.denied)}",
            why=f"provider {provider!r} cannot keep them away from a workspace of mode {mode.value!r}",
            fix=f"Use workspace mode {can}" if can else "Move them out of the project, or use another provider",
        )
    if spec.runtime is not None and spec.runtime not in capabilities.runtimes:
        there = ", ".join(sorted(capabilities.runtimes))
        raise UnsupportedError(
            f"Runtime {spec.runtime!r} refused",
            why=f"the engine has {there}" if there else f"provider {provider!r} has no runtimes to choose from",
            fix="Use one of them, or install it and restart the engine" if there else "Leave it out, or use 'docker'",
        )
    for name, asked in _asked(spec.limits).items():
        gap = capabilities.unenforced.get(name)
        if name in capabilities.limits or (spec.best_effort and gap is not None):
            continue
        enforced = ", ".join(sorted(map(limit_word, capabilities.limits))) or "no limits"
        fix = f"Leave {limit_option(name)} out, or use another provider"
        raise UnsupportedError(
            f"Limit refused: {limit_text(name, asked)}",
            why=gap.why if gap else f"provider {provider!r} enforces only {enforced}",
            fix=f"{gap.fix}; or ask for best effort (--best-effort)" if gap else fix,
        )


def weak_limits(capabilities: Capabilities, limits: Limits) -> tuple[str, ...]:
    """Return a sentence for every limit that was asked for and is not enforced."""
    found: list[str] = []
    for name in _asked(limits):
        if name not in capabilities.limits:
            gap = capabilities.unenforced.get(name)
            instead = gap.instead if gap and gap.instead else "not limited at all"
            found.append(f"limit {limit_word(name)} is not enforced ({gap.why if gap else 'unknown here'}): {instead}")
    return tuple(found)


def _asked(limits: Limits) -> Mapping[str, float]:
    values = {field.name: getattr(limits, field.name) for field in fields(limits)}
    return {name: value for name, value in values.items() if value is not None}
