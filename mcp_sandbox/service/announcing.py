"""What is told once about a project's own sandbox."""

from collections.abc import Sequence

from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.service.limits import changed_limits
from mcp_sandbox.store.record import SandboxRecord

__all__ = ["about_another", "about_configuration"]

_SHORT = 12


def about_another(record: SandboxRecord, gone: SandboxId | None) -> Sequence[str]:
    """Return what to say where another sandbox was used before."""
    if gone in (None, record.id):
        return ()
    return (
        f"sandbox {gone} is gone with everything in it; this is another one, {record.id}. "
        "Snapshots of the old one remain",
    )


def about_configuration(record: SandboxRecord, provider: str, template: SandboxSpec) -> Sequence[str]:
    """Return what to say where the configuration asks for another provider, image or limits than the sandbox has."""
    said: list[str] = []
    image, name = template.image, record.id[:_SHORT]
    if record.provider != provider:
        said.append(
            f"this project's sandbox runs on provider {record.provider!r}; {provider!r} is used once it, {name}, "
            "is destroyed"
        )
    if image not in (None, record.image):
        said.append(
            f"this project's sandbox did not start from image {image!r}, which is used once it, {name}, is destroyed"
        )
    if told := changed_limits(record.limits, template.limits, name):
        said.append(told)
    return said
