"""What each layer says about commands, as rules that decide before one starts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.manifest.narrowing import Layer
from mcp_sandbox.policy.command_rules import CommandPolicy, Decision, Rule

__all__ = ["command_policies"]

_PREFIX: Final = "capabilities.commands."
_LISTS: Final = {"allowed": Decision.ALLOW, "ask": Decision.ASK, "denied": Decision.DENY}


def command_policies(layers: Sequence[Layer]) -> "tuple[CommandPolicy, ...]":
    """Return the rules of every layer that has any; the strictest of them decides.

    Raises:
        ConfigError: A rule is none, or an example proves it wrong.
    """
    return tuple(policy for layer in layers if (policy := _policy(layer)).decides)


def _policy(layer: Layer) -> CommandPolicy:
    said = {key.removeprefix(_PREFIX): value for key, value in layer.values.items() if key.startswith(_PREFIX)}
    default = said.get("default", "ask" if "allowed" in said else "allow")
    try:
        rules = tuple(_rules(said))
    except ConfigError as error:
        raise ConfigError(
            f"capabilities.commands in {layer.source}: {error.what}", why=error.why, fix=error.fix
        ) from None
    return CommandPolicy(
        rules=rules,
        default=Decision[str(default).upper()],
        when_unclear=Decision[str(said.get("undecidable", "ask")).upper()],
        layer=layer.source,
    )


def _rules(said: Mapping[str, object]) -> Iterator[Rule]:
    for name, decision in _LISTS.items():
        for text in cast("tuple[str, ...]", said.get(name, ())):
            yield Rule.of(text, decision)
    for rule in cast("tuple[Mapping[str, Any], ...]", said.get("rules", ())):
        yield Rule.of(
            rule["rule"], Decision[rule["decision"].upper()], reason=rule.get("reason", ""),
            match=rule.get("match", ()), no_match=rule.get("no_match", ()),
        )  # fmt: skip
