"""The composition root: the one place that meets raw providers and wires them into what tools and commands use."""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from mcp_sandbox.core.capability import Isolation
from mcp_sandbox.core.errors import ConfigError, SandboxError
from mcp_sandbox.core.provider import Provider
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec, Workspace, WorkspaceMode
from mcp_sandbox.manifest.discovery import has_files
from mcp_sandbox.policy.guard import GuardedProvider
from mcp_sandbox.policy.rules import Policy
from mcp_sandbox.providers import registry as providers
from mcp_sandbox.service.demands import Demands
from mcp_sandbox.service.images import is_path
from mcp_sandbox.service.lifetimes import Lifetimes
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.settings.limits import WantedLimits, find_limits
from mcp_sandbox.settings.starting import Start, find_start
from mcp_sandbox.store.atomic import Settler
from mcp_sandbox.store.directories import StateDirectories, open_state
from mcp_sandbox.store.record import Owner
from mcp_sandbox.store.registry import Registry
from mcp_sandbox.store.snapshots import SnapshotStore
from mcp_sandbox.wrappers.limited import LimitedProvider
from mcp_sandbox.wrappers.pooled import PooledProvider

if TYPE_CHECKING:
    from mcp_sandbox.policy.command_rules import CommandPolicy
    from mcp_sandbox.service.applying import ApplyService
    from mcp_sandbox.service.command_gate import CommandGate
    from mcp_sandbox.service.services import Services

__all__ = [
    "DEFAULT_PROVIDER", "Arrangement", "apply_service", "arrange", "command_gate", "guarded_provider", "open_sandboxes",
    "open_services", "template",
]  # fmt: skip

DEFAULT_PROVIDER = os.environ.get("MCP_SANDBOX_PROVIDER") or "local"
_DOUBLE = "memory"


def guarded_provider(name: str, state: StateDirectories, policy: Policy | None = None, *, pool: int = 0) -> Provider:
    """Construct a provider behind the policy; nobody gets hold of a raw one.

    Args:
        name: The provider.
        state: Where it keeps what it needs to remember.
        policy: What it may be asked for.
        pool: How many sandboxes are kept ready for the next ones.

    Raises:
        ConfigError: There is no such provider.
        ProviderUnavailableError: It cannot be imported.
    """
    policy = policy or Policy()
    if name == _DOUBLE:  # the double for tests runs no programs, so there is nothing to isolate
        policy = replace(policy, min_isolation=Isolation.NONE)
    providers.find(name)  # before a directory is made for it
    raw = providers.load(name, state.provider(name))
    return GuardedProvider(LimitedProvider(PooledProvider(raw, size=pool)), policy)


def template(project: str, wanted: WantedLimits | None = None, start: Start | None = None) -> SandboxSpec:
    """Return what new sandboxes are created from: the project as the workspace, copy-on-write by default."""
    start = start or find_start(None, None)
    mode = WorkspaceMode(start.workspace if project else "empty")
    workspace = Workspace(mode=mode, source=None if mode is WorkspaceMode.EMPTY else project)
    spec = SandboxSpec(id=SandboxId("template"), workspace=workspace, runtime=start.runtime)
    return replace(spec, limits=wanted.limits, best_effort=wanted.best_effort) if wanted else spec


@asynccontextmanager
async def open_sandboxes(
    *,
    project: str = "",
    provider: str = "",
    image: str = "",
    everywhere: bool = False,
    only_looks: bool = False,
    max_sandboxes: int = Lifetimes().max_sandboxes,
    wanted: WantedLimits | None = None,
    start: Start | None = None,
    pool: int = 0,
    idle_s: float | None = None,
) -> AsyncGenerator[SandboxService]:
    """Open the sandboxes of one server or command. Providers are reached only when they are needed.

    Args:
        project: Real path of the project, or empty.
        provider: The name of the provider of new sandboxes; empty is the default one.
        image: What new sandboxes start from: a name, or the operator's path of something to import.
        everywhere: Whether handles and lists reach beyond the project.
        only_looks: Whether no sandbox will be made, so that the project does not matter.
        max_sandboxes: How many sandboxes a project may have.
        wanted: Limits of new sandboxes; `None` is those that `MCP_SANDBOX_MEMORY` and the like ask for.
        start: What new sandboxes start as; `None` is what `MCP_SANDBOX_WORKSPACE` and `MCP_SANDBOX_RUNTIME` say.
        pool: How many sandboxes the provider of new ones keeps ready.
        idle_s: What the command line says of the time without a call after which processes end.

    Raises:
        ConfigError: The state directory cannot be used, or a sandbox of this project would show it.
    """
    state = await to_thread.run_sync(open_state)
    if project and not only_looks and f"{state.root.resolve()}/".startswith(f"{project}/"):
        raise ConfigError(
            "No sandbox for this project",
            why="the directory of the project holds the state of all sandboxes",
            fix="Set MCP_SANDBOX_HOME to a directory outside of it, or choose another project with --project",
        )
    wanted, start = wanted or find_limits({}), start or find_start(None, None)
    made = await to_thread.run_sync(lambda: arrange(project, provider, image, wanted, start, idle_s))
    chosen = made.provider or DEFAULT_PROVIDER
    async with (
        Settler() as settler,
        SandboxService(
            registry=Registry(state.registry, settler.later),
            snapshots=SnapshotStore(state.snapshots, settler.later),
            open_provider=lambda name: guarded_provider(name, state, made.policy, pool=pool if name == chosen else 0),
            owner=Owner(principal=f"uid:{os.geteuid()}", project=project),
            provider=chosen,
            is_asked=bool(made.provider),
            template=made.template,
            demands=made.demands,
            everywhere=everywhere,
            max_sandboxes=max_sandboxes,
        ) as sandboxes,
    ):
        if made.demands.fallback:
            await sandboxes.use_first([chosen, *made.demands.fallback])
        if made.image:
            await sandboxes.use_image(made.image)
        yield sandboxes


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """What new sandboxes are to be, by options, variables and files together."""

    provider: str
    """Empty if nobody says."""
    image: str
    """What the operator gave: a name or a path; empty if nobody did."""
    template: SandboxSpec
    demands: Demands = field(default_factory=Demands)
    policy: Policy | None = None


