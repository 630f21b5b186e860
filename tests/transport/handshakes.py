"""What clients really send first, as recorded from them, and what else they might."""

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["ENVELOPES", "HANDSHAKES", "INITIALIZED", "VERSIONS", "initialize", "line", "request"]

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")

INITIALIZED: Mapping[str, Any] = {"jsonrpc": "2.0", "method": "notifications/initialized"}

HANDSHAKES: Mapping[str, Mapping[str, Any]] = {
    "nothing": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    "claude-code": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"roots": {}, "elicitation": {"form": {}, "url": {}}},
        "clientInfo": {
            "name": "claude-code",
            "title": "Claude Code",
            "version": "2.1.332",
            "description": "An agentic coding tool \u2014 in the terminal",
            "websiteUrl": "https://claude.com/claude-code",
            "icons": [{"src": "https://claude.ai/icon.svg", "mimeType": "image/svg+xml", "sizes": ["any"]}],
        },
    },
    "codex": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"elicitation": {"form": {}, "url": {}}, "experimental": {"codex/auth-change": {}}},
        "clientInfo": {"name": "codex-mcp-client", "title": "Codex", "version": "0.171.0"},
    },
    "gemini": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"roots": {"listChanged": True}},
        "clientInfo": {"name": "gemini-cli-mcp-client-sandbox", "version": "0.61.0"},
    },
    "vscode": {
        "protocolVersion": "2025-11-25",
        "capabilities": {
            "roots": {"listChanged": True},
            "sampling": {"context": {}, "tools": {}},
            "elicitation": {"form": {}, "url": {}},
            "tasks": {
                "list": {},
                "cancel": {},
                "requests": {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}},
            },
            "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}},
        },
        "clientInfo": {"name": "Visual Studio Code", "version": "1.140.0"},
    },
    "of the future": {
        "protocolVersion": "2031-01-01",
        "capabilities": {"telepathy": [1, {"range": None}]},
        "clientInfo": {"name": "t", "version": "1", "mood": {}},
        "_meta": {"progressToken": 0, "trace": "x"},
        "more": False,
    },
}
"""Parameters of `initialize`."""

_META = "io.modelcontextprotocol"
ENVELOPES: Mapping[str, Mapping[str, Any]] = {
    "nothing": {f"{_META}/protocolVersion": "2026-07-28", f"{_META}/clientCapabilities": {}},
    "claude-code": {
        f"{_META}/protocolVersion": "2026-07-28",
        f"{_META}/clientCapabilities": {"roots": {}, "elicitation": {"form": {}, "url": {}}},
        f"{_META}/clientInfo": {"name": "claude-code", "title": "Claude Code", "version": "2.1.332"},
        f"{_META}/logLevel": "warning",
        "progressToken": 3,
        "claudecode/toolUseId": "toolu_1",
    },
}
"""`_meta` of every request of the revision without a handshake."""


def request(request_id: Any, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a request."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return message if params is None else {**message, "params": params}


def initialize(version: str = "2025-06-18", request_id: Any = 1) -> dict[str, Any]:
    """Return the request for a handshake."""
    return request(request_id, "initialize", {**HANDSHAKES["nothing"], "protocolVersion": version})


def line(message: Mapping[str, Any]) -> bytes:
    """Return a message as it goes over the wire."""
    return json.dumps(message).encode() + b"\n"
