"""What clients send first: recorded from four of them, and what else the protocol allows."""

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["ENVELOPES", "HANDSHAKES", "INITIALIZED", "VERSIONS", "initialize", "line", "request"]

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")

INITIALIZED: Mapping[str, Any] = {"jsonrpc": "2.0", "method": "notifications/initialized"}

HANDSHAKES: Mapping[str, Mapping[str, Any]] = {
    "nothing": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    "Codex CLI 0.171.0": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"experimental": {"codex/auth-change": {}}, "elicitation": {"form": {}, "url": {}}},
        "clientInfo": {"name": "codex-mcp-client", "title": "Codex", "version": "0.171.0"},
    },
    "opencode 1.18.33": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"roots": {}},
        "clientInfo": {"name": "opencode", "version": "1.18.33"},
    },
    "Gemini CLI 0.61.0": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"roots": {"listChanged": True}},
        "clientInfo": {"name": "gemini-cli-mcp-client", "version": "0.61.0"},
    },
    "everything": {
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
        "clientInfo": {
            "name": "t",
            "title": "T\u00e9 \u2014 T",
            "version": "1",
            "description": "A client",
            "websiteUrl": "https://example.com/",
            "icons": [{"src": "https://example.com/i.svg", "mimeType": "image/svg+xml", "sizes": ["any"]}],
        },
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
    "Claude Code 2.1.332": {
        f"{_META}/protocolVersion": "2026-07-28",
        f"{_META}/clientInfo": {
            "name": "claude-code",
            "title": "Claude Code",
            "version": "2.1.332",
            "description": "Anthropic's agentic coding tool",
            "websiteUrl": "https://claude.com/claude-code",
        },
        f"{_META}/clientCapabilities": {"roots": {"listChanged": True}, "elicitation": {"form": {}, "url": {}}},
    },
    "more": {
        f"{_META}/protocolVersion": "2026-07-28",
        f"{_META}/clientCapabilities": {"extensions": {"io.modelcontextprotocol/ui": {}}},
        f"{_META}/logLevel": "warning",
        "progressToken": 3,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
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
