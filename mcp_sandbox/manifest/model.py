"""The whole manifest. A user's or an administrator's configuration has the same shape."""

from collections.abc import Mapping

from pydantic import Field

from mcp_sandbox.manifest.sections import (
    Capabilities,
    Environment,
    File,
    LimitSection,
    Policy,
    SandboxSection,
    Secret,
    Section,
    Service,
    SetupStep,
    WorkspaceSection,
)
from mcp_sandbox.manifest.values import Count, Line, Text, VariableName

__all__ = ["Manifest"]


class Manifest(Section):
    """What a sandbox is."""

    name: Line | None = Field(None, description="What it is called")
    version: Line | None = Field(None, description="Of this definition")
    description: Text | None = None
    environment: Environment | None = None
    sandbox: SandboxSection | None = None
    capabilities: Capabilities | None = None
    workspace: WorkspaceSection | None = None
    limits: LimitSection | None = None
    env: Mapping[VariableName, Text] | None = Field(None, description="Variables of every command")
    allowed_env: tuple[VariableName, ...] | None = Field(
        None, description="Variables of the server that commands get too; a project's are cut to the user's"
    )  # fmt: skip
    files: Mapping[Line, File] | None = Field(None, description="Files that every new sandbox has, by their path")
    setup: tuple[SetupStep, ...] | None = Field(None, description="Commands that prepare a new sandbox, in this order")
    services: Mapping[Line, Service] | None = None
    ports: tuple[Count(1), ...] | None = None  # pyright: ignore[reportInvalidTypeForm]
    secrets: Mapping[VariableName, Secret] | None = None
    policy: Policy | None = None
