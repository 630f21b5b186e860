"""What the commands about manifests have in common: the layers, and what is wrong with them together."""

import argparse
import os
from collections.abc import Sequence

from mcp_sandbox.cli.options import add_scope, add_start, start_of
from mcp_sandbox.manifest.discovery import FoundFile
from mcp_sandbox.manifest.layers import command_line, layer_of, read_layers
from mcp_sandbox.manifest.narrowing import DEFAULT, Held, Layer, Narrowed, Refused
from mcp_sandbox.manifest.support import Unsupported, unsupported
from mcp_sandbox.providers import registry
from mcp_sandbox.settings.limits import find_limits
from mcp_sandbox.settings.project import find_project

__all__ = ["add_layering", "findings", "layers_with", "provider_of", "said_by"]


def add_layering(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which layers are meant."""
    add_scope(parser)
    add_start(parser)


def layers_with(options: argparse.Namespace, given: FoundFile | None = None) -> Sequence[Layer]:
    """Return the layers from the top down.

    Args:
        options: Of the command line.
        given: What takes the place of the project's file.

    Raises:
        ConfigError: A file cannot be used.
    """
    provider = options.provider or os.environ.get("MCP_SANDBOX_PROVIDER") or ""
    project = find_project(options.project)
    said = command_line(provider, "", find_limits({}), start_of(options), None)
    layers = read_layers("" if given else project, said)
    return [*layers, layer_of(given, project)] if given else layers


def provider_of(narrowed: Narrowed) -> str:
    """Return the provider that somebody named, or nothing."""
    return str(narrowed.value("sandbox.provider") or "")


def said_by(held: Held) -> str:
    """Return who said what holds, for a reader."""
    return "the usual setting" if held.sources == (DEFAULT,) else f"{' and '.join(held.sources)} says so"


def findings(narrowed: Narrowed, provider: str) -> Sequence[Refused | Unsupported]:
    """Return everything that keeps what holds from being carried out."""
    found: list[Refused | Unsupported] = list(narrowed.refused)
    if provider not in registry.BUILTIN and provider not in registry.known():
        sources = narrowed.held["sandbox.provider"].sources
        why = f"not supported yet: this installation has no provider {provider!r}"
        found.append(Unsupported("sandbox.provider", sources, why, "Say another one, with `--provider` for example"))
    return [*found, *unsupported(narrowed, provider)]