def arrange(
    project: str, provider: str, image: str, wanted: WantedLimits | None, start: Start, idle_s: float | None
) -> Arrangement:
    """Return what new sandboxes are to be. Blocks. What is wrong with a file is told by whoever wants to use one."""
    asked = provider or os.environ.get("MCP_SANDBOX_PROVIDER") or ""
    plain = template(project, wanted, start)
    alone = Arrangement(
        provider=asked,
        image=image,
        template=plain,
        demands=Demands(idle_s=idle_s, asked_workspace=bool(start.asked_workspace)),
    )
    try:
        if not has_files(project):
            return alone
        # These load pydantic and the reader of YAML, which nobody else needs.
        from mcp_sandbox.manifest.effective import effective
        from mcp_sandbox.manifest.layers import command_line, read_layers

        options = command_line(asked, image, wanted, start, idle_s)
        found = effective(read_layers(project, options), plain, default_provider=DEFAULT_PROVIDER)
        demands = found.demands
        if found.provider and not demands.fallback:
            unknown = _unknown(found.provider, found.narrowed.held["sandbox.provider"].sources)
            demands = replace(demands, refusal=unknown or demands.refusal)
    except SandboxError as error:
        return replace(alone, demands=Demands(refusal=error))
    named = found.template.image or ""
    path = named if is_path(named) else ""
    if path:
        found = replace(found, template=replace(found.template, image=None))
    return Arrangement(
        provider=found.provider, image=path, template=found.template, demands=demands, policy=found.policy
    )


def _unknown(provider: str, sources: tuple[str, ...]) -> ConfigError | None:
    """Return why a provider that a file names cannot be used, if this installation does not know it."""
    try:
        providers.find(provider)
    except ConfigError as error:
        fix = f"{error.fix}, or say `--provider local`"
        return ConfigError(f"sandbox.provider {provider!r} in {' and '.join(sources)} not used", why=error.why, fix=fix)
    return None


def apply_service(sandboxes: SandboxService) -> "ApplyService":
    """Return what brings changes home, for whoever may."""
    from mcp_sandbox.service.applying import ApplyService

    return ApplyService(sandboxes, open_state().applied)


@asynccontextmanager
async def open_services(
    *,
    project: str = "",
    provider: str = "",
    image: str = "",
    lifetimes: Lifetimes | None = None,
    wanted: WantedLimits | None = None,
    start: Start | None = None,
    pool: int = 0,
    allow_apply: bool = False,
    commands: "Sequence[CommandPolicy]" = (),
) -> "AsyncGenerator[Services]":
    """Open all use cases of one server, as `open_sandboxes` does its part of them, and keep the state tidy.

    `commands` says what each layer of the configuration thinks of commands. With `allow_apply` models can change the
    project, without anybody being asked.
    """
    from mcp_sandbox.service.changes import ChangeService
    from mcp_sandbox.service.execution import ExecutionService
    from mcp_sandbox.service.files import FileService
    from mcp_sandbox.service.ports import PortService
    from mcp_sandbox.service.readiness import expect_more
    from mcp_sandbox.service.search import SearchService
    from mcp_sandbox.service.services import Services
    from mcp_sandbox.service.snapshots import SnapshotService

    lifetimes = lifetimes or Lifetimes()
    async with (
        open_sandboxes(
            project=project,
            provider=provider,
            image=image,
            max_sandboxes=lifetimes.max_sandboxes,
            wanted=wanted,
            start=start,
            pool=pool,
            idle_s=lifetimes.idle_s,
        ) as sandboxes,
        ExecutionService(sandboxes, gate=command_gate(sandboxes.demands, commands)) as execution,
        PortService(sandboxes) as ports,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(sandboxes.housekeeping.run, replace(lifetimes, idle_s=sandboxes.demands.idle_s))
        if pool:
            tasks.start_soon(expect_more, sandboxes, provider or DEFAULT_PROVIDER)
        yield Services(
            sandboxes=sandboxes,
            execution=execution,
            files=FileService(sandboxes),
            search=SearchService(sandboxes),
            snapshots=SnapshotService(sandboxes),
            ports=ports,
            changes=ChangeService(sandboxes),
            applying=apply_service(sandboxes),
            may_apply=allow_apply,
        )
        tasks.cancel_scope.cancel()


def command_gate(demands: Demands, more: "Sequence[CommandPolicy]" = ()) -> "CommandGate":
    """Return what lets commands through, by the rules of all layers."""
    from mcp_sandbox.service.command_gate import CommandGate

    return CommandGate([*more, *demands.commands], demands.unvouched_env)
