"""`mcp-sandbox policy`: what holds for sandboxes here, and who said it."""

import argparse
from collections.abc import Sequence

from mcp_sandbox.app import DEFAULT_PROVIDER
from mcp_sandbox.cli.layering import add_layering, findings, layers_with, provider_of
from mcp_sandbox.cli.options import add_json, parser
from mcp_sandbox.cli.tables import print_json, print_table
from mcp_sandbox.manifest.discovery import ADMIN_FILE, PROJECT_NAMES, user_file
from mcp_sandbox.manifest.keys import DEFAULTS, kind_of, shown
from mcp_sandbox.manifest.narrowing import Held, Layer, narrow

__all__ = ["main"]

_EXAMPLE = "  mcp-sandbox policy explain --project ~/src/app"


def main(arguments: list[str]) -> int:
    """Carry out the verb; 1 if something is refused."""
    reader = parser(
        "policy", "Say what holds for the sandboxes of a project, and which file or option said it.", _EXAMPLE
    )
    reader.add_argument("verb", choices=["explain"], help="explain: list every key that somebody said")
    add_layering(reader)
    add_json(reader)
    return _explain(reader.parse_args(arguments))


def _explain(options: argparse.Namespace) -> int:
    layers = layers_with(options)
    narrowed = narrow(layers)
    held = {key: Held(value, ("default",)) for key, value in DEFAULTS.items()} | narrowed.held
    found = findings(narrowed, provider_of(narrowed) or DEFAULT_PROVIDER)
    if options.json:
        keys = {key: {"value": each.value, "said_by": list(each.sources)} for key, each in held.items()}
        refused = [{"key": each.key, "why": each.why, "fix": each.fix} for each in found]
        print_json({"layers": [_named(each) for each in layers], "holds": keys, "refused": refused,
                    "told": narrowed.told})  # fmt: skip
        return 1 if found else 0
    print("Layers, from the top down:")
    for name, place in (("admin", ADMIN_FILE), ("user", str(user_file())), ("command line", ""), ("project", "")):
        print(f"  {name:<13} {_said(name, layers) or f'says nothing ({place or _nothing(name)})'}")
    print()
    rows = [(key, shown(key, each.value), " and ".join(each.sources), kind_of(key).value) for key, each in held.items()]
    print_table(("KEY", "HOLDS", "SAID BY", "IF SEVERAL SAY IT"), sorted(rows))
    for title, lines in (
        ("Refused, so no sandbox is used until it is mended:", [f"{each}. {each.fix}." for each in found]),
        ("Asked for and not so:", narrowed.told),
    ):
        if lines:
            print(f"\n{title}", *(f"  {line}" for line in lines), sep="\n")
    return 1 if found else 0


def _named(layer: Layer) -> "dict[str, object]":
    return {"layer": layer.name, "source": layer.source, "trusted": layer.trusted}


def _said(name: str, layers: Sequence[Layer]) -> str:
    for layer in layers:
        if layer.name == name:
            trust = (
                "" if name != "project" else ", to which you said yes" if layer.trusted else ", which may only narrow"
            )
            return f"{layer.source}{trust}"
    return ""


def _nothing(name: str) -> str:
    return f"no {' or '.join(PROJECT_NAMES)}" if name == "project" else "no option or variable"
