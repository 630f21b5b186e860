"""The parts of a manifest below its top level. A field that is not given is `None`: somebody else may say it."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from mcp_sandbox.manifest.values import (
    Cores,
    Count,
    Glob,
    Idle,
    Line,
    Lines,
    Name,
    Names,
    Requirements,
    Seconds,
    Size,
    Text,
    VariableName,
    Yes,
)

__all__ = [
    "Capabilities",
    "CommandRule",
    "Commands",
    "Environment",
    "File",
    "Filesystem",
    "LimitSection",
    "Network",
    "NetworkRule",
    "Policy",
    "Probe",
    "Resources",
    "SandboxSection",
    "Secret",
    "Section",
    "Service",
    "SetupStep",
    "WorkspaceSection",
]


class Section(BaseModel):
    """A group of keys; one that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _OrText(Section):
    """A group of keys, or one text that stands for it."""

    short: ClassVar[str]
    """The field that such a text is."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {cls.short: value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema of either."""
        return {"anyOf": [{"type": "string"}, handler(core_schema)]}


class Environment(Section):
    """What programs find inside."""

    runtime: Name | None = Field(
        None, description="A language and its version, such as python3.11; compared with what is inside"
    )
    image: Name | None = Field(None, description="Name of the image that sandboxes start from")
    dependencies: Requirements | None = Field(
        None, description="Packages of the runtime's language, as its installer names them"
    )
    wheels: Line | None = Field(
        None, description="Directory of the project that holds the packages, where no network is"
    )


class Resources(Section):
    """What a sandbox may use of the machine."""

    cpu: Cores | None = Field(None, description="Processors that it may keep busy: 2core, 1.5")
    memory: Size | None = Field(None, description="Memory of all its processes together: 4GB, 512MiB")
    disk: Size | None = Field(None, description="What it may write: 10GB")


class SandboxSection(Section):
    """What runs it, and with how much."""

    provider: Name | None = Field(None, description="What runs it, such as local, docker or gvisor")
    fallback: Names | None = Field(
        None, description="Providers to take instead, in this order, where that one cannot be used; it is told"
    )
    options: Mapping[Name, Mapping[Name, Line]] | None = Field(
        None, description="Options of one provider, by its name; docker has `runtime`"
    )
    resources: Resources | None = None
    timeout: Seconds | None = Field(None, description="The longest that any one command may run: 300 (seconds), 10min")
    idle: Idle | None = Field(None, description="End processes after so long without a call: 60s or more")


class Filesystem(Section):
    """Which files may be seen. Those of the machine never come in, but for the project, which is /workspace."""

    allowed: tuple[Glob, ...] | None = Field(
        None, description="Only /workspace/** and paths that are the sandbox's own"
    )
    denied: tuple[Glob, ...] | None = Field(
        None, description="Globs; those below /workspace are left out of the project"
    )


class NetworkRule(_OrText):
    """One host that may be reached, or an address range."""

    short = "host"
    host: Line | None = Field(None, description="api.github.com, *.example.com, example.com:8443, or a preset: @pypi")
    cidr: Line | None = Field(None, description="Addresses, such as 10.20.0.0/16; needs ports")
    ports: tuple[Count(1), ...] | None = None  # pyright: ignore[reportInvalidTypeForm]
    methods: Names | None = None
    paths: tuple[Line, ...] | None = None


class Network(Section):
    """What may be reached. What is not listed is not."""

    allowed: tuple[NetworkRule, ...] | None = Field(None, description="Hosts that may be reached")
    denied: Lines | None = Field(None, description="`all`, which is so anyway, or hosts to take from those allowed")


class CommandRule(Section):
    """A decision for the commands that begin with certain words."""

    rule: Line = Field(description="Words; a|b is either, * is any one, and at the end any number: git push *")
    decision: Literal["allow", "ask", "deny"]
    reason: Line | None = Field(None, description="What whoever meets it should know")
    match: Lines | None = Field(None, description="Command lines that it must be about; checked when it is read")
    no_match: Lines | None = Field(None, description="Command lines that it must not be about; checked, too")


