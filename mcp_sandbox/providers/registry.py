"""Provider names and where their classes live, as text: nothing is imported until a provider is used."""

import difflib
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, cast

from mcp_sandbox.core.errors import ConfigError, ProviderUnavailableError
from mcp_sandbox.core.provider import Provider

__all__ = ["BUILTIN", "ENTRY_POINT_GROUP", "Target", "find", "known", "load"]

ENTRY_POINT_GROUP: Final = "mcp_sandbox.providers"
"""Other packages add a provider under this group: `name = "package.module:Class"`."""


class Target(NamedTuple):
    """Where a provider class lives, and what to do when it cannot be imported."""

    module: str
    attribute: str
    hint: str
    """An imperative clause for the reader of the error."""


_REINSTALL: Final = "Install mcp-sandbox again: `pip install --force-reinstall mcp-sandbox`"

BUILTIN: Final[Mapping[str, Target]] = MappingProxyType(
    {
        "docker": Target("mcp_sandbox.providers.docker", "DockerProvider", _REINSTALL),
        "gvisor": Target("mcp_sandbox.providers.gvisor", "GvisorProvider", _REINSTALL),
        "local": Target("mcp_sandbox.providers.local", "LocalProvider", _REINSTALL),
        "memory": Target("mcp_sandbox.providers.memory", "MemoryProvider", _REINSTALL),
    }
)
"""The providers of this package, in alphabetical order."""


def known() -> Mapping[str, Target]:
    """Return every provider name of this installation. A name of ours cannot be taken over by another package."""
    from importlib.metadata import entry_points  # 15 ms that a provider of ours need not wait for

    found = dict(BUILTIN)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        package = point.dist.name if point.dist else point.module.partition(".")[0]
        found.setdefault(point.name, Target(point.module, point.attr, f"Install {package!r} again, with its extras"))
    return MappingProxyType(found)


def find(name: str) -> Target:
    """Return where a provider lives; nothing is imported.

    Raises:
        ConfigError: The name is unknown.
    """
    if (target := BUILTIN.get(name)) is None and (target := (targets := known()).get(name)) is None:
        offered = sorted(set(targets) - {"memory"})  # a double for tests, which runs no programs
        near = difflib.get_close_matches(name, offered, n=1)
        raise ConfigError(
            f"Unknown provider {name!r}",
            why=f"this installation knows {', '.join(offered)}",
            fix=f"Use {near[0]!r}" if near else "Use one of them, or install the package that brings it",
        )
    return target


def load(name: str, root: Path) -> Provider:
    """Import a provider and construct it; it reaches its engine only when it is entered.

    Args:
        name: A name from `known`.
        root: A directory of the host in which this provider may keep its state.

    Raises:
        ConfigError: The name is unknown, or what it names is not a provider.
        ProviderUnavailableError: Its module, or an SDK that the module needs, cannot be imported.
    """
    target = find(name)
    try:
        found = getattr(importlib.import_module(target.module), target.attribute)
    except (ImportError, AttributeError) as error:
        raise ProviderUnavailableError(
            f"Provider {name!r} cannot be loaded", why=str(error), fix=target.hint
        ) from error
    if not (isinstance(found, type) and issubclass(found, Provider)):
        raise ConfigError(
            f"Provider {name!r} cannot be used",
            why=f"{target.module}:{target.attribute} is not a subclass of mcp_sandbox.core.provider.Provider",
            fix="Correct the entry point of the package that brings it",
        )
    return cast(Callable[[Path], Provider], found)(root)
