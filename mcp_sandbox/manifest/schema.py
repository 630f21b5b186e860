"""The JSON schema of a manifest, for editors: `configs/manifests/schema.json` is what this returns."""

import json
from typing import Any, Final, cast

from mcp_sandbox.manifest.model import Manifest

__all__ = ["schema_text"]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_text() -> str:
    """Return the schema as it is published."""
    schema = _plain(Manifest.model_json_schema(by_alias=True, mode="validation"))
    whole = {"$schema": _DIALECT, "$id": "mcp-sandbox-manifest", **schema, "title": "mcp-sandbox manifest"}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _plain(schema: Any) -> Any:
    """Return a schema without what only its generator needs: titles, and `null` for keys that are not there."""
    if isinstance(schema, list):
        return [_plain(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, Any]", schema)
    kept = {name: _plain(value) for name, value in fields.items() if not _is_needless(name, value)}
    choices: list[Any] = kept.get("anyOf", [])
    if {"type": "null"} in choices:
        choices.remove({"type": "null"})
        if len(choices) == 1:
            del kept["anyOf"]
            kept = {**choices[0], **kept}
    return kept


def _is_needless(name: str, value: object) -> bool:
    return (name == "title" and isinstance(value, str)) or (name == "default" and value is None)
