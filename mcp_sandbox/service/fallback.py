"""Another provider where the one that is asked for cannot be used: only if the operator said which, and always told."""

from collections.abc import Sequence
from dataclasses import dataclass

from mcp_sandbox.core.errors import ConfigError, ProviderUnavailableError
from mcp_sandbox.service.opened import OpenProviders

__all__ = ["Chosen", "first_usable"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A provider, and what to say about it."""

    name: str
    notices: tuple[str, ...] = ()


async def first_usable(providers: OpenProviders, names: Sequence[str]) -> Chosen:
    """Return the first provider that can be opened; the first of all if none can, whose use then says why.

    Args:
        providers: Where they are opened.
        names: In the order of preference.
    """
    failed: list[str] = []
    for name in names:
        try:
            provider = await providers.get(name)
        except (ConfigError, ProviderUnavailableError) as error:
            failed.append(f"provider {name!r} cannot be used ({error.why})")
            continue
        if not failed:
            return Chosen(name)
        isolation = provider.capabilities.isolation.name.lower()
        return Chosen(name, (f"{'; '.join(failed)}. New sandboxes run on {name!r} (isolation: {isolation}) instead",))
    return Chosen(names[0])
