"""What is told once about a project's own sandbox, or refused: it may not be what was asked for."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from mcp_sandbox.core.capability import Isolation
from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.core.provider import Provider
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec, WorkspaceMode
from mcp_sandbox.service.connections import LiveSandbox
from mcp_sandbox.service.limits import changed_limits
from mcp_sandbox.service.opened import OpenProviders
from mcp_sandbox.store.record import SandboxRecord

__all__ = ["Asked", "about_another", "about_configuration"]

_SHORT = 12


def about_another(record: SandboxRecord, gone: SandboxId | None) -> Sequence[str]:
    """Return what to say where another sandbox was used before."""
    if gone in (None, record.id):
        return ()
    return (
        f"sandbox {gone} is gone with everything in it; this is another one, {record.id}. "
        "Snapshots of the old one remain",
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for."""

    provider: str
    """The one that somebody named; empty if nobody did."""
    template: SandboxSpec
    """What new sandboxes are created from."""
    _: KW_ONLY
    workspace: bool = False
    """Whether somebody named its mode."""


@dataclass(frozen=True, slots=True)
class _Difference:
    option: str
    now: str
    wanted: str


async def about_configuration(
    live: LiveSandbox, providers: OpenProviders, asked: Asked, *, exact: bool
) -> Sequence[str]:
    """Return what to say where another provider, runtime, image, workspace or limits are asked for than it has.

    Args:
        live: The project's own sandbox.
        providers: Where the isolation of the one that is asked for is looked up.
        asked: What somebody wants.
        exact: Refuse whatever differs; else only isolation that is weaker than what is asked for, and a workspace that
            is the project itself where it was not to be.

    Raises:
        ConfigError: The sandbox is not what was asked for.
        ProviderUnavailableError: How strong the isolation is that was asked for cannot be found out.
    """
    record, name = live.record, live.record.id[:_SHORT]
    template = asked.template
    differing = _differing(live, asked)
    if differing and exact:
        raise _refused(differing[0], record)
    said = [f"this project's sandbox {each.now}; {each.wanted!r} is used once it, {name}, is destroyed"
            for each in differing]  # fmt: skip
    for each in differing:
        if each.option == "workspace" and record.workspace == WorkspaceMode.MOUNT:
            raise _refused(each, record, ", so that commands change the project")
        if each.option in ("provider", "runtime"):
            wanted = _isolation(await providers.get(asked.provider or record.provider), template.runtime)
            if live.sandbox.capabilities.isolation < wanted:
                raise _refused(each, record, f", whose isolation is weaker than that of {each.wanted!r}")
    if told := changed_limits(record.limits, template.limits, name):
        said.append(told)
    return said


def _differing(live: LiveSandbox, asked: Asked) -> list[_Difference]:
    template = asked.template
    record, runtime = live.record, live.sandbox.capabilities.runtime
    found: list[_Difference] = []
    if asked.provider not in ("", record.provider):
        found.append(_Difference("provider", f"runs on provider {record.provider!r}", asked.provider))
    if template.runtime not in (None, runtime):
        on = f"on runtime {runtime!r}" if runtime else f"on provider {record.provider!r}, on no runtime of its own"
        found.append(_Difference("runtime", f"runs {on}", str(template.runtime)))
    if template.image not in (None, record.image):
        start = f"started from image {record.image!r}" if record.image else "started from no image that was named"
        found.append(_Difference("image", start, str(template.image)))
    if asked.workspace and template.workspace.mode.value != record.workspace:
        start = f"has the workspace mode {record.workspace!r}"
        found.append(_Difference("workspace", start, template.workspace.mode.value))
    return found


def _isolation(provider: Provider, runtime: str | None) -> Isolation:
    capabilities = provider.capabilities
    return capabilities.runtimes.get(runtime, capabilities.isolation) if runtime else capabilities.isolation


def _refused(difference: _Difference, record: SandboxRecord, more: str = "") -> ConfigError:
    variable = "" if difference.option == "image" else f" (MCP_SANDBOX_{difference.option.upper()})"
    return ConfigError(
        f"{difference.option.capitalize()} {difference.wanted!r} not used",
        why=f"this project's sandbox, {record.id[:_SHORT]}, {difference.now}{more}",
        fix=f"End it with everything in it, `mcp-sandbox rm --own`, or leave out --{difference.option}{variable}",
    )
