"""The published schema is what the models are, and the ready manifests are manifests."""

import json
from pathlib import Path

import pytest

from mcp_sandbox.manifest.reading import parse_manifest
from mcp_sandbox.manifest.schema import schema_text

__all__: list[str] = []

_CONFIGS = Path(__file__).parents[2] / "configs"
_READY = sorted((_CONFIGS / "manifests").glob("*.yaml"))


def test_the_published_schema_is_current() -> None:
    """`mcp-sandbox manifest schema > configs/manifests/schema.json` writes it."""
    assert (_CONFIGS / "manifests" / "schema.json").read_text("utf-8") == schema_text()


def test_every_key_of_the_schema_says_what_it_is() -> None:
    schema = json.loads(schema_text())
    groups = [schema, *schema["$defs"].values()]
    flat = [each for group in groups for each in (group, *group.get("anyOf", []))]
    silent = [name for group in flat for name, field in group.get("properties", {}).items() if not field]
    assert silent == []
    assert all(group.get("additionalProperties") is False for group in flat if "properties" in group)


@pytest.mark.parametrize("path", _READY, ids=lambda path: path.stem)
def test_a_ready_manifest_is_one(path: Path) -> None:
    assert parse_manifest(path.read_bytes(), path.name).manifest.name
