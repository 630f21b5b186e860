"""From what holds to what new sandboxes are created from, and what a service must know beside."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from mcp_sandbox.core.capability import Isolation, WorkspaceMode
from mcp_sandbox.core.errors import ConfigError, SandboxError
from mcp_sandbox.core.sandbox import Limits, SandboxSpec, Workspace
from mcp_sandbox.manifest.commands import command_policies
from mcp_sandbox.manifest.keys import DEFAULTS
from mcp_sandbox.manifest.layers import LIMIT_KEYS
from mcp_sandbox.manifest.narrowing import Layer, Narrowed, narrow
from mcp_sandbox.manifest.paths import of_workspace
from mcp_sandbox.manifest.support import unsupported
from mcp_sandbox.policy.command_rules import may_mislead
from mcp_sandbox.policy.rules import Policy
from mcp_sandbox.service.demands import Demands
from mcp_sandbox.service.preparation import Preparation, PreparedFile, Step

__all__ = ["Effective", "effective"]

_FALLBACKS: Final = "sandbox.fallback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What holds, ready to be used."""

    narrowed: Narrowed
    provider: str
    """Of new sandboxes; empty if nobody says."""
    template: SandboxSpec
    demands: Demands
    policy: Policy


def effective(
    layers: "list[Layer]", template: SandboxSpec, *, default_provider: str, environ: Mapping[str, str] = os.environ
) -> Effective:
    """Return what new sandboxes are, where files say something about it.

    Args:
        layers: From the top down.
        template: What they would be without any; its workspace has the project.
        default_provider: What runs them where nobody says.
        environ: Where `allowed_env` takes values from.
    """
    narrowed = narrow(layers)
    provider = str(narrowed.value("sandbox.provider") or "")
    return Effective(
        narrowed=narrowed,
        provider=provider,
        template=_template(narrowed, template, layers, provider or default_provider),
        demands=Demands(
            refusal=_refusal(narrowed, provider or default_provider),
            fallback=cast("tuple[str, ...]", narrowed.value(_FALLBACKS) or ()),
            env=_environment(narrowed, environ),
            unvouched_env=_of_projects(narrowed, layers),
            asked_workspace="workspace.mode" in narrowed.held,
            idle_s=cast("float | None", narrowed.value("sandbox.idle")),
            preparation=_preparation(narrowed),
            commands=command_policies(layers),
            notices=tuple(narrowed.told),
        ),
        policy=_policy(narrowed, layers),
    )


def _template(narrowed: Narrowed, template: SandboxSpec, layers: "list[Layer]", provider: str) -> SandboxSpec:
    limits: dict[str, Any] = {
        name: narrowed.value(key) for key, name in LIMIT_KEYS.items() if narrowed.value(key) is not None
    }
    mode = WorkspaceMode(str(narrowed.value("workspace.mode") or DEFAULTS["workspace.mode"]))
    source = template.workspace.source
    workspace = Workspace() if mode is WorkspaceMode.EMPTY or source is None else Workspace(mode=mode, source=source)
    globs = cast("tuple[str, ...]", narrowed.value("capabilities.filesystem.denied") or ())
    denied = of_workspace(globs, source, os.path.expanduser("~")) if workspace.source and source else ()  # noqa: PTH111
    runtime = template.runtime or narrowed.value(f"sandbox.options.{provider}.runtime")
    return replace(
        template,
        image=cast("str | None", narrowed.value("environment.image")),
        fetch_image=_may_fetch(narrowed, layers),
        workspace=workspace,
        denied=denied,
        runtime=cast("str | None", runtime),
        limits=replace(Limits(), **limits),
        best_effort=bool(narrowed.value("limits.best_effort")),
    )


def _may_fetch(narrowed: Narrowed, layers: "list[Layer]") -> bool:
    """Whether an image may be got from where it comes from: not if a project named it that nobody said yes to."""
    held = narrowed.held.get("environment.image")
    return held is None or any(layer.trusted for layer in layers if layer.source in held.sources)


def _environment(narrowed: Narrowed, environ: Mapping[str, str]) -> "dict[str, str]":
    allowed = cast("tuple[str, ...]", narrowed.value("allowed_env") or ())
    passed = {name: environ[name] for name in allowed if name in environ}
    own = {key.removeprefix("env."): str(held.value) for key, held in narrowed.held.items() if key.startswith("env.")}
    return {**passed, **own}


def _preparation(narrowed: Narrowed) -> Preparation:
    files: dict[str, PreparedFile] = {}
    for key, held in narrowed.held.items():
        if key.startswith("files."):
            value = held.value
            said: dict[str, Any] = {"content": value} if isinstance(value, str) else cast("dict[str, Any]", value)
            mode = int(said["mode"], 8) if said.get("mode") else None
            files[key.removeprefix("files.")] = PreparedFile(
                content=said.get("content"), source=said.get("from"), mode=mode
            )
    steps = cast("tuple[Any, ...]", narrowed.value("setup") or ())
    return Preparation(
        runtime=str(narrowed.value("environment.runtime") or ""),
        dependencies=cast("tuple[str, ...]", narrowed.value("environment.dependencies") or ()),
        wheels=str(narrowed.value("environment.wheels") or ""),
        files=files,
        steps=tuple(Step(run=each) if isinstance(each, str) else Step(**each) for each in steps),
        sources={key: " and ".join(held.sources) for key, held in narrowed.held.items()},
    )


def _of_projects(narrowed: Narrowed, layers: "list[Layer]") -> "tuple[str, ...]":
    """Return the variables of a project's file that change what programs do: nobody else's rules reckon with them."""
    projects = {layer.source for layer in layers if layer.name == "project"}
    return tuple(
        key.removeprefix("env.")
        for key, held in narrowed.held.items()
        if key.startswith("env.") and projects.issuperset(held.sources) and may_mislead(key.removeprefix("env."))
    )


def _policy(narrowed: Narrowed, layers: "list[Layer]") -> Policy:
    least = str(narrowed.value("policy.min_isolation") or "namespace")
    providers, images = narrowed.value("policy.providers"), narrowed.value("policy.images")
    named = narrowed.held.get("sandbox.provider")
    if providers is None and named is not None:  # the agent may choose among what was named, and nothing else
        operators = {layer.source for layer in layers if layer.name != "project"}
        if operators.issuperset(named.sources):
            providers = (named.value, *cast("tuple[str, ...]", narrowed.value(_FALLBACKS) or ()))
    return Policy(
        min_isolation=Isolation[least.upper()],
        providers=None if providers is None else frozenset(cast("tuple[str, ...]", providers)),
        images=None if images is None else frozenset(cast("tuple[str, ...]", images)),
    )


def _refusal(narrowed: Narrowed, provider: str) -> SandboxError | None:
    if narrowed.refused:
        first = narrowed.refused[0]
        more = len(narrowed.refused) - 1
        also = f" (and {more} more; `mcp-sandbox policy explain` lists them)" if more else ""
        return ConfigError(f"{first.key} in {first.source} refused", why=f"{first.why}{also}", fix=first.fix)
    if (lacks := next(unsupported(narrowed, provider), None)) is not None:
        return ConfigError(
            f"{lacks.key} in {' and '.join(lacks.sources)} not carried out", why=lacks.why, fix=lacks.fix
        )
    return None