class Commands(Section):
    """Rules that decide before a command starts. They guide the agent; what runs all the same the sandbox holds."""

    allowed: Lines | None = Field(None, description="Commands that may run; with any here, others are asked about")
    ask: Lines | None = Field(None, description="Commands that the person is asked about")
    denied: Lines | None = Field(None, description="Commands that do not run")
    rules: tuple[CommandRule, ...] | None = Field(None, description="Rules with reasons and examples")
    default: Literal["allow", "ask", "deny"] | None = Field(None, description="For commands that no rule is about")
    undecidable: Literal["ask", "deny"] | None = Field(None, description="For what only running tells; ask by default")
    remove: Names | None = Field(None, description="Programs that are not to be there at all")
    mode: Literal["advisory", "strict"] | None = Field(None, description="advisory: the rules alone")


class Capabilities(Section):
    """What the agent may do in there."""

    filesystem: Filesystem | None = None
    network: Network | None = None
    commands: Commands | None = None


class File(_OrText):
    """A file that every new sandbox has."""

    short = "content"
    content: Text | None = Field(None, description="Its text")
    source: Line | None = Field(None, alias="from", description="A file of the project, relative to it")
    git: Line | None = Field(None, description="URL of a repository whose files these are")
    ref: Line | None = Field(None, description="Branch, tag or commit of the repository")
    mode: Annotated[Line, Field(pattern="^0?[0-7]{3}$")] | None = Field(None, description="Permissions, such as 0755")

    @model_validator(mode="after")
    def _has_one_origin(self) -> "File":
        if sum(each is not None for each in (self.content, self.source, self.git)) != 1:
            raise ValueError("one of `content`, `from` and `git` is needed, and no second one")
        return self


class SetupStep(_OrText):
    """A command that prepares a new sandbox; the result is kept for the next one."""

    short = "run"
    run: Text = Field(description="A command line, run in /workspace")
    inputs: tuple[Glob, ...] | None = Field(None, description="Files of the project that its result depends on")


class Probe(Section):
    """How to see that a service is ready."""

    port: Count(1) | None = None  # pyright: ignore[reportInvalidTypeForm]
    http: Line | None = None
    command: Line | None = None
    timeout: Seconds | None = None


class Service(_OrText):
    """A process that runs as long as its sandbox does."""

    short = "command"
    command: Line
    cwd: Line | None = None
    env: Mapping[VariableName, Text] | None = None
    ready: Probe | None = None
    restart: Literal["no", "on-failure", "always"] | None = None


class Secret(_OrText):
    """A credential, and where it may be used. In files of users and administrators only."""

    short = "source"
    source: Line = Field(description="secret://SOURCE/PATH#KEY")
    env: VariableName | None = None
    hosts: tuple[Line, ...] | None = None
    header: Line | None = None


class WorkspaceSection(_OrText):
    """What /workspace is."""

    short = "mode"
    mode: Literal["overlay", "copy", "mount", "empty"] | None = Field(
        None, description="overlay: the project, of which nothing on the machine changes; copy; mount: itself; empty"
    )


class LimitSection(Section):
    """Further limits."""

    pids: Count(8) | None = Field(None, description="Processes and threads")  # pyright: ignore[reportInvalidTypeForm]
    open_files: Count(16) | None = Field(None, description="Open files of each process")  # pyright: ignore[reportInvalidTypeForm]
    inodes: Count(100) | None = Field(None, description="Files and directories that it may make")  # pyright: ignore[reportInvalidTypeForm]
    best_effort: Yes | None = Field(None, description="Take limits that cannot be enforced as well as they can be")


class Policy(Section):
    """What lower layers may choose from. In files of users and administrators only."""

    providers: Names | None = None
    images: Names | None = None
    min_isolation: Literal["namespace", "container", "user_kernel", "microvm"] | None = None
