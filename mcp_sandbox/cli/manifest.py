"""`mcp-sandbox manifest`: what a manifest says, what of it holds here, and what is wrong with it."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from mcp_sandbox.app import DEFAULT_PROVIDER
from mcp_sandbox.cli.layering import add_layering, findings, layers_with, provider_of, said_by
from mcp_sandbox.cli.options import add_json, parser
from mcp_sandbox.cli.tables import print_json
from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.manifest.discovery import PROJECT_NAMES, FoundFile
from mcp_sandbox.manifest.keys import nested, shown
from mcp_sandbox.manifest.meaning import meaning
from mcp_sandbox.manifest.narrowing import narrow
from mcp_sandbox.manifest.problems import ManifestError
from mcp_sandbox.manifest.schema import schema_text

__all__ = ["main"]

_EXAMPLE: Final = """\
  mcp-sandbox manifest check
  mcp-sandbox manifest explain --provider docker
  mcp-sandbox manifest render other.yaml
  mcp-sandbox manifest schema > mcp-sandbox.schema.json"""


class _Verb(NamedTuple):
    summary: str
    carry_out: Callable[[argparse.Namespace], int]


def main(arguments: list[str]) -> int:
    """Carry out a verb; 1 if `check` finds anything."""
    verbs = {
        "check": _Verb("say what is wrong with it, or cannot be carried out here", _check),
        "explain": _Verb("say what each key means and what becomes of it here", _explain),
        "render": _Verb("print what holds, with what users and administrators say", _render),
        "schema": _Verb("print the JSON schema, for editors", _schema),
    }
    reader = parser("manifest", "Look at a manifest: the project's, or the one of a file.", _EXAMPLE)
    reader.add_argument(
        "verb", choices=verbs, help="; ".join(f"{name}: {verb.summary}" for name, verb in verbs.items())
    )
    reader.add_argument(
        "file", metavar="FILE", nargs="?", help=f"a manifest (default: the project's, {' or '.join(PROJECT_NAMES)})"
    )
    add_layering(reader)
    add_json(reader)
    options = reader.parse_intermixed_args(arguments)
    return verbs[options.verb].carry_out(options)


def _check(options: argparse.Namespace) -> int:
    try:
        layers = layers_with(options, _given(options))
    except ManifestError as error:
        problems = [{"line": each.line, "key": each.key, "what": each.what} for each in error.problems]
        if options.json:
            print_json({"ok": False, "problems": problems})
        else:
            print(*error.problems, sep="\n")
        return 1
    if not any(layer.name == "project" for layer in layers):
        raise _no_manifest()
    narrowed = narrow(layers)
    provider = provider_of(narrowed) or DEFAULT_PROVIDER
    found = findings(narrowed, provider)
    if options.json:
        problems = [{"line": 0, "key": each.key, "what": each.why, "fix": each.fix} for each in found]
        print_json({"ok": not found, "provider": provider, "problems": problems})
    elif found:
        print(*(f"{each}. {each.fix}." for each in found), sep="\n")
    else:
        print(f"It can be carried out by provider {provider!r}.")
    return 1 if found else 0


def _explain(options: argparse.Namespace) -> int:
    layers = layers_with(options, _given(options))
    narrowed = narrow(layers)
    provider = provider_of(narrowed) or DEFAULT_PROVIDER
    found = {each.key: each for each in findings(narrowed, provider)}
    lines: list[dict[str, str]] = []
    for layer in layers:
        if layer.name != "project":
            continue
        for key, value in layer.values.items():
            held = narrowed.held.get(key)
            if key in found:
                becomes = f"refused: {found[key].why}"
            elif held is None or (layer.source not in held.sources and held.value != value):
                becomes = f"does not hold: {said_by(held)}" if held else "does not hold"
            else:
                becomes = "holds" if held.value == value else f"holds as {shown(key, held.value)}: {said_by(held)}"
            lines.append({"key": key, "value": shown(key, value), "becomes": becomes, "meaning": meaning(key)})
    if not lines:
        raise _no_manifest()
    if options.json:
        print_json({"provider": provider, "keys": lines})
        return 0
    for line in lines:
        print(f"{line['key']}: {line['value']}\n    {line['meaning']}\n    {line['becomes']}")
    return 0


def _render(options: argparse.Namespace) -> int:
    held = narrow(layers_with(options, _given(options))).held
    whole = nested({key: each.value for key, each in held.items()})
    if options.json:
        print_json(whole)
        return 0
    import yaml

    yaml.safe_dump(whole, sys.stdout, sort_keys=False, allow_unicode=True, width=100)
    return 0


def _schema(options: argparse.Namespace) -> int:
    print(schema_text(), end="")
    return 0


def _given(options: argparse.Namespace) -> FoundFile | None:
    """Return the file that was named, in the place of the project's."""
    if options.file is None:
        return None
    path = Path(options.file)
    try:
        with path.open("rb") as file:
            return FoundFile("project", path.name, file.read(1 << 20))
    except OSError as error:
        raise ConfigError(f"{options.file} cannot be read", why=error.strerror or "unknown", fix="Check it") from None


def _no_manifest() -> ConfigError:
    return ConfigError(
        "There is no manifest", why=f"the project has no {' and no '.join(PROJECT_NAMES)}",
        fix="Write one, `mcp-sandbox init` for example, or name a file",
    )  # fmt: skip
