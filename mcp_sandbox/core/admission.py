"""The check that every provider makes before it creates anything: can the engine enforce what the spec asks for?"""

from dataclasses import fields

from mcp_sandbox.core.capability import Capabilities
from mcp_sandbox.core.errors import UnsupportedError
from mcp_sandbox.core.sandbox import Limits, SandboxSpec

__all__ = ["require_enforceable"]


def require_enforceable(provider: str, capabilities: Capabilities, spec: SandboxSpec) -> None:
    """Refuse a spec that asks for a network mode or a limit that the engine cannot enforce.

    Raises:
        UnsupportedError: Names the field, and what would be accepted.
    """
    if spec.network not in capabilities.network:
        raise UnsupportedError(
            f"Network mode {spec.network.value!r} refused",
            why=f"provider {provider!r} enforces only {', '.join(sorted(capabilities.network))}",
            fix="Ask for a mode it enforces, or use another provider",
        )
    for limit in fields(Limits):
        asked = getattr(spec.limits, limit.name)
        if asked is not None and limit.name not in capabilities.limits:
            raise UnsupportedError(
                f"Limit {limit.name} = {asked} refused",
                why=f"provider {provider!r} enforces only {', '.join(sorted(capabilities.limits)) or 'no limits'}",
                fix=f"Leave {limit.name!r} out, or use another provider",
            )
