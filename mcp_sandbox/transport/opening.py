"""The requests with which connections begin, and their answers, byte for byte as the SDK's server gives them.

Only requests of the shapes below are recognised: what clients send and the SDK surely accepts. Everything else, right
or wrong, is left to the SDK.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["Announcement", "Opening", "is_plain_message"]

_HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_ENVELOPE_VERSION = "2026-07-28"
"""The revision without a handshake: every request says in its `_meta` who asks and what for."""

_META = "io.modelcontextprotocol"
_METHOD_NOT_FOUND = -32601
_NOT_SERVED = ("prompts/list", "resources/list", "resources/templates/list")
"""What some clients ask for without looking at the capabilities."""

_FIRST_ENVELOPED = ("server/discover", "tools/list")
"""What connections without a handshake begin with."""

# A shape is a type, a constant, a tuple of alternatives, a list of one item's shape, or an object. An object may have
# fields that are not named here; a name with "!" must be there, and "*" stands for every field.
_NEVER = ()
_MESSAGE: "dict[str, Any]" = {"jsonrpc!": "2.0", "method!": str, "id": (int, str), "params": {}}
_MESSAGE_NAMES = ("jsonrpc", "method", "id", "params")
_CAPABILITIES: "dict[str, Any]" = {
    "roots": {"listChanged": bool},
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "experimental": {"*": {}},
    "extensions": {"*": {}},
    "tasks": {
        "list": {},
        "cancel": {},
        "requests": {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}},
    },
}
_ICON: "dict[str, Any]" = {"src!": str, "mimeType": str, "sizes": [str], "theme": ("light", "dark")}
_CLIENT: "dict[str, Any]" = {
    "name!": str,
    "version!": str,
    "title": str,
    "description": str,
    "websiteUrl": str,
    "icons": [_ICON],
}
_PROGRESS: "dict[str, Any]" = {"progressToken": (int, str), "progress_token": _NEVER}
_HANDSHAKE_META: "dict[str, Any]" = {**_PROGRESS, f"{_META}/protocolVersion": _NEVER}
_HANDSHAKE: "dict[str, Any]" = {
    "protocolVersion!": str,
    "capabilities!": _CAPABILITIES,
    "clientInfo!": _CLIENT,
    "_meta": _HANDSHAKE_META,
}
_PLAIN: "dict[str, Any]" = {"cursor": str, "_meta": _HANDSHAKE_META}
_ENVELOPED: "dict[str, Any]" = {
    "cursor": str,
    "_meta!": {
        **_PROGRESS,
        f"{_META}/protocolVersion!": _ENVELOPE_VERSION,
        f"{_META}/clientCapabilities!": _CAPABILITIES,
        f"{_META}/clientInfo": _CLIENT,
        f"{_META}/logLevel": ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"),
    },
}


def is_plain_message(message: "Any") -> bool:
    """Return whether something is a request or a notification, and nothing but that."""
    return _fits(message, _MESSAGE) and len(message) == sum(name in message for name in _MESSAGE_NAMES)


class Announcement:
    """What a server says of itself and of its tools."""

    __slots__ = ("instructions", "name", "title", "tools", "ttl_ms", "version")

    def __init__(
        self, *, name: str, title: str, version: str, instructions: str, tools: "list[dict[str, Any]]", ttl_ms: int
    ) -> None:
        self.name = name
        self.title = title
        self.version = version
        self.instructions = instructions
        self.tools = tools
        self.ttl_ms = ttl_ms


class Opening:
    """The beginning of one connection: the requests that can be answered without the SDK.

    The first request decides whether the connection is one with a handshake.
    """

    def __init__(self, announcement: Announcement) -> None:
        self._announced = announcement
        self._is_enveloped: bool | None = None
        self._greeted = False
        self.listed = False
        """Whether the client knows the tools."""

    def answer(self, request: "Mapping[str, Any]") -> "dict[str, Any] | None":
        """Return the whole answer to a request, or `None` if the SDK must give it."""
        method, params = request["method"], request.get("params", {})
        enveloped = method in _FIRST_ENVELOPED if self._is_enveloped is None else self._is_enveloped
        if not _fits(params, _ENVELOPED if enveloped else _PLAIN):
            return None
        outcome = self._enveloped(method) if enveloped else self._plain(method, params)
        if outcome is None:
            return None
        self._is_enveloped = enveloped
        return {"jsonrpc": "2.0", "id": request["id"], **outcome}

    def decides(self, request: "Mapping[str, Any]") -> bool:
        """Return whether the rest of the connection depends on a request that was not answered yet."""
        return self._is_enveloped is None or request["method"] == "initialize"

    def _plain(self, method: str, params: "Mapping[str, Any]") -> "dict[str, Any] | None":
        if method == "ping":
            return {"result": {}}
        if method == "initialize" and not self._greeted and _fits(params, _HANDSHAKE):
            self._greeted = True
            return {"result": self._initialized(params["protocolVersion"])}
        if method == "tools/list" and self._greeted:
            self.listed = True
            return {"result": {"tools": self._announced.tools}}
        return _not_found(method) if method in _NOT_SERVED and self._greeted else None

    def _enveloped(self, method: str) -> "dict[str, Any] | None":
        if method == "server/discover":
            return {"result": self._discovered()}
        if method == "tools/list":
            self.listed = True
            return {"result": self._lasting(tools=[_type_first(tool) for tool in self._announced.tools])}
        return _not_found(method) if method in _NOT_SERVED else None

    def _initialized(self, version: str) -> "dict[str, Any]":
        return {
            "capabilities": {"tools": {"listChanged": False}},
            "instructions": self._announced.instructions,
            "protocolVersion": version if version in _HANDSHAKE_VERSIONS else _HANDSHAKE_VERSIONS[-1],
            "serverInfo": self._itself(),
        }

    def _discovered(self) -> "dict[str, Any]":
        return self._lasting(
            capabilities={"tools": {"listChanged": False}},
            instructions=self._announced.instructions,
            supportedVersions=[_ENVELOPE_VERSION],
        )

    def _lasting(self, **fields: "Any") -> "dict[str, Any]":
        """Return a result that clients may keep, its fields in the order of the alphabet."""
        result = {**fields, "cacheScope": "public", "resultType": "complete", "ttlMs": self._announced.ttl_ms}
        return {**dict(sorted(result.items())), "_meta": {f"{_META}/serverInfo": self._itself()}}

    def _itself(self) -> "dict[str, Any]":
        announced = self._announced
        return {"name": announced.name, "title": announced.title, "version": announced.version}


def _type_first(tool: "Mapping[str, Any]") -> "dict[str, Any]":
    """Return a tool with the fields of its schema in the order of the newer revision."""
    return {**tool, "inputSchema": {"type": "object", **tool["inputSchema"]}}


def _not_found(method: str) -> "dict[str, Any]":
    return {"error": {"code": _METHOD_NOT_FOUND, "message": "Method not found", "data": method}}


def _fits(value: "Any", shape: "Any") -> bool:
    kind: object = shape.__class__
    if kind is type:
        return type(value) is shape
    if kind is tuple:
        return any(_fits(value, alternative) for alternative in shape)
    if value.__class__ is not kind:
        return False
    if kind is list:
        return all(_fits(item, shape[0]) for item in value)
    return _has(value, shape) if kind is dict else value == shape


def _has(value: "dict[str, Any]", fields: "dict[str, Any]") -> bool:
    for name, shape in fields.items():
        if name == "*":
            if not all(_fits(field, shape) for field in value.values()):
                return False
            continue
        plain = name.removesuffix("!")
        if plain in value:
            if not _fits(value[plain], shape):
                return False
        elif plain != name:
            return False
    return True
