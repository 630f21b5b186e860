"""What a tool is: what clients are told about it, and one handler. Independent of the MCP library.

Imports nothing, not even of the standard library, and neither do the modules that declare the tools: they are listed
before anything else is loaded (measured: `typing` alone costs as much as starting the interpreter).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from mcp_sandbox.tools.call import Answer, Call, Handler

__all__ = ["PROFILES", "SANDBOX", "Deferred", "Tool", "reworded"]

PROFILES = ("minimal", "default", "full")
"""How many tools a client is shown; each profile includes the ones before it."""

SANDBOX = {"type": "string", "description": "Default: the project's"}
"""The argument that nearly every tool takes."""


class Tool:
    """One tool as clients see it. Not changed after it was made.

    `properties` are JSON Schema fragments of one plain `type` each (string, integer, number, boolean, array, object)
    with a `description` and, if there is one, a `default` or an `enum`: no unions, no references.
    """

    __slots__ = (
        *("name", "title", "description", "handler", "properties", "required", "profile"),
        *("read_only", "destructive", "idempotent", "open_world"),
    )

    def __init__(
        self,
        *,
        name: str,
        title: str,
        description: str,
        handler: "Handler",
        properties: "Mapping[str, Mapping[str, Any]] | None" = None,
        required: tuple[str, ...] = (),
        profile: str = "default",
        read_only: bool = False,
        destructive: bool = False,
        idempotent: bool = False,
        open_world: bool = False,
    ) -> None:
        self.name = name
        self.title = title
        self.description = description
        self.handler = handler
        self.properties: Mapping[str, Mapping[str, Any]] = properties or {}
        self.required = required
        self.profile = profile
        self.read_only = read_only
        self.destructive = destructive
        self.idempotent = idempotent
        self.open_world = open_world

    def renamed(self, names: "Mapping[str, str]") -> "Tool":
        """Return the same tool, with new names for tools wherever their old ones stand, its own included."""
        return Tool(
            name=names[self.name],
            title=self.title,
            description=reworded(self.description, names),
            handler=self.handler,
            properties={
                name: {**fragment, "description": reworded(fragment["description"], names)}
                for name, fragment in self.properties.items()
            },
            required=self.required,
            profile=self.profile,
            read_only=self.read_only,
            destructive=self.destructive,
            idempotent=self.idempotent,
            open_world=self.open_world,
        )


def reworded(text: str, names: "Mapping[str, str]") -> str:
    """Return a text with new names for tools, wherever it names them between backticks."""
    for old, new in names.items():
        text = text.replace(f"`{old}`", f"`{new}`")
    return text


class Deferred:
    """A handler that is imported when it is loaded or first called."""

    __slots__ = ("_function", "_module")

    def __init__(self, module: str, function: str) -> None:
        self._module = module
        self._function = function

    def load(self) -> "Handler":
        """Return the handler itself."""
        from importlib import import_module

        return getattr(import_module(self._module), self._function)

    async def __call__(self, call: "Call") -> "Answer":
        """Handle a call."""
        return await self.load()(call)
