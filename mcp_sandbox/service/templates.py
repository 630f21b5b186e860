"""From the template of new sandboxes to the record of one, and from a record to what its engine is asked for."""

from dataclasses import replace

from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.service.limits import limits_in, recorded_limits
from mcp_sandbox.service.naming import check_new
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.store.record import Owner, SandboxRecord, file_time_ns, now

__all__ = ["new_record", "records_like", "spec_for"]


def new_record(template: SandboxSpec, owner: Owner, provider: str) -> SandboxRecord:
    """Return the record of a sandbox that is to be made."""
    at = now()
    return SandboxRecord(
        id=new_sandbox_id(),
        provider=provider,
        principal=owner.principal,
        project=owner.project,
        created_at=at,
        last_used_at=at,
        image=template.image,
        network=template.network.value,
        workspace=template.workspace.mode.value,
        limits=recorded_limits(template.limits),
        best_effort=template.best_effort,
        env=dict(template.env),
        denied=template.denied,
        project_since_ns=file_time_ns(),
    )


def records_like(model: SandboxRecord, name: str, count: int) -> "list[SandboxRecord]":
    """Return records of further sandboxes, with fresh ids; nothing is entered yet.

    Raises:
        InvalidRequestError: The name or the count cannot be used.
    """
    check_new(name, count)
    names = [name] if count == 1 else [f"{name}-{number}" if name else "" for number in range(1, count + 1)]
    at = now()
    fresh = replace(model, is_default=False, created_at=at, last_used_at=at)
    return [replace(fresh, id=new_sandbox_id(), name=each) for each in names]


def spec_for(template: SandboxSpec, record: SandboxRecord) -> SandboxSpec:
    """Return what to create for a record; its limits and variables are those that it was made with."""
    labels = {**template.labels, "mcp-sandbox.owner": record.principal, "mcp-sandbox.sandbox": record.id}
    fetch_image = record.image is None or (template.fetch_image and record.image == template.image)
    spec = replace(
        template, id=record.id, image=record.image, fetch_image=fetch_image, labels=labels,
        env=record.env or template.env,
    )  # fmt: skip
    if not record.limits:
        return spec
    return replace(spec, limits=limits_in(record.limits), best_effort=record.best_effort)
