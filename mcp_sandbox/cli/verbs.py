"""Commands that have verbs, like `mcp-sandbox snapshot list`: a table of them, and how a command line is read."""

import argparse
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from mcp_sandbox.cli.options import parser

__all__ = ["Verb", "read_verb"]

Subject = TypeVar("Subject")


class Verb(NamedTuple, Generic[Subject]):
    """One verb; it is carried out on what the command is about."""

    summary: str
    example: str
    add_options: Callable[[argparse.ArgumentParser], None]
    carry_out: Callable[[Subject, argparse.Namespace], Awaitable[int]]


def read_verb(
    command: str,
    summary: str,
    example: str,
    verbs: Mapping[str, Verb[Subject]],
    add_common: Callable[[argparse.ArgumentParser], None],
    arguments: list[str],
) -> tuple[Verb[Subject], argparse.Namespace]:
    """Return the verb that a command line names, and its options; ends the process where it names none.

    Args:
        command: The command that has the verbs.
        summary: What it does, for its help.
        example: How it is used, for its help.
        verbs: By name.
        add_common: Adds the options that every verb has.
        arguments: What follows the command.
    """
    verb = verbs.get(arguments[0]) if arguments else None
    if verb is None:
        reader = parser(command, summary, example)
        reader.add_argument("verb", choices=verbs, help="; ".join(f"{name}: {v.summary}" for name, v in verbs.items()))
        reader.parse_args(arguments)
        raise AssertionError("argparse accepts a verb that is none")
    reader = parser(
        f"{command} {arguments[0]}",
        f"{verb.summary[0].upper()}{verb.summary[1:]}.",
        f"  mcp-sandbox {command} {verb.example}",
    )
    verb.add_options(reader)
    add_common(reader)
    return verb, reader.parse_args(arguments[1:])
